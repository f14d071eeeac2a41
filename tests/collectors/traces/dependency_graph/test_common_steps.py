"""Ranks agree on steps by their numbers, and a step lasts until every rank's work is done."""

from __future__ import annotations

from collectors.traces.analyzers.critical_path import critical_path
from collectors.traces.dependency_graph.rank_graph import common_steps
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.small_traces import device, host, launch, span


def _with_steps(rank: int, *names: str) -> Timeline:
    """Steps of 100 us with an operator in each."""
    marks = [span("step", name, 100 * place, 100 * place + 100) for place, name in enumerate(names)]
    work = [span("compute", "aten::mm", 100 * place + 10, 100 * place + 90) for place in range(len(names))]
    return host(rank, [*marks, *work])


def test_steps_are_the_same_whose_numbers_are() -> None:
    common = common_steps([_with_steps(0, "ProfilerStep#1", "ProfilerStep#2"), _with_steps(1, "ProfilerStep#2")])
    assert common.names == ("ProfilerStep#2",)
    assert [marks.time_ns.tolist() for marks in common.marks] == [[100_000, 200_000], [0, 100_000]]
    assert common.notes == ("1 of the steps are left out: not every rank's trace holds them whole",)


def test_steps_without_a_number_are_the_same_in_the_same_place() -> None:
    common = common_steps([_with_steps(0, "observatory step", "observatory step"), _with_steps(1, "observatory step")])
    assert common.names == ("observatory step 0",)


def test_a_step_that_a_trace_does_not_hold_whole_is_left_out_with_its_reason() -> None:
    cut = device(0, span("step", "ProfilerStep#1", 0, 20), launch(5, 1), launch(9, 2), span("compute", "k", 7, 8, 7, 1))
    common = common_steps([cut])
    assert common.names == ()
    assert common.notes == ("rank 0: ProfilerStep#1 is left out: the trace lacks the work of 1 of 2 launches",)


def test_a_step_in_which_nothing_ran_is_left_out_with_its_reason_and_its_place() -> None:
    spans = [span("step", "observatory step", 0, 20), span("compute", "aten::mm", 2, 9)]
    common = common_steps([host(3, [*spans, span("step", "observatory step", 20, 22)])])
    assert common.names == ("observatory step 0",)
    assert common.notes == ("rank 3: observatory step 1 is left out: nothing ran in it",)


def test_a_step_is_over_when_the_last_rank_has_done_its_work_and_the_next_begins_there() -> None:
    slow, fast = (
        device(
            rank,
            span("step", "ProfilerStep#1", 0, 10),
            span("step", "ProfilerStep#2", 10, 20),
            launch(2, 1),
            launch(12, 2),
            span("compute", "first", 5, first_us, 7, 1),
            span("compute", "second", first_us, second_us, 7, 2),
        )
        for rank, (first_us, second_us) in enumerate([(80, 120), (30, 110)])
    )
    steps = critical_path([slow, fast]).steps
    assert [(step.start_ns // 1000, step.end_ns // 1000) for step in steps] == [(0, 80), (80, 120)]


def test_time_between_steps_belongs_to_none() -> None:
    apart = host(
        0,
        [
            span("step", "ProfilerStep#1", 0, 10),
            span("compute", "aten::mm", 1, 9),
            span("compute", "evaluation", 12, 40),
            span("step", "ProfilerStep#2", 50, 60),
            span("compute", "aten::mm", 51, 59),
        ],
    )
    steps = critical_path([apart]).steps
    assert [(step.start_ns // 1000, step.end_ns // 1000) for step in steps] == [(0, 10), (50, 60)]
