"""Phases are marked for the clock first and for the account of memory after it, and asking is accounted for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch import Tensor

from bench.rank.instrumentation import PhaseMarks
from collectors.metrics.metric import Sample
from collectors.rank.step_clock import StepTimes


class FakeClock:
    """Notes what is marked."""

    def __init__(self, noted: list[str]) -> None:
        self._noted = noted

    def start(self) -> None:
        self._noted.append("clock starts")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._noted.append(f"clock begins {name}")
        yield
        self._noted.append(f"clock ends {name}")

    def end_step(self, loss: Tensor | None = None, gradient_norm: Tensor | None = None) -> None: ...

    def finished(self) -> list[StepTimes]:
        return []

    def drain(self) -> list[StepTimes]:
        return []


class FakeMemory:
    """Notes what is marked, and takes 5 ns to do so."""

    def __init__(self, noted: list[str]) -> None:
        self.now_ns = 0
        self._noted = noted

    def start(self) -> None:
        self._noted.append("memory starts")

    def end_phase(self, name: str) -> None:
        self.now_ns += 5
        self._noted.append(f"memory ends {name}")

    def end_step(self, *, is_last: bool = False) -> list[Sample]:
        return []


@pytest.fixture
def noted() -> list[str]:
    return []


@pytest.fixture
def marks(noted: list[str]) -> PhaseMarks:
    memory = FakeMemory(noted)
    return PhaseMarks(FakeClock(noted), memory, now_ns=lambda: memory.now_ns)


def test_asking_for_memory_is_in_no_phase_of_the_clock(marks: PhaseMarks, noted: list[str]) -> None:
    with marks.phase("forward"):
        noted.append("work")
    assert noted == ["clock begins forward", "work", "clock ends forward", "memory ends forward"]


def test_the_time_of_asking_is_told_once(marks: PhaseMarks) -> None:
    for phase in ("forward", "backward"):
        with marks.phase(phase):
            pass
    assert marks.take_reading_ns() == 10
    assert marks.take_reading_ns() == 0


def test_a_start_is_for_both_and_forgets_what_was_asked_before(marks: PhaseMarks, noted: list[str]) -> None:
    with marks.phase("forward"):
        pass
    noted.clear()
    marks.start()
    assert sorted(noted) == ["clock starts", "memory starts"]
    assert marks.take_reading_ns() == 0


def test_another_mark_is_set_around_phases_for_as_long_as_it_is_asked_for(marks: PhaseMarks, noted: list[str]) -> None:
    @contextmanager
    def mark(name: str) -> Iterator[None]:
        noted.append(f"mark begins {name}")
        yield
        noted.append(f"mark ends {name}")

    with marks.marked_also(mark), marks.phase("forward"):
        pass
    with marks.phase("backward"):
        pass
    assert [note for note in noted if note.startswith("mark")] == ["mark begins forward", "mark ends forward"]
