"""A stream that was made to wait goes on after what had ended last of what was there before."""

from __future__ import annotations

from collectors.traces.dependency_graph.dependencies import device_queue, stream_waits
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.small_traces import BACKWARD, device, launch, span
from tests.support.timelines import Span


def _found(timeline: Timeline) -> list[tuple[str, str]]:
    queue = device_queue(timeline)
    return [
        (timeline.names[timeline.name[queue.row[source]]], timeline.names[timeline.name[queue.row[target]]])
        for source, target in zip(*stream_waits(timeline, queue), strict=True)
    ]


def _wait(start_us: int, correlation: int) -> Span:
    return span("launch", "cudaStreamWaitEvent", start_us, start_us + 1, correlation=correlation)


def test_a_wait_concerns_what_its_thread_puts_on_the_device_next() -> None:
    timeline = device(
        0,
        launch(0, 1),
        _wait(3, 2),
        launch(5, 3),
        launch(8, 4),
        span("compute", "backward", 4, 50, 7, 1),
        span("communication", "reduce", 51, 90, 20, 3),
        span("compute", "more", 52, 80, 7, 4),
    )
    assert _found(timeline) == [("backward", "reduce")]


def test_where_the_trace_tells_the_stream_the_wait_is_of_that_one() -> None:
    timeline = device(
        0,
        launch(0, 1),
        _wait(3, 2),
        span("wait", "Stream Wait Event", 3, 3, 20, 2),
        launch(5, 3),
        launch(8, 4),
        span("compute", "backward", 4, 50, 7, 1),
        span("compute", "more", 52, 80, 7, 3),
        span("communication", "reduce", 51, 90, 20, 4),
    )
    assert _found(timeline) == [("backward", "reduce")]


def test_what_was_put_there_after_the_wait_was_not_waited_for() -> None:
    timeline = device(
        0,
        launch(0, 1),
        _wait(3, 2),
        launch(4, 5, BACKWARD),
        launch(6, 3),
        span("compute", "before", 4, 20, 7, 1),
        span("compute", "after", 21, 49, 7, 5),
        span("communication", "reduce", 51, 90, 20, 3),
    )
    assert _found(timeline) == [("before", "reduce")]


def test_of_several_streams_the_one_that_ended_last_was_waited_for() -> None:
    timeline = device(
        0,
        launch(0, 1),
        launch(2, 2),
        _wait(5, 3),
        launch(7, 4),
        span("compute", "one", 4, 60, 7, 1),
        span("compute", "other", 4, 50, 13, 2),
        span("communication", "reduce", 61, 90, 20, 4),
    )
    assert _found(timeline) == [("one", "reduce")]


def test_a_wait_for_nothing_that_is_known_binds_nothing() -> None:
    assert _found(device(0, _wait(0, 1), launch(2, 2), span("compute", "alone", 5, 9, 7, 2))) == []
