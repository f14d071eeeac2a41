"""The operator behind a moment or a kernel, on timelines that were made by hand."""

from __future__ import annotations

import numpy as np

from collectors.traces.operators import launching_operators, operators_at
from collectors.traces.timeline import ABSENT, SpanKind, Timeline
from tests.support.timelines import Span, timeline_of


def span(
    name: str, kind: SpanKind, start_ns: int, end_ns: int, stream: int = 1, correlation: int | None = None
) -> Span:
    return Span(name=name, kind=kind, start_ns=start_ns, end_ns=end_ns, stream=stream, correlation=correlation)


def names(timeline: Timeline, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[str | None]:
    return [None if row == ABSENT else timeline.names[timeline.name[row]] for row in rows.tolist()]


def test_the_innermost_operator_of_any_thread_stands_behind_a_moment() -> None:
    timeline = timeline_of(
        [
            span("aten::linear", "host", 0, 10),
            span("aten::addmm", "host", 2, 8),
            span("aten::relu", "host", 5, 6, stream=2),
        ],
        rank=0,
        is_device=True,
    )
    found = operators_at(timeline, np.array([1, 3, 5, 7, 9, 10]), np.full(6, ABSENT))
    assert names(timeline, found) == ["aten::linear", "aten::addmm", "aten::relu", "aten::addmm", "aten::linear", None]


def test_where_the_thread_of_a_moment_is_told_no_other_is_looked_at() -> None:
    spans = [span("aten::mm", "host", 0, 10), span("aten::_pin_memory", "host", 4, 6, stream=2)]
    timeline = timeline_of(spans, rank=0, is_device=True)
    found = operators_at(timeline, np.array([5, 5, 5, 5]), np.array([1, 2, 3, ABSENT]))
    assert names(timeline, found) == ["aten::mm", "aten::_pin_memory", None, "aten::_pin_memory"]


def test_an_operator_that_does_not_count_is_looked_through() -> None:
    timeline = timeline_of([span("aten::mm", "host", 0, 10), span("aten::empty", "host", 2, 8)], rank=0, is_device=True)
    found = operators_at(timeline, np.array([3]), np.array([ABSENT]), counts=lambda name: name != "aten::empty")
    assert names(timeline, found) == ["aten::mm"]


def test_on_the_host_what_computes_is_an_operator_and_a_step_is_none() -> None:
    timeline = timeline_of(
        [span("observatory step", "step", 0, 10), span("aten::mm", "compute", 2, 8)], rank=0, is_device=False
    )
    assert names(timeline, operators_at(timeline, np.array([1, 3]), np.full(2, ABSENT))) == [None, "aten::mm"]


def test_a_kernel_is_of_the_operator_around_its_launch_on_the_launching_thread() -> None:
    timeline = timeline_of(
        [
            span("aten::mm", "host", 0, 10, stream=1),
            span("aten::add", "host", 3, 6, stream=2),
            span("cudaLaunchKernel", "launch", 4, 5, stream=1, correlation=7),
            span("gemm", "compute", 20, 30, stream=7, correlation=7),
        ],
        rank=0,
        is_device=True,
    )
    kernel = timeline.of_kind("compute")
    assert names(timeline, launching_operators(timeline)[kernel]) == ["aten::mm"]


def test_a_kernel_whose_launch_the_trace_lacks_is_of_no_operator() -> None:
    timeline = timeline_of(
        [span("aten::mm", "host", 0, 10), span("gemm", "compute", 2, 3, stream=7, correlation=7)],
        rank=0,
        is_device=True,
    )
    assert names(timeline, launching_operators(timeline)) == ["aten::mm", None]


def test_on_the_host_an_operator_is_its_own() -> None:
    timeline = timeline_of([span("aten::mm", "compute", 0, 10)], rank=0, is_device=False)
    assert names(timeline, launching_operators(timeline)) == ["aten::mm"]
