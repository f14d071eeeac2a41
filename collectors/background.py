"""Background work: a fixed beat, a thread that ends on request, and a thread that runs a function on request.

Every wait for a thread has a time limit. Knows neither NVML nor any GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar


class Beat:
    """Moments at equal intervals, the first at creation; missed moments are skipped, never made up for.

    reached: moments that `wait` reached in time, including the first. missed: moments that had passed before `wait` was
    called. passed: all moments after the first. late_s: total delay with which reached moments began.
    clock_ns: a monotonic clock. wait: waits that many seconds or until a stop is requested; returns whether it was.
    """

    def __init__(
        self,
        beat_s: float,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self.beat_s = beat_s
        self.reached = 1
        self.missed = 0
        self.passed = 0
        self.late_s = 0.0
        self._beat_ns = round(beat_s * 1e9)
        self._clock_ns, self._wait = clock_ns, wait
        self._begun_ns = clock_ns()

    def wait(self, stop_requested: threading.Event) -> bool:
        """Wait for the next moment in the future. Return True if a stop is requested before it."""
        now_ns = self._clock_ns()
        # Beat of 1 s, 3.2 s after the start, moment 1 reached: the next one is 4; 2 and 3 are missed.
        following = max(self.passed, (now_ns - self._begun_ns) // self._beat_ns) + 1
        self.missed += following - self.passed - 1
        self.passed = following
        due_ns = self._begun_ns + following * self._beat_ns
        if self._wait(stop_requested, (due_ns - now_ns) / 1e9):
            return True
        self.reached += 1
        self.late_s += max(0, self._clock_ns() - due_ns) / 1e9
        return False


class BackgroundThread:
    """A thread that runs until a stop is requested or its work is finished.

    It is a daemon, so a disk or driver that hangs cannot keep the program from exiting.
    run: takes the event that requests the stop.
    """

    def __init__(self, name: str, run: Callable[[threading.Event], object]) -> None:
        self._stop_requested = threading.Event()
        self._thread = threading.Thread(target=run, args=(self._stop_requested,), name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Request a stop and wait at most `timeout_s`; return whether the thread ended. May be called again."""
        self._stop_requested.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


Answer = TypeVar("Answer")


class BackgroundTask(Generic[Answer]):
    """A thread that runs a function on request. A call that never returns blocks this thread only.

    latest: the last answer; None before the first.
    """

    def __init__(self, name: str, question: Callable[[], Answer]) -> None:
        self.latest: Answer | None = None
        self._question = question
        self._error: Exception | None = None
        self._calls_due = threading.Semaphore(0)
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Start a new call, unless the last one is still running."""
        if self._is_idle.is_set():
            self._is_idle.clear()
            self._calls_due.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for the current call; return whether it is done.

        Raises:
            Exception: the error that the call raised, once.
        """
        is_done = self._is_idle.wait(max(0.0, timeout_s))
        error, self._error = (self._error, None) if is_done else (None, self._error)
        if error is not None:
            raise error
        return is_done

    def close(self, timeout_s: float) -> bool:
        """Request the thread's end and wait at most `timeout_s`; return whether it ended."""
        self._is_ending = True
        self._calls_due.release()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._calls_due.acquire()
            if self._is_ending:
                return
            try:
                self.latest = self._question()
            except Exception as error:  # noqa: BLE001  # `wait` raises it.
                self._error = error
            self._is_idle.set()
