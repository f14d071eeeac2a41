"""A wait of the host is found where it said so, or where another thread ended while it was in nothing."""

from __future__ import annotations

import numpy as np

from collectors.traces.dependency_graph.dependencies import device_queue, synchronisations, wakings
from collectors.traces.dependency_graph.rank_graph import threads_of
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.small_traces import BACKWARD, GLOO, MAIN, device, host, launch, span
from tests.support.timelines import Span


def _awaited(timeline: Timeline) -> list[tuple[str, str]]:
    queue = device_queue(timeline)
    calls, reached = synchronisations(timeline, queue)
    return [
        (timeline.names[timeline.name[call]], timeline.names[timeline.name[queue.row[place]]])
        for call, place in zip(calls, reached, strict=True)
    ]


def _synchronised(*more: Span) -> Timeline:
    return device(
        0,
        launch(0, 1),
        launch(3, 2),
        span("launch", "cudaStreamSynchronize", 6, 40, correlation=3),
        launch(41, 4),
        span("compute", "early", 5, 20, 7, 1),
        span("compute", "late", 6, 38, 13, 2),
        span("compute", "after", 45, 60, 7, 4),
        *more,
    )


def test_a_call_that_synchronises_waits_for_what_was_asked_for_before_it() -> None:
    assert _awaited(_synchronised()) == [("cudaStreamSynchronize", "late")]


def test_what_another_thread_asked_for_meanwhile_was_not_waited_for() -> None:
    meanwhile = (launch(10, 5, BACKWARD), span("compute", "meanwhile", 20, 39, 14, 5))
    assert _awaited(_synchronised(*meanwhile)) == [("cudaStreamSynchronize", "late")]


def test_where_the_trace_tells_the_stream_only_that_one_is_waited_for() -> None:
    told = span("wait", "Stream Sync", 6, 40, 7, 3)
    assert _awaited(_synchronised(told)) == [("cudaStreamSynchronize", "early")]


def test_a_call_that_synchronises_with_an_idle_device_waits_for_nothing() -> None:
    assert _awaited(device(0, span("launch", "cudaDeviceSynchronize", 0, 5, correlation=1))) == []


def test_a_call_that_synchronises_with_a_stream_that_has_nothing_waits_for_nothing() -> None:
    timeline = device(
        0,
        launch(0, 1),
        span("compute", "elsewhere", 3, 6, 13, 1),
        span("launch", "cudaStreamSynchronize", 5, 9, correlation=2),
        span("wait", "Stream Sync", 5, 9, 7, 2),
    )
    assert _awaited(timeline) == []


def test_a_copy_that_ended_within_its_call_was_waited_for() -> None:
    timeline = device(
        0, span("launch", "cudaMemcpyAsync", 0, 30, correlation=1), span("copy", "Memcpy DtoH", 5, 29, 7, 1)
    )
    assert _awaited(timeline) == [("cudaMemcpyAsync", "Memcpy DtoH")]


def test_a_copy_that_outlasts_its_call_was_not_waited_for() -> None:
    timeline = device(
        0, span("launch", "cudaMemcpyAsync", 0, 3, correlation=1), span("copy", "Memcpy HtoD", 2, 29, 7, 1)
    )
    assert _awaited(timeline) == []


def _wakings(spans: list[Span]) -> list[tuple[int, int, int, int]]:
    """Thread, the microsecond at which it was woken, by which thread, and when that one ended."""
    timeline = host(0, spans)
    threads = threads_of(timeline, np.empty(0, dtype=np.int64))
    ends_ns = timeline.end_ns[timeline.stream == GLOO]
    found = wakings(threads.workers, {GLOO: ends_ns}, timeline, 0, int(timeline.end_ns.max()))
    return [(wait.thread, wait.woken_ns // 1000, wait.by_thread, wait.ended_ns // 1000) for wait in found]


def test_a_thread_in_no_span_waits_for_what_ends_meanwhile() -> None:
    spans = [
        span("compute", "aten::mm", 0, 100),
        span("communication", "gloo:all_reduce", 50, 300, GLOO),
        span("compute", "aten::add", 310, 400),
    ]
    assert _wakings(spans) == [(MAIN, 310, GLOO, 300)]


def test_a_thread_in_an_annotation_may_wait_and_one_in_an_operator_works() -> None:
    def around(name: str) -> list[Span]:
        return [
            span("compute", "aten::mm", 0, 100),
            span("host", name, 100, 310),
            span("communication", "gloo:all_reduce", 50, 300, GLOO),
            span("compute", "aten::add", 310, 400),
        ]

    assert len(_wakings(around("wait for gradients"))) == 1
    assert _wakings(around("aten::slow")) == []


def test_a_gap_as_short_as_between_operators_is_no_wait() -> None:
    spans = [
        span("compute", "aten::mm", 0, 100),
        span("communication", "gloo:all_reduce", 50, 115, GLOO),
        span("compute", "aten::add", 118, 400),
    ]
    assert _wakings(spans) == []


def test_a_thread_that_went_on_long_after_did_not_wait() -> None:
    spans = [
        span("compute", "aten::mm", 0, 100),
        span("communication", "gloo:all_reduce", 50, 150, GLOO),
        span("compute", "aten::add", 400, 500),
    ]
    assert _wakings(spans) == []


def test_two_threads_wake_each_other_in_turn() -> None:
    spans = [
        span("compute", "aten::loss", 0, 100),
        span("compute", "autograd::mm", 130, 500, BACKWARD),
        span("compute", "aten::update", 520, 600),
    ]
    assert sorted(_wakings(spans)) == [(MAIN, 520, BACKWARD, 500), (BACKWARD, 130, MAIN, 100)]
