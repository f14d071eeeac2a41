"""Short ways to write spans of a trace that is made by hand; times are in microseconds."""

from __future__ import annotations

from collections.abc import Iterable

from collectors.traces.timeline import Call, SpanKind, Timeline
from tests.support.timelines import Span, timeline_of

MICROSECOND_NS = 1000
MAIN, BACKWARD, GLOO = 1, 2, 3
"""Threads of the host."""

ALL_REDUCE = Call(collective="all_reduce", group="0", ranks=(0, 1))


def span(
    kind: SpanKind, name: str, start_us: int, end_us: int, stream: int = MAIN, correlation: int | None = None
) -> Span:
    """A span of any kind."""
    return Span(
        name=name,
        kind=kind,
        start_ns=start_us * MICROSECOND_NS,
        end_ns=end_us * MICROSECOND_NS,
        stream=stream,
        correlation=correlation,
    )


def launch(start_us: int, correlation: int, stream: int = MAIN) -> Span:
    """A call of two microseconds that puts a kernel on the device."""
    return span("launch", "cudaLaunchKernel", start_us, start_us + 2, stream, correlation)


def all_reduce(start_us: int, end_us: int, sequence: int, correlation: int | None = None, stream: int = 20) -> Span:
    """A collective of ranks 0 and 1 on the device."""
    return Span(
        name="ncclDevKernel_AllReduce",
        kind="communication",
        start_ns=start_us * MICROSECOND_NS,
        end_ns=end_us * MICROSECOND_NS,
        stream=stream,
        correlation=correlation,
        call=ALL_REDUCE,
        sequence=sequence,
    )


def device(rank: int, *spans: Span) -> Timeline:
    """A rank with a device."""
    return timeline_of(spans, rank=rank, is_device=True)


def host(rank: int, spans: Iterable[Span]) -> Timeline:
    """A rank without one."""
    return timeline_of(spans, rank=rank, is_device=False)
