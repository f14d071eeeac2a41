"""The peak of a device and what lived there, on events that were made by hand."""

from __future__ import annotations

from collectors.traces.analyzers.memory import HOST, PeakBlock, Taker, memory_of
from collectors.traces.timeline import Allocations, SpanKind, Timeline
from tests.collectors.traces.made.changes import changes
from tests.support.timelines import Span, timeline_of

SPANS: tuple[tuple[str, SpanKind, int, int], ...] = (
    ("ProfilerStep#7", "step", 0, 50),
    ("aten::mm", "host", 10, 20),
    ("aten::empty", "host", 11, 12),
    ("ProfilerStep#8", "step", 50, 100),
    ("aten::relu", "host", 60, 70),
    ("aten::empty", "host", 80, 90),
)


def timeline(allocations: Allocations, *beside: Span) -> Timeline:
    spans = [Span(name=name, kind=kind, start_ns=start, end_ns=end, stream=1) for name, kind, start, end in SPANS]
    return timeline_of([*spans, *beside], rank=3, is_device=True, allocations=allocations)


def test_the_peak_is_the_first_moment_at_which_most_is_held() -> None:
    found = memory_of(timeline(changes((11, 8, 100), (61, 9, 50), (62, 9, -50), (63, 9, 50))), HOST)
    assert (found.peak_bytes, found.peak_ns, found.step) == (150, 61, "ProfilerStep#8")


def test_what_lived_at_the_peak_is_told_by_the_operator_that_wanted_it() -> None:
    found = memory_of(timeline(changes((11, 8, 100), (12, 9, 30), (13, 9, -30), (61, 10, 50), (62, 11, 20))), HOST)
    assert found.takers == (
        Taker(step="ProfilerStep#7", operator="aten::mm", blocks=1, size_bytes=100),
        Taker(step="ProfilerStep#8", operator="aten::relu", blocks=2, size_bytes=70),
    )
    assert found.largest[0] == PeakBlock(
        address=8, size_bytes=100, taken_ns=11, step="ProfilerStep#7", operator="aten::mm"
    )


def test_a_fetch_that_nothing_surrounds_stands_for_itself_and_what_no_operator_took_for_none() -> None:
    found = memory_of(timeline(changes((85, 8, 100), (95, 9, 50), (200, 10, 10))), HOST)
    assert [(taker.step, taker.operator) for taker in found.takers] == [
        ("ProfilerStep#8", "aten::empty"),
        ("ProfilerStep#8", None),
        (None, None),
    ]


def test_bytes_count_from_the_first_change_where_no_total_is_told() -> None:
    found = memory_of(timeline(changes((11, 8, -100), (12, 9, 30))), HOST)
    assert found.begin_bytes is None
    assert (found.times_ns.tolist(), found.held_bytes.tolist()) == ([11, 11, 12], [0, -100, -70])
    assert (found.peak_bytes, found.takers) == (0, ())


def test_a_gpu_tells_what_it_held_before_and_what_others_than_these_blocks_hold() -> None:
    found = memory_of(timeline(changes((11, 8, 100), (61, 9, 50), device=2, totals=[1100, 1170])), 2)
    assert (found.device, found.begin_bytes, found.held_bytes.tolist()) == (2, 1000, [1000, 1100, 1170])


def test_categories_are_absent_where_no_phase_is_told() -> None:
    assert memory_of(timeline(changes((11, 8, 100))), HOST).by_category is None


def test_a_block_is_of_the_operator_of_the_thread_that_took_it() -> None:
    beside = Span(name="aten::_pin_memory", kind="host", start_ns=13, end_ns=18, stream=2)
    found = memory_of(timeline(changes((15, 8, 100), thread=1), beside), HOST)
    assert [taker.operator for taker in found.takers] == ["aten::mm"]
