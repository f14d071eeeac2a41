"""Lateness has one denominator, and a row for each step that was looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collectors.traces.analyzers.collectives import collectives
from collectors.traces.analyzers.lateness import TracedLateness, traced_lateness
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.made_collectives import ran, ranks_of
from tests.support.timelines import Span, timeline_of


def _traced(*, has_steps: bool) -> TracedLateness:
    """Four steps of 1000 ns, in the third of which rank 1 comes 200 ns late."""
    spans: list[list[Span]] = [[], []]
    for rank, of_rank in enumerate(spans):
        for step in range(4):
            begin_ns = 1_000 * step
            of_rank.append(ran(begin_ns + 100 + 200 * (rank == 1 and step == 2), begin_ns + 900, sequence=step))
            if has_steps:
                of_rank.append(Span(name="step", kind="step", start_ns=begin_ns, end_ns=begin_ns + 1_000, stream=1))
    return traced_lateness(collectives(ranks_of(*spans)))


def test_each_step_whose_collectives_count_is_a_row() -> None:
    assert _traced(has_steps=True).delays_ns.tolist() == [[0, 0], [0, 200], [0, 0]]


def test_lateness_is_a_share_of_the_traced_steps() -> None:
    found = _traced(has_steps=True)
    assert (found.traced_ns, found.has_steps) == (4_000, True)


def _device_rank(rank: int, step_on_host_ns: int) -> Timeline:
    """Six steps of 1000 ns on the device, in each of which rank 1 comes 200 ns late; the host only launches."""
    spans = []
    for step in range(6):
        mark_ns, begin_ns = step_on_host_ns * step, 10 + 1_000 * step
        came_ns, number = begin_ns + 500 + 200 * rank, 2 * step
        spans += [
            Span(name="step", kind="step", start_ns=mark_ns, end_ns=mark_ns + step_on_host_ns, stream=1),
            Span(name="gemm", kind="compute", start_ns=begin_ns, end_ns=came_ns, stream=7, correlation=number),
            replace(ran(came_ns, begin_ns + 1_000, sequence=step), correlation=number + 1),
        ]
        spans += [
            Span(
                name="call", kind="launch", start_ns=mark_ns + one, end_ns=mark_ns + one + 1, stream=1, correlation=one
            )
            for one in (number, number + 1)
        ]
    return timeline_of(spans, rank=rank, is_device=True)


@pytest.mark.parametrize("step_on_host_ns", [1_000, 600, 300, 60, 20])
def test_steps_are_those_of_the_device_however_far_the_host_is_ahead(step_on_host_ns: int) -> None:
    found = traced_lateness(collectives([_device_rank(rank, step_on_host_ns) for rank in (0, 1)]))
    assert found.delays_ns.tolist() == [[0, 200]] * 5
    assert 6_000 <= found.traced_ns <= 6_010


def test_without_steps_it_is_a_share_of_the_time_from_first_arrival_to_last_end() -> None:
    found = _traced(has_steps=False)
    assert (found.traced_ns, found.has_steps) == (3_900 - 1_100, False)
    assert found.delays_ns.tolist() == [[0, 200]]


def test_ranks_are_ascending_whoever_is_late() -> None:
    assert [(one.rank, one.delay_ns) for one in _traced(has_steps=True).ranks] == [(0, 0), (1, 200)]
