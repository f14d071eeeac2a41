"""Collectives count in the step that asked for them, also where hosts run ahead of their devices."""

from __future__ import annotations

from collections.abc import Iterable

from collectors.traces.analyzers.collectives import collectives
from collectors.traces.cross_rank.collective_times import steps_of
from collectors.traces.steps import steps
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.made_collectives import ALL_REDUCE, ran, rank_of, ranks_of
from tests.support.timelines import Span, timeline_of


def _marks(*starts_ns: int, numbers: Iterable[int] | None = None, every_ns: int = 100) -> list[Span]:
    names = ["observatory step"] * len(starts_ns) if numbers is None else [f"ProfilerStep#{one}" for one in numbers]
    return [
        Span(name=name, kind="step", start_ns=start, end_ns=start + every_ns - 1, stream=1)
        for name, start in zip(names, starts_ns, strict=True)
    ]


def _ahead(count: int) -> list[Span]:
    """Collectives that run one after another, each launched in a step of the host of its own, 10 ns long."""
    spans = _marks(*range(0, 10 * count, 10), every_ns=10)
    for number in range(count):
        asked_ns, start_ns = 10 * number + 5, 1_000 * (number + 1)
        spans += [
            Span(name="call", kind="launch", start_ns=asked_ns, end_ns=asked_ns + 1, stream=1, correlation=number),
            Span(
                name="nccl",
                kind="communication",
                start_ns=start_ns,
                end_ns=start_ns + 900,
                stream=20,
                call=ALL_REDUCE,
                sequence=number,
                correlation=number,
            ),
        ]
    return spans


def _found(timelines: list[Timeline]) -> list[int]:
    """In the order of the last arrivals."""
    found = collectives(timelines)
    marked = {timeline.rank: steps(timeline) for timeline in timelines}
    step_of = steps_of(found.times, timelines, marked, found.alignment.offset_ns)
    return [step_of[time.matched] for time in found.times] if step_of else []


def test_a_collective_is_in_the_step_that_launched_it_however_far_the_host_is_ahead() -> None:
    assert _found(ranks_of(_ahead(4), _ahead(4))) == [0, 1, 2, 3]


def test_one_without_a_launch_is_in_the_step_in_whose_time_on_the_device_it_came() -> None:
    without = ran(2_950, 2_960, sequence=9, name="unlaunched")
    assert _found(ranks_of([*_ahead(3), without], [*_ahead(3), without])) == [0, 1, 2, 2]


def test_without_a_device_it_is_in_the_step_in_which_it_came_and_before_the_first_in_one_of_its_own() -> None:
    spans = [*_marks(100, 200), ran(50, 60), ran(150, 160), ran(250, 260)]
    assert _found([timeline_of(spans, rank=rank, is_device=False) for rank in (0, 1)]) == [-1, 0, 1]


def test_steps_with_numbers_are_the_same_on_ranks_whose_traces_begin_with_other_steps() -> None:
    pair = [ran(150, 160, sequence=1), ran(250, 260, sequence=2), ran(350, 360, sequence=3)]
    whole = [*_marks(0, 100, 200, 300, numbers=(6, 7, 8, 9)), *pair]
    later = [*_marks(200, 300, numbers=(8, 9)), *pair]
    assert _found(ranks_of(later, later)) == [7, 8, 9]
    assert _found(ranks_of(later, whole)) == [7, 8, 9]


def test_numbers_that_begin_again_tell_no_step() -> None:
    spans = [*_marks(0, 100, 200, numbers=(0, 1, 0)), ran(50, 60), ran(150, 160), ran(250, 260)]
    assert _found(ranks_of(spans, spans)) == [0, 1, 2]


def test_where_none_of_its_ranks_marks_steps_anothers_tell() -> None:
    bare = [ran(150, 160, sequence=1), ran(250, 260, sequence=2)]
    timelines = [*ranks_of(bare, bare), rank_of(2, _marks(100, 200))]
    assert _found(timelines) == [0, 1]
    assert _found(ranks_of(bare, bare)) == []
