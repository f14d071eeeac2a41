"""Writes spans, and arrows between them, as a trace file for Perfetto and Chrome's viewer.

Times are nanoseconds on any single clock. The file counts them from its earliest span and records that moment, since
viewers read microseconds as floating point and would round Unix time.
Source: Trace Event Format, Google (the JSON that ui.perfetto.dev reads).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A row of the drawing; the rows of a group are drawn together."""

    group: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpan:
    """A box on a row. arguments: shown when the box is selected."""

    track: Track
    name: str
    category: str
    start_ns: int
    end_ns: int
    arguments: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """An arrow from one span to another.

    left_ns, arrived_ns: moments within the spans; None for the end of the source and the start of the target.
    """

    name: str
    source: TraceSpan
    target: TraceSpan
    left_ns: int | None = None
    arrived_ns: int | None = None


def encode(
    spans: Iterable[TraceSpan],
    flows: Iterable[Flow] = (),
    *,
    begins_ns: int | None = None,
    about: Mapping[str, object] | None = None,
) -> bytes:
    """Return the trace as JSON; groups and rows are in the order in which spans first name them.

    flows: between spans on rows that `spans` uses. begins_ns: the moment from which times count, which lets spans be
    consumed one by one; None for the earliest start, which requires all spans in memory.
    about: additional entries of the file's `otherData`.
    """
    if begins_ns is None:
        spans = list(spans)
        begins_ns = min((span.start_ns for span in spans), default=0)
    file = _File(begins_ns, about or {})
    for span in spans:
        file.add(span)
    for number, flow in enumerate(flows, start=1):
        file.connect(number, flow)
    return file.end()


class _File:
    """A trace file that grows event by event, so that only its text is in memory."""

    def __init__(self, begins_ns: int, about: Mapping[str, object]) -> None:
        self._begins_ns = begins_ns
        self._groups: dict[str, int] = {}
        self._tracks: dict[Track, dict[str, int]] = {}
        self._encoder = msgspec.json.Encoder()
        other_data = self._encoder.encode({**about, "begins_ns": str(begins_ns)})
        self._text = BytesIO()
        self._text.write(b'{"displayTimeUnit":"ns","otherData":%b,"traceEvents":[' % other_data)
        self._is_empty = True

    def add(self, span: TraceSpan) -> None:
        """Write the span, preceded by the names of its row and group if they are new."""
        place = self._tracks.get(span.track) or self._new(span.track)
        self._write(
            {
                "ph": "X",
                "name": span.name,
                "cat": span.category,
                "ts": (span.start_ns - self._begins_ns) / 1e3,
                "dur": (span.end_ns - span.start_ns) / 1e3,
                **place,
                "args": dict(span.arguments),
            }
        )

    def connect(self, number: int, flow: Flow) -> None:
        arrow = {"name": flow.name, "cat": "flow", "id": number}
        source, target = flow.source, flow.target
        # A viewer attaches an arrow to the span that contains its moment; a span does not contain its own end.
        left_ns = max(source.start_ns, source.end_ns - 1) if flow.left_ns is None else flow.left_ns
        arrived_ns = target.start_ns if flow.arrived_ns is None else flow.arrived_ns
        left_us, arrived_us = (left_ns - self._begins_ns) / 1e3, (arrived_ns - self._begins_ns) / 1e3
        self._write({"ph": "s", **arrow, "ts": left_us, **self._tracks[source.track]})
        self._write({"ph": "f", "bp": "e", **arrow, "ts": arrived_us, **self._tracks[target.track]})

    def end(self) -> bytes:
        self._text.write(b"]}")
        return self._text.getvalue()

    def _new(self, track: Track) -> dict[str, int]:
        group = self._groups.get(track.group)
        if group is None:
            group = self._groups[track.group] = len(self._groups) + 1
            self._name("process", {"pid": group}, track.group, group)
        number = len(self._tracks) + 1
        place = self._tracks[track] = {"pid": group, "tid": number}
        self._name("thread", place, track.name, number)
        return place

    def _name(self, kind: str, where: Mapping[str, int], name: str, order: int) -> None:
        self._write({"ph": "M", "name": f"{kind}_name", **where, "args": {"name": name}})
        self._write({"ph": "M", "name": f"{kind}_sort_index", **where, "args": {"sort_index": order}})

    def _write(self, event: Mapping[str, object]) -> None:
        if not self._is_empty:
            self._text.write(b",")
        self._is_empty = False
        self._text.write(self._encoder.encode(event))
