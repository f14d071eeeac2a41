"""A beat: moments at equal distances; those that went by are skipped and counted, and never made up for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Beat:
    """Begins with its making, which is its first moment.

    kept: moments that were waited for, and the first. missed: those that were over before they were waited for.
    passed: all moments since the first. late_s: how much later than their moments the kept ones began, added up.
    clock_ns: never set back. wait: until told to stop or for so many seconds; whether told.
    """

    def __init__(
        self,
        beat_s: float,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self.beat_s = beat_s
        self.kept = 1
        self.missed = 0
        self.passed = 0
        self.late_s = 0.0
        self._beat_ns = round(beat_s * 1e9)
        self._clock_ns, self._wait = clock_ns, wait
        self._begun_ns = clock_ns()

    def wait(self, told_to_stop: threading.Event) -> bool:
        """Wait for the next moment that is still to come; whether told to stop before it."""
        now_ns = self._clock_ns()
        following = max(self.passed, (now_ns - self._begun_ns) // self._beat_ns) + 1
        self.missed += following - self.passed - 1
        self.passed = following
        due_ns = self._begun_ns + following * self._beat_ns
        if self._wait(told_to_stop, (due_ns - now_ns) / 1e9):
            return True
        self.kept += 1
        self.late_s += max(0, self._clock_ns() - due_ns) / 1e9
        return False
