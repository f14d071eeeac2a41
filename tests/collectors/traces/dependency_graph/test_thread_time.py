"""A thread's time is divided among the innermost of its spans, without a gap."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.dependency_graph.dependencies import ThreadTime, thread_time
from collectors.traces.timeline import ABSENT, Timeline
from tests.collectors.traces.made.small_traces import host, span

OUTER, INNER, LATER = "aten::linear", "aten::mm", "aten::add"


def _of(timeline: Timeline) -> ThreadTime:
    return thread_time(timeline, np.arange(timeline.kind.size))


def _named(timeline: Timeline) -> list[tuple[int, int, str | None]]:
    time = _of(timeline)
    columns = (time.start_ns.tolist(), time.end_ns.tolist(), time.row.tolist())
    return [
        (start // 1000, end // 1000, None if row == ABSENT else timeline.names[timeline.name[row]])
        for start, end, row in zip(*columns, strict=True)
    ]


SMALL = host(0, [span("host", OUTER, 0, 10), span("host", INNER, 2, 5), span("host", LATER, 12, 15)])


def test_a_thread_is_in_its_innermost_span_and_between_spans_in_none() -> None:
    assert _named(SMALL) == [(0, 2, OUTER), (2, 5, INNER), (5, 10, OUTER), (10, 12, None), (12, 15, LATER)]


def test_a_stretch_of_time_is_cut_at_both_ends() -> None:
    assert [(start, end) for start, end, _ in _of(SMALL).within(4_500, 11_000)] == [
        (4_500, 5_000),
        (5_000, 10_000),
        (10_000, 11_000),
    ]


def test_time_spent_before_a_moment_counts_chosen_spans_alone() -> None:
    chosen = np.array([True, False, False, True])  # The outer span, and no span.
    moments_ns = np.array([-5, 0, 1_000, 4_000, 11_000, 99_000])
    assert _of(SMALL).spent_ns(chosen, moments_ns).tolist() == [0, 0, 1_000, 2_000, 8_000, 9_000]


def test_a_thread_without_a_lasting_span_has_no_time() -> None:
    assert _named(host(0, [span("host", OUTER, 3, 3)])) == []


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12))
def test_at_each_moment_it_is_the_last_span_to_begin_of_those_that_are_open(spans: list[tuple[int, int]]) -> None:
    timeline = host(0, [span("host", OUTER, start, start + lasts) for start, lasts in spans])
    time = _of(timeline)
    for start, end, row in zip(time.start_ns.tolist(), time.end_ns.tolist(), time.row.tolist(), strict=True):
        for moment in range(start, end, 1000):
            is_open = (timeline.start_ns <= moment) & (moment < timeline.end_ns)
            assert row == (np.flatnonzero(is_open)[-1] if is_open.any() else ABSENT)
    assert (time.start_ns[1:] == time.end_ns[:-1]).all()
