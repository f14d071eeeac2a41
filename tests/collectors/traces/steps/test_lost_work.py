"""A launch whose work the trace lacks is counted, wherever in a step it lies."""

from __future__ import annotations

import numpy as np

from collectors.traces.steps import launches, lost_work
from tests.collectors.traces.made.small_traces import BACKWARD, MAIN, MICROSECOND_NS, device, launch, span
from tests.support.timelines import Span


def _lost(*spans: Span, start_us: int = 0, end_us: int = 100) -> tuple[int, int]:
    """Of the time of one step: how many launches lack their work, and of how many."""
    timeline = device(0, *spans)
    start_ns, end_ns = (np.array([edge_us * MICROSECOND_NS]) for edge_us in (start_us, end_us))
    lost, expected = lost_work(timeline, launches(timeline), start_ns, end_ns)
    return int(lost[0]), int(expected[0])


def _call(name: str, start_us: int, thread: int = MAIN) -> Span:
    return span("launch", name, start_us, start_us + 1, thread, start_us)


def test_launches_without_their_work_are_counted_among_those_of_the_time() -> None:
    work = [span("compute", "gemm", 50, 51, 7, correlation) for correlation in (1, 4)]
    calls = [launch(10 * number, number) for number in range(1, 6)]
    assert _lost(*calls, *work) == (3, 5)
    assert _lost(*calls, *work, start_us=20, end_us=40) == (2, 2)
    assert _lost(*calls, *work, start_us=60, end_us=60) == (0, 0)


def test_calls_that_launch_no_kernel_need_no_work() -> None:
    calls = [_call(name, 10 + number) for number, name in enumerate(("cudaMemsetAsync", "cudaLaunchHostFunc"))]
    assert _lost(*calls) == (0, 0)


def test_several_calls_with_one_correlation_are_one_launch_at_the_first_of_them() -> None:
    calls = [_call("cudaLaunchKernel", 10), span("launch", "cuLaunchKernel", 11, 12, MAIN, 10)]
    work = span("compute", "gemm", 50, 51, 7, 10)
    assert (_lost(*calls, work), _lost(*calls)) == ((0, 1), (1, 1))
    assert _lost(*calls, start_us=11) == (0, 0)


def test_launches_under_capture_need_no_work_whichever_thread_makes_them() -> None:
    capture = _call("cudaStreamBeginCapture", 10), _call("cudaStreamEndCapture", 40)
    assert _lost(*capture, launch(20, 1), launch(30, 2, BACKWARD)) == (0, 0)
    assert _lost(*capture, launch(5, 1), launch(20, 2), launch(50, 3)) == (2, 2)


def test_work_of_a_launch_under_capture_counts_where_the_trace_holds_it() -> None:
    capture = _call("hipStreamBeginCapture", 10), _call("hipStreamEndCapture", 40)
    assert _lost(*capture, launch(20, 1), launch(30, 2), span("compute", "gemm", 25, 26, 7, 2)) == (0, 1)


def test_a_capture_whose_end_the_trace_lacks_excuses_nothing() -> None:
    end_of_another = _call("cudaStreamEndCapture", 40, BACKWARD)
    assert _lost(_call("cudaStreamBeginCapture", 10), end_of_another, launch(20, 1)) == (1, 1)


def test_two_captures_excuse_not_what_lies_between_them() -> None:
    names = ("cudaStreamBeginCapture", "cudaStreamEndCapture") * 2
    captures = [_call(name, 10 * number) for number, name in enumerate(names, start=1)]
    assert _lost(*captures, launch(15, 101), launch(25, 102), launch(35, 103)) == (1, 1)
