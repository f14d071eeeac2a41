"""A Timeline keeps its spans as columns."""

import numpy as np

from collectors.traces.timeline import ABSENT, Call, Timeline, stream_name
from tests.support.timelines import Span, timeline_of

SPANS = [
    Span(name="aten::mm", kind="compute", start_ns=5, end_ns=9, stream=1),
    Span(name="gloo:all_reduce", kind="communication", start_ns=7, end_ns=12, stream=2),
    Span(name="aten::mm", kind="compute", start_ns=1, end_ns=3, stream=1),
]


def _timeline() -> Timeline:
    return timeline_of(SPANS, rank=3, is_device=False)


def test_spans_are_in_order_and_each_name_is_kept_once() -> None:
    timeline = _timeline()
    assert timeline.names == ("aten::mm", "gloo:all_reduce")
    assert timeline.start_ns.tolist() == [1, 5, 7]
    assert timeline.start_ns.dtype == np.int64


def test_times_are_unions() -> None:
    timeline = _timeline()
    assert timeline.busy_ns("compute") == 6
    assert timeline.overlap_ns("compute", "communication") == 2


def test_what_a_span_does_not_say_is_absent() -> None:
    call = Call(collective="all_reduce", group="0")
    told = Span(
        name="nccl",
        kind="communication",
        start_ns=0,
        end_ns=1,
        stream=3,
        correlation=0,
        call=call,
        sequence=0,
        shape="[2]",
    )
    timeline = timeline_of([told, *SPANS], rank=0, is_device=True)
    assert timeline.correlation.tolist() == timeline.sequence.tolist() == [0, ABSENT, ABSENT, ABSENT]
    assert (timeline.calls, timeline.shapes) == ((call,), ("[2]",))
    assert timeline.call.tolist() == timeline.shape.tolist() == [0, ABSENT, ABSENT, ABSENT]


def test_a_timeline_moves_to_another_clock() -> None:
    moved = _timeline().moved(-4)
    assert (moved.start_ns.tolist(), moved.end_ns.tolist()) == ([-3, 1, 3], [-1, 5, 8])


def test_a_stream_is_called_by_its_number_and_of_several_devices_by_its_device_too() -> None:
    assert (stream_name(7), stream_name((3 << 32) + 7)) == (7, "7 of GPU 3")


def test_a_thread_that_is_numbered_by_an_address_is_of_no_device() -> None:
    address = 0x7F12_3456_7890
    assert (stream_name(address), stream_name(ABSENT)) == (address, ABSENT)
