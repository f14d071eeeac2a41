"""A single trace file of all ranks on a common clock: spans, waits for other ranks, and the critical path.

Rows: the critical path of all ranks; for each rank its waits in collectives, steps, streams and threads. Arrows go from
the last rank at a collective to the ranks that waited for it. The file's `otherData` has each rank's clock offset, and
how well the clocks agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collectors.traces.analyzers.critical_path import StepPath, path_of
from collectors.traces.cross_rank.clock_sync import align
from collectors.traces.cross_rank.collective_times import CollectiveTime, time_of
from collectors.traces.cross_rank.matching import match
from collectors.traces.dependency_graph.dependencies import Rows, named, on_device
from collectors.traces.perfetto import Flow, TraceSpan, Track, encode
from collectors.traces.timeline import ABSENT, KINDS, Timeline, stream_name

# The spans of a rank as boxes on rows: steps, streams of the device, threads of the host.

LATEST_NS = int(np.iinfo(np.int64).max)

PIPELINE_ACTION = "PP:"
"""Prefix of the names of a stage's actions in torch's pipeline schedules."""


def group_of(timeline: Timeline) -> str:
    """Return the heading of a rank's rows."""
    return f"rank {timeline.rank}"


def drawn_spans(timeline: Timeline) -> Iterator[tuple[int, TraceSpan]]:
    """Yield the boxes of all spans, row by row, each with its index in the Timeline.

    If the clocks of device and host differ, only the device's spans are drawn. If the trace names the actions of a
    pipeline's stages, they are also drawn on a row of their own.
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
    drawn = _is_drawn(timeline)
    for title, numbers, chosen in sets:
        chosen = chosen & drawn
        rows = np.flatnonzero(chosen)
        for number in np.unique(numbers[rows]) if numbers is not None else [None] * bool(rows.size):
            name = title if number is None else title.format(stream_name(int(number)))
            track = Track(group=group_of(timeline), name=name)
            on_track = rows if numbers is None else rows[numbers[rows] == number]
            yield from zip(on_track.tolist(), in_lanes(_boxes(timeline, on_track, track)), strict=True)


def _is_drawn(timeline: Timeline) -> NDArray[np.bool_]:
    at_device = on_device(timeline) | timeline.of_kind("wait")
    return at_device if timeline.about.clocks_differ else np.ones_like(at_device)


def in_lanes(spans: Iterable[TraceSpan]) -> Iterator[TraceSpan]:
    """Yield the boxes of a row, by start; move boxes that partly overlap, which viewers would drop, to further rows."""
    lanes: list[list[int]] = []
    for span in spans:
        # A lane is a stack of the ends of nested open boxes. A box fits into a lane that is empty, or whose innermost
        # open box contains it.
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
    # The trace's fields of each collective, without those that it lacks.
    fields = ("collective", "group", "dtype", "given_elements", "filled_elements")
    of_call = [
        {name: value for name in fields if (value := getattr(call, name)) is not None} for call in timeline.calls
    ]
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
            arguments |= of_call[call]
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


PATH = "critical path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The merged trace.

    content: of a file that ui.perfetto.dev opens.
    notes: how well the clocks agree, what could not be compared or matched, and assumptions.
    """

    content: bytes
    notes: tuple[str, ...]


def merge(timelines: Sequence[Timeline], *, added: Iterable[TraceSpan] = ()) -> Merged:
    """Merge all ranks into a single trace.

    added: spans timed on another clock, for example a pipeline's actions in instrumented steps; they are shifted to
    begin with the trace, and drawn on their own rows.

    Raises:
        ValueError: two Timelines belong to the same rank.
    """
    matching = match(timelines)
    alignment = align(timelines, matching)
    ranks = {timeline.rank: timeline for timeline in sorted(alignment.applied(), key=lambda timeline: timeline.rank)}
    times = [time_of(matched, ranks, dict.fromkeys(ranks, 0)) for matched in matching.matched]
    path = path_of(alignment, matching)
    begins_ns = min(
        [int(timeline.start_ns[_is_drawn(timeline)].min(initial=LATEST_NS)) for timeline in ranks.values()]
        + [step.start_ns for step in path.steps],
        default=LATEST_NS,
    )
    begins_ns = 0 if begins_ns == LATEST_NS else begins_ns
    met = {(rank, row): time for time in times for rank, row in zip(time.matched.ranks, time.matched.rows, strict=True)}
    boxes: dict[tuple[int, int], TraceSpan] = {}

    def drawn() -> Iterator[TraceSpan]:
        yield from _path(path.steps)
        for rank, timeline in ranks.items():
            yield from in_lanes(_waits(timeline, [time for time in times if rank in time.matched.ranks]))
            for row, box in drawn_spans(timeline):
                if (rank, row) in met:
                    boxes[rank, row] = box
                yield box
        # Added spans have a clock of their own: shift them so that the earliest begins with the trace.
        spans = list(added)
        later_ns = begins_ns - min((span.start_ns for span in spans), default=0)
        yield from (replace(span, start_ns=span.start_ns + later_ns, end_ns=span.end_ns + later_ns) for span in spans)

    arrows = (arrow for time in times for arrow in _arrows(time, boxes))
    # Strings, since viewers read numbers as floating point.
    about: dict[str, object] = {
        "clock_offset_ns": {str(rank): str(offset_ns) for rank, offset_ns in sorted(alignment.offset_ns.items())}
    }
    if alignment.residual_ns is not None:
        about["clock_residual_ns"] = str(alignment.residual_ns)
    notes = [
        f"rank {rank}: its host is not drawn: host and device have different clocks"
        for rank, timeline in ranks.items()
        if timeline.about.clocks_differ
    ]
    return Merged(content=encode(drawn(), arrows, begins_ns=begins_ns, about=about), notes=(*notes, *path.notes))


def _path(steps: Iterable[StepPath]) -> Iterator[TraceSpan]:
    for step in steps:
        yield TraceSpan(
            track=Track(group=PATH, name="steps"),
            name=step.step,
            category="step",
            start_ns=step.start_ns,
            end_ns=step.end_ns,
        )
        for part in step.parts:
            yield TraceSpan(
                track=Track(group=PATH, name=PATH),
                name=part.name,
                category=part.kind,
                start_ns=part.start_ns,
                end_ns=part.end_ns,
                arguments={"rank": part.rank, "kind": part.kind},
            )


def _waits(timeline: Timeline, times: Iterable[CollectiveTime]) -> Iterator[TraceSpan]:
    """Yield the rank's waits in collectives, by start."""
    track = Track(group=group_of(timeline), name="waits in collectives")
    for time in sorted(times, key=lambda time: time.arrival_ns[time.matched.ranks.index(timeline.rank)]):
        index = time.matched.ranks.index(timeline.rank)
        if not time.wait_ns[index]:
            continue
        arguments: dict[str, str | int | float] = {"collective": time.matched.collective}
        if time.matched.group is not None:
            arguments["group"] = time.matched.group
        yield TraceSpan(
            track=track,
            name=f"wait for rank {time.last_rank}",
            category="wait",
            start_ns=time.arrival_ns[index],
            end_ns=time.arrival_ns[index] + time.wait_ns[index],
            arguments=arguments,
        )


def _arrows(time: CollectiveTime, boxes: Mapping[tuple[int, int], TraceSpan]) -> Iterator[Flow]:
    """Yield arrows from the last rank's box to the box of each rank that waited for it, at the last arrival."""
    spans = list(zip(time.matched.ranks, time.matched.rows, strict=True))
    last_ns = max(time.arrival_ns)
    source = boxes[spans[time.arrival_ns.index(last_ns)]]
    for span, transfer_ns, wait_ns in zip(spans, time.transfer_ns, time.wait_ns, strict=True):
        if wait_ns and transfer_ns:
            name = f"last to {time.matched.collective}"
            yield Flow(name=name, source=source, target=boxes[span], left_ns=last_ns, arrived_ns=last_ns)
