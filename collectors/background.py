"""A question that is asked again and again in a thread of its own, so that whoever waits for the answer can give up.

Knows neither NVML nor any GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

# A beat: moments at equal distances; those that went by are skipped and counted, and never made up for.


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


Answer = TypeVar("Answer")


class Answerer(Generic[Answer]):
    """One thread, one question at a time. A question that never returns costs this thread and no other.

    latest: the last answer, None before the first.
    """

    def __init__(self, name: str, question: Callable[[], Answer]) -> None:
        self.latest: Answer | None = None
        self._question = question
        self._error: Exception | None = None
        self._asked = threading.Semaphore(0)
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Begin anew, unless it is still at it."""
        if self._is_idle.is_set():
            self._is_idle.clear()
            self._asked.release()

    def wait(self, timeout_s: float) -> bool:
        """Whether it is done, after at most so many seconds.

        Raises:
            Exception: whatever the question raised, once.
        """
        is_done = self._is_idle.wait(max(0.0, timeout_s))
        error, self._error = (self._error, None) if is_done else (None, self._error)
        if error is not None:
            raise error
        return is_done

    def close(self, timeout_s: float) -> bool:
        """Let the thread end; whether it did, after at most so many seconds."""
        self._is_ending = True
        self._asked.release()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            if self._is_ending:
                return
            try:
                self.latest = self._question()
            except Exception as error:  # noqa: BLE001  # It is raised where the answer is waited for.
                self._error = error
            self._is_idle.set()
