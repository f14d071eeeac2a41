"""A question that is asked again and again in a thread of its own, so that whoever waits for the answer can give up.

Knows neither NVML nor any GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

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
