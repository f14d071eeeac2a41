"""The spans of one rank as boxes on rows: its steps, the streams of its device, the threads of its host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from collectors.traces.calls import Call
from collectors.traces.path.device_queue import Rows, named, on_device
from collectors.traces.perfetto import TraceSpan, Track
from collectors.traces.spans import ABSENT, KINDS, Timeline, stream_name

PIPELINE_ACTION = "PP:"
"""How the names begin that torch's pipeline schedules give to what a stage does."""


def group_of(timeline: Timeline) -> str:
    """What a rank's rows stand under."""
    return f"rank {timeline.rank}"


def drawn_spans(timeline: Timeline) -> Iterator[tuple[int, TraceSpan]]:
    """The boxes of all spans, row by row, each with its place in the Timeline.

    What a stage of a pipeline does stands on a row of its own too, where the trace names it.
    """
    steps, waits, at_device = timeline.of_kind("step"), timeline.of_kind("wait"), on_device(timeline)
    acts = named(timeline, [name.startswith(PIPELINE_ACTION) for name in timeline.names])
    sets = (
        ("steps", None, steps),
        ("stage actions", None, acts & timeline.of_kind("host")),
        ("stream {}", timeline.stream, at_device),
        ("waits of stream {}", timeline.stream, waits),
        ("thread {}", timeline.stream, ~(steps | waits | at_device)),
    )
    for title, numbers, chosen in sets:
        rows = np.flatnonzero(chosen)
        for number in np.unique(numbers[rows]) if numbers is not None else [None] * bool(rows.size):
            name = title if number is None else title.format(stream_name(int(number)))
            track = Track(group=group_of(timeline), name=name)
            here = rows if numbers is None else rows[numbers[rows] == number]
            yield from zip(here.tolist(), in_lanes(_boxes(timeline, here, track)), strict=True)


def in_lanes(spans: Iterable[TraceSpan]) -> Iterator[TraceSpan]:
    """The boxes of one row, by start; one that overlaps with another and is not inside of it goes to a row beside.

    Viewers would drop it.
    """
    lanes: list[list[int]] = []
    for span in spans:
        for open_ends_ns in lanes:
            while open_ends_ns and open_ends_ns[-1] <= span.start_ns:
                open_ends_ns.pop()
        fitting = (number for number, ends_ns in enumerate(lanes) if not ends_ns or span.end_ns <= ends_ns[-1])
        lane = next(fitting, len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(span.end_ns)
        yield span if not lane else replace(span, track=replace(span.track, name=f"{span.track.name} ({lane + 1})"))


def _boxes(timeline: Timeline, rows: Rows, track: Track) -> Iterator[TraceSpan]:
    said = [_said(call) for call in timeline.calls]
    columns = (
        timeline.name,
        timeline.kind,
        timeline.start_ns,
        timeline.end_ns,
        timeline.correlation,
        timeline.shape,
        timeline.call,
        timeline.sequence,
    )
    for name, kind, start_ns, end_ns, correlation, shape, call, sequence in zip(
        *(column[rows].tolist() for column in columns), strict=True
    ):
        arguments: dict[str, str | int | float] = {}
        if correlation != ABSENT:
            arguments["correlation"] = correlation
        if shape != ABSENT:
            arguments["shape"] = timeline.shapes[shape]
        if call != ABSENT:
            arguments |= said[call]
        if sequence != ABSENT:
            arguments["sequence"] = sequence
        yield TraceSpan(
            track=track,
            name=timeline.names[name],
            category=KINDS[kind],
            start_ns=start_ns,
            end_ns=end_ns,
            arguments=arguments,
        )


def _said(call: Call) -> dict[str, str | int | float]:
    """What is known of a collective."""
    said = {
        "collective": call.collective,
        "group": call.group,
        "dtype": call.dtype,
        "given_elements": call.given_elements,
        "filled_elements": call.filled_elements,
    }
    return {name: value for name, value in said.items() if value is not None}
