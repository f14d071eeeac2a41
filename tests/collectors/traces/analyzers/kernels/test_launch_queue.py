"""Delays and queues are those of launches that were laid by hand."""

import pytest

from collectors.traces.analyzers.kernels import GRAPH, LaunchQueue, launch_queue
from collectors.traces.timeline import SpanKind
from tests.support.timelines import Span, timeline_of

CALL = "cudaLaunchKernel"


def _call(correlation: int, start_ns: int, name: str = CALL) -> Span:
    return Span(name=name, kind="launch", start_ns=start_ns, end_ns=start_ns + 1, stream=1, correlation=correlation)


def _work(correlation: int, start_ns: int, end_ns: int, kind: SpanKind = "compute", stream: int = 7) -> Span:
    return Span(name=kind, kind=kind, start_ns=start_ns, end_ns=end_ns, stream=stream, correlation=correlation)


def _queue(*spans: Span) -> LaunchQueue:
    return launch_queue(timeline_of(spans, rank=3, is_device=True))


def test_a_delay_runs_from_the_start_of_the_launch_to_the_start_of_its_work() -> None:
    found = _queue(_call(1, 0), _work(1, 10, 20), _call(2, 4), _work(2, 20, 30), _call(3, 5), _work(3, 8, 9, "copy", 9))
    assert {kind: delays.total_ns for kind, delays in found.delays.items()} == {"compute": 26, "copy": 3}
    assert found.delays["compute"].count == 2


def test_a_graph_is_one_launch_and_its_delay_that_of_its_first_work() -> None:
    found = _queue(
        _call(1, 0, "cudaGraphLaunch"),
        _work(1, 6, 7),
        _work(1, 7, 9),
        _work(1, 8, 9, "copy"),
        _call(2, 1),
        _work(2, 9, 10),
    )
    assert {kind: (delays.count, delays.total_ns) for kind, delays in found.delays.items()} == {
        GRAPH: (1, 6),
        "compute": (1, 8),
    }
    assert found.spans_of_graphs == 3
    assert found.queues[0].longest == 2


def test_a_queue_grows_by_a_launch_and_shrinks_by_a_start() -> None:
    found = _queue(_call(1, 0), _work(1, 2, 9), _call(2, 1), _work(2, 9, 12), _call(3, 5), _work(3, 12, 13))
    whole, stream = found.queues
    assert whole.moments_ns.tolist() == [0, 1, 2, 5, 9, 12]
    assert whole.length.tolist() == [1, 2, 1, 2, 1, 0]
    assert whole.longest == 2
    assert whole.mean_length == pytest.approx((1 * 1 + 2 * 1 + 1 * 3 + 2 * 4 + 1 * 3) / 12)
    assert (whole.stream, stream.stream) == (None, 7)


def test_each_stream_has_a_queue_of_its_own() -> None:
    found = _queue(_call(1, 0), _work(1, 4, 9), _call(2, 1), _work(2, 3, 12, stream=20))
    assert [(queue.stream, queue.longest) for queue in found.queues] == [(None, 2), (7, 1), (20, 1)]


def test_a_launch_that_starts_as_another_is_launched_does_not_wait_beside_it() -> None:
    found = _queue(_call(1, 0), _work(1, 4, 5), _call(2, 4), _work(2, 6, 9))
    assert found.queues[0].longest == 1


def test_work_without_a_launch_is_counted_and_has_no_delay() -> None:
    found = _queue(_call(1, 0), _work(1, 4, 5), _work(8, 6, 9))
    assert (found.unknown, found.delays["compute"].count) == (1, 1)


def test_what_gloo_runs_beside_a_device_has_no_launch_to_lack() -> None:
    gloo = Span(name="gloo:all_reduce", kind="communication", start_ns=6, end_ns=9, stream=3)
    found = _queue(_call(1, 0), _work(1, 4, 5), gloo)
    assert (found.unknown, list(found.delays)) == (0, ["compute"])


def test_a_mean_length_is_right_where_lengths_times_durations_exceed_64_bits() -> None:
    # All but the first nanoseconds, 8 launches wait.
    now_ns = 1_700_000_000_000_000_000
    spans = [span for number in range(1, 9) for span in (_call(number, number), _work(number, now_ns, now_ns + 1))]
    assert _queue(*spans).queues[0].mean_length == pytest.approx(8)


def test_a_launch_after_its_own_work_is_counted_and_in_no_figure() -> None:
    found = _queue(_call(1, 0), _work(1, 4, 5), _call(2, 8), _work(2, 6, 9))
    assert (found.early, found.delays["compute"].total_ns, found.queues[0].longest) == (1, 4, 1)


def test_a_trace_without_launches_has_neither_delays_nor_queues() -> None:
    found = _queue(_work(1, 4, 5))
    assert (found.delays, found.queues, found.unknown) == ({}, (), 1)


def test_a_queue_of_no_time_has_no_mean() -> None:
    (whole, _) = _queue(_call(1, 4), _work(1, 4, 5)).queues
    assert (whole.longest, whole.mean_length) == (0, None)
