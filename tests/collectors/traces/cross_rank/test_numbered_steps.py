"""Collectives belong to the numbered step in which they were asked for."""

from __future__ import annotations

import numpy as np

from collectors.traces.cross_rank.process_groups import numbers_of_marks, step_numbers
from collectors.traces.timeline import ABSENT
from tests.collectors.traces.made.made_collectives import ran, rank_of
from tests.support.timelines import Span


def _step(name: str, start_ns: int, end_ns: int) -> Span:
    return Span(name=name, kind="step", start_ns=start_ns, end_ns=end_ns, stream=1)


def _numbers(*spans: Span) -> list[int]:
    timeline = rank_of(0, spans)
    return list(step_numbers(timeline, np.flatnonzero(timeline.of_kind("communication"))))


def test_a_collective_is_in_the_step_that_holds_its_start() -> None:
    steps = (_step("ProfilerStep#7", 100, 200), _step("ProfilerStep#8", 200, 300))
    assert _numbers(*steps, ran(10, 20), ran(150, 160), ran(250, 260), ran(310, 320)) == [ABSENT, 7, 8, ABSENT]


def test_what_the_device_runs_is_in_the_step_that_launched_it() -> None:
    launch = Span(name="cudaLaunchKernel", kind="launch", start_ns=150, end_ns=151, stream=1, correlation=3)
    late = Span(name="nccl", kind="communication", start_ns=250, end_ns=260, stream=20, correlation=3)
    assert _numbers(_step("ProfilerStep#7", 100, 200), _step("ProfilerStep#8", 200, 300), launch, late) == [7]


def test_the_number_of_each_mark_is_told() -> None:
    marks = (_step("ProfilerStep#7", 100, 200), _step("observatory step", 200, 300))
    assert list(numbers_of_marks(rank_of(0, marks))) == [7, ABSENT]


def test_steps_without_a_number_tell_none() -> None:
    assert _numbers(_step("observatory step", 100, 200), ran(150, 160)) == [ABSENT]
