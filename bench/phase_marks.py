"""Marks the phases of a rank's steps, for its clock and for the account of its memory alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from collectors.allocator import StepMemory
from collectors.step_clock import StepClock

Mark = Callable[[str], AbstractContextManager[object]]
"""Marks a phase, by its name."""


def _unmarked(name: str) -> AbstractContextManager[object]:
    return nullcontext()


class PhaseMarks:
    """What a workload is handed to mark its phases with.

    The account of memory is asked when the clock has ended the phase, so that asking is in no phase's time.
    """

    def __init__(self, clock: StepClock, memory: StepMemory, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock = clock
        self.memory = memory
        self._now_ns = now_ns
        self._asking_ns = 0
        self._also: Mark = _unmarked

    def start(self) -> None:
        """The first step begins now, for both; again after a pause."""
        self._asking_ns = 0
        self.memory.start()
        self.clock.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark what is inside as a part of the running step."""
        with self._also(name), self.clock.phase(name):
            yield
        begun_ns = self._now_ns()
        self.memory.end_phase(name)
        self._asking_ns += self._now_ns() - begun_ns

    @contextmanager
    def marked_also(self, mark: Mark) -> Iterator[None]:
        """Meanwhile phases are marked by this, too."""
        self._also = mark
        try:
            yield
        finally:
            self._also = _unmarked

    def take_asking_ns(self) -> int:
        """Nanoseconds of the host that asking took since the last call."""
        asking_ns, self._asking_ns = self._asking_ns, 0
        return asking_ns
