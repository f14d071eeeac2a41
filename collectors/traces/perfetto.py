"""Spans and arrows between them as a trace file that Perfetto and Chrome's own viewer open.

Times are any nanoseconds of one clock; the file counts from the earliest span, which it names, since viewers read
microseconds as floating point and would round Unix time.
Source: Trace Event Format, Google (the JSON that ui.perfetto.dev reads).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One row of the drawing; rows of one group stand together."""

    group: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpan:
    """One box on a row. arguments: what is shown of it when it is chosen."""

    track: Track
    name: str
    category: str
    start_ns: int
    end_ns: int
    arguments: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """An arrow from the end of one span to the start of another."""

    name: str
    source: TraceSpan
    target: TraceSpan


def encode(spans: Sequence[TraceSpan], flows: Iterable[Flow] = ()) -> bytes:
    """The trace as JSON; groups and rows are in the order in which spans name them first."""
    begins_ns = min((span.start_ns for span in spans), default=0)
    groups = _numbered(span.track.group for span in spans)
    tracks = _numbered(span.track for span in spans)
    place = {track: {"pid": groups[track.group], "tid": number} for track, number in tracks.items()}
    events: list[dict[str, object]] = []
    for group, number in groups.items():
        events.append(_named("process_name", {"pid": number}, group))
        events.append(_sorted("process_sort_index", {"pid": number}, number))
    for track, where in place.items():
        events.append(_named("thread_name", where, track.name))
        events.append(_sorted("thread_sort_index", where, tracks[track]))
    events += [
        {
            "ph": "X",
            "name": span.name,
            "cat": span.category,
            "ts": (span.start_ns - begins_ns) / 1e3,
            "dur": (span.end_ns - span.start_ns) / 1e3,
            **place[span.track],
            "args": dict(span.arguments),
        }
        for span in spans
    ]
    for number, flow in enumerate(flows, start=1):
        arrow = {"name": flow.name, "cat": "flow", "id": number}
        # An arrow's end belongs to the span that it lies in, and at its end a span is over.
        left_ns = max(flow.source.start_ns, flow.source.end_ns - 1)
        events.append({"ph": "s", **arrow, "ts": (left_ns - begins_ns) / 1e3, **place[flow.source.track]})
        arrived_us = (flow.target.start_ns - begins_ns) / 1e3
        events.append({"ph": "f", "bp": "e", **arrow, "ts": arrived_us, **place[flow.target.track]})
    return msgspec.json.encode(
        {"displayTimeUnit": "ns", "otherData": {"begins_ns": str(begins_ns)}, "traceEvents": events}
    )


def _numbered(things: Iterable[T]) -> dict[T, int]:
    return {thing: number for number, thing in enumerate(dict.fromkeys(things), start=1)}


def _named(kind: str, where: Mapping[str, int], name: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, **where, "args": {"name": name}}


def _sorted(kind: str, where: Mapping[str, int], number: int) -> dict[str, object]:
    return {"ph": "M", "name": kind, **where, "args": {"sort_index": number}}
