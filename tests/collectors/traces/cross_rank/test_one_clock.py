"""A critical path goes through ranks whose clocks are compared, and says which others it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from collectors.traces.analyzers.critical_path import critical_path
from collectors.traces.cross_rank.clock_sync import Alignment, ranks_on_one_clock
from collectors.traces.timeline import About, Call, Timeline
from tests.collectors.traces.made.small_traces import MICROSECOND_NS, all_reduce, device, launch, span
from tests.support.timelines import Span, timeline_of


def _pipelined(rank: int, ahead_us: int, host: str | None = None) -> Timeline:
    """A rank of three steps of 10 ms that sends messages only."""
    spans: list[Span] = []
    for number in range(3):
        begin_us = 10_000 * number + ahead_us
        sent = span("communication", "ncclDevKernel_SendRecv", begin_us + 9_010, begin_us + 9_510, 20, 2 * number + 1)
        spans += [
            span("step", f"ProfilerStep#{number}", begin_us, begin_us + 10_000),
            launch(begin_us + 5, 2 * number),
            launch(begin_us + 20, 2 * number + 1),
            span("compute", "gemm", begin_us + 10, begin_us + 9_010, 7, 2 * number),
            replace(sent, call=Call(collective="send", group="0", ranks=(0, 1, 2), peer=1)),
        ]
    return timeline_of(spans, rank=rank, is_device=True, about=About(host=host))


@pytest.mark.parametrize("ahead_us", [3_000, 10**9])
def test_the_difference_of_clocks_that_nothing_compares_is_in_no_step(ahead_us: int) -> None:
    found = critical_path([_pipelined(0, 0), _pipelined(1, ahead_us)])
    assert [step.step_ns // MICROSECOND_NS for step in found.steps] == [10_000] * 3
    assert {part.rank for step in found.steps for part in step.parts} == {0}
    assert found.notes[0] == "the path leaves out rank 1: clocks are not compared with those of rank 0"


def test_the_path_is_that_of_the_most_ranks_on_one_clock() -> None:
    found = critical_path([_pipelined(0, 10**9), _pipelined(1, 0, host="n1"), _pipelined(2, 0, host="n1")])
    assert {part.rank for step in found.steps for part in step.parts} <= {1, 2}
    assert [step.step_ns // MICROSECOND_NS for step in found.steps] == [10_000] * 3
    assert found.notes[0] == "the path leaves out rank 0: clocks are not compared with those of ranks 1, 2"


def test_of_sets_as_large_the_path_is_that_of_the_lowest_rank() -> None:
    def chosen(present: Sequence[int], *connected: tuple[int, ...]) -> frozenset[int]:
        alignment = Alignment(timelines=(), offset_ns={}, agreements=(), connected=connected)
        return ranks_on_one_clock(alignment, present)

    assert chosen(range(5), (0, 3), (1, 2), (4,)) == {0, 3}
    assert chosen((0, 1, 2, 4), (0, 3), (1, 2), (4,)) == {1, 2}


def test_a_single_collective_compares_no_clocks_and_counts_whole() -> None:
    one, other = (device(rank, all_reduce(100 + ahead, 150 + ahead, 0)) for rank, ahead in ((0, 0), (1, 10**9)))
    found = critical_path([one, other])
    assert [(step.step_ns, step.spent_ns("communication")) for step in found.steps] == [(50_000, 50_000)]


def _on_host(rank: int, call: Call, host: str = "n1") -> Timeline:
    """A rank with three of these collectives."""
    spans = [replace(all_reduce(100 * number, 100 * number + 50, number), call=call) for number in range(3)]
    return timeline_of(spans, rank=rank, is_device=True, about=About(host=host))


def test_a_collective_with_ranks_that_are_left_out_counts_whole_and_is_said() -> None:
    call = Call(collective="broadcast", group="0", ranks=(0, 1, 2))
    timelines = [_on_host(rank, call, host) for rank, host in enumerate(("n1", "n1", "n2"))]
    notes = " ".join(critical_path(timelines).notes)
    assert "6 spans of communication were not matched, and count in full: ranks take part whose clocks are not" in notes


def test_a_rooted_collective_on_the_path_is_said_to_be_as_if_waited_for() -> None:
    for collective, is_said in (("broadcast", True), ("all_reduce", False)):
        call = Call(collective=collective, group="0", ranks=(0, 1))
        notes = critical_path([_on_host(rank, call) for rank in (0, 1)]).notes
        assert is_said == any("rooted collective need not wait" in note for note in notes)


def test_ranks_that_a_group_has_beyond_the_traces_are_said() -> None:
    call = Call(collective="all_reduce", group="0", group_size=8)
    notes = critical_path([_on_host(rank, call) for rank in (0, 1)]).notes
    assert "process groups have more ranks than there are traces: waits for the other ranks count as communication" in (
        notes
    )
