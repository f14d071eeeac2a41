"""Time for benchmarks that would wait: it passes as soon as somebody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class FastTime:
    """A clock that waiting moves at once, and that tells to stop after so many seconds.

    at_wait: what else happens then, at which time. error: of a thread that failed, if one did.
    """

    def __init__(self, seconds: float) -> None:
        self.at_wait: Callable[[float], None] = lambda at_s: None
        self.is_over = threading.Event()
        self.error: BaseException | None = None
        self._now_ns = 0
        self._end_ns = round(1e9 * seconds)

    def ns(self) -> int:
        return self._now_ns

    def seconds(self) -> float:
        return self._now_ns / 1e9

    def end_by(self, error: threading.ExceptHookArgs) -> None:
        """A thread has failed, and nothing would move the clock on."""
        self.error = error.exc_value
        self.is_over.set()

    def wait(self, told: threading.Event, seconds: float) -> bool:
        self.at_wait(self.seconds())
        self._now_ns += round(1e9 * seconds)
        if self._now_ns > self._end_ns:
            self.is_over.set()
        return self.is_over.is_set()
