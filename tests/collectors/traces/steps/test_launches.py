"""A span of the device is joined with the call that launched it, by correlation."""

from collectors.traces.steps import LONG_AGO, is_at_work, launch_of, launches
from collectors.traces.timeline import ABSENT, SpanKind
from tests.support.timelines import Span, timeline_of


def _span(kind: SpanKind, start_ns: int, end_ns: int, correlation: int | None = None, stream: int = 7) -> Span:
    return Span(name=kind, kind=kind, start_ns=start_ns, end_ns=end_ns, stream=stream, correlation=correlation)


def test_what_computes_communicates_or_copies_is_at_work() -> None:
    kinds: tuple[SpanKind, ...] = ("compute", "communication", "copy", "host", "step", "launch", "wait")
    spans = [_span(kind, place, place + 1) for place, kind in enumerate(kinds)]
    assert is_at_work(timeline_of(spans, rank=0, is_device=True)).tolist() == [True] * 3 + [False] * 4


def test_each_span_at_work_has_the_launch_with_its_correlation() -> None:
    spans = [
        _span("launch", 0, 1, 12),
        _span("launch", 2, 3, 11),
        _span("copy", 4, 5, 11),
        _span("compute", 6, 7, 12),
        _span("compute", 8, 9, 12),  # A graph puts many on the device.
        _span("compute", 10, 11, 13),  # Of a launch that the trace lacks.
        _span("communication", 12, 13),
    ]
    found = launch_of(timeline_of(spans, rank=0, is_device=True))
    assert found.tolist() == [ABSENT, ABSENT, 1, 0, 0, ABSENT, ABSENT]


def test_of_two_calls_with_one_correlation_the_first_is_the_launch() -> None:
    spans = [_span("launch", 0, 9, 1), _span("launch", 1, 2, 1), _span("compute", 5, 6, 1)]
    assert launch_of(timeline_of(spans, rank=0, is_device=True)).tolist() == [ABSENT, ABSENT, 0]


def test_a_wait_with_the_correlation_of_a_launch_is_no_launch_and_has_none() -> None:
    spans = [_span("wait", 0, 1, 1), _span("launch", 2, 3, 1), _span("compute", 5, 6, 1)]
    assert launch_of(timeline_of(spans, rank=0, is_device=True)).tolist() == [ABSENT, ABSENT, 1]


def test_without_launches_none_is_known() -> None:
    timeline = timeline_of([_span("compute", 5, 6, 1)], rank=0, is_device=True)
    assert launch_of(timeline).tolist() == [ABSENT]
    assert launches(timeline).is_known.tolist() == [False]


def test_what_a_stream_ran_before_its_first_known_launch_was_launched_before_the_trace() -> None:
    spans = [
        _span("compute", 0, 4, 1),
        _span("launch", 1, 2, 2),
        _span("compute", 4, 6, 2),
        _span("compute", 6, 8, 3),  # Behind a known one: the trace lost its launch.
        _span("compute", 8, 9, 4, stream=8),  # On a stream of which nothing is known.
    ]
    found = launches(timeline_of(spans, rank=0, is_device=True))
    assert found.is_known.tolist() == [True, False, True, False, False]
    assert found.start_ns.tolist() == [LONG_AGO, LONG_AGO, 1, LONG_AGO, LONG_AGO]
    assert found.end_ns[2] == 2
