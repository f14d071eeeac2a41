"""The device's queue holds what ran on the device, stream by stream, with the calls that asked for it."""

from __future__ import annotations

from collectors.traces.dependency_graph.dependencies import device_queue, on_device
from collectors.traces.steps import LONG_AGO
from collectors.traces.timeline import ABSENT
from tests.collectors.traces.made.small_traces import GLOO, device, host, launch, span


def test_spans_are_by_stream_and_start_with_their_calls() -> None:
    timeline = device(
        0,
        launch(1, 1),
        launch(5, 2),
        span("compute", "other", 4, 6, 13, 1),
        span("copy", "first", 8, 9, 7, 2),
    )
    queue = device_queue(timeline)
    assert [timeline.names[timeline.name[row]] for row in queue.row] == ["first", "other"]
    assert (queue.stream.tolist(), queue.called_ns.tolist()) == ([7, 13], [5_000, 1_000])


def test_what_a_stream_ran_before_its_first_call_was_called_long_ago() -> None:
    queue = device_queue(device(0, span("compute", "early", 0, 2, 7), launch(3, 1), span("compute", "k", 4, 6, 7, 1)))
    assert (queue.call.tolist()[0], queue.called_ns.tolist()) == (ABSENT, [LONG_AGO, 3_000])
    assert queue.is_placed.all()


def test_of_other_spans_without_a_call_it_is_not_known() -> None:
    queue = device_queue(device(0, launch(0, 1), span("compute", "k", 4, 6, 7, 1), span("compute", "alone", 8, 9, 7)))
    assert (queue.is_placed.tolist(), queue.called_ns.tolist()) == ([True, False], [0, 8_000])


def test_gloo_runs_on_the_host_also_beside_a_device() -> None:
    timeline = device(0, span("compute", "k", 0, 1, 7), span("communication", "gloo:all_reduce", 1, 2, GLOO))
    assert on_device(timeline).tolist() == [True, False]


def test_without_a_device_nothing_runs_on_it() -> None:
    assert not on_device(host(0, [span("compute", "aten::mm", 0, 1)])).any()
