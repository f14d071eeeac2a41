"""From a moment backwards, along what came last of all that each moment was bound to: the path that made it late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from collectors.traces.intervals import clip
from collectors.traces.path.host_moments import path_kinds
from collectors.traces.path.moments import PATH_KINDS, REASONS, Graph, Reason
from collectors.traces.path.rank_moments import RankMoments
from collectors.traces.path.step_path import PathPart
from collectors.traces.spans import ABSENT, Timeline

NEVER = np.empty((0, 2), dtype=np.int64)

BETWEEN_OPERATORS = "between operators"
NOT_RECORDED = "nothing recorded"

DELAYS: dict[Reason, str] = {
    "work": "waiting",
    "stream order": "gap on a stream",
    "launch": "launch to start",
    "stream wait": "gap between streams",
    "synchronisation": "return from synchronisation",
    "waking": "hand-over between threads",
    "enqueuing": "enqueue to start",
    "arrival": "after the last arrival",
}
"""What a delay is called, by what the moment after it was bound to."""

ON_THE_DEVICE: frozenset[Reason] = frozenset({"stream order", "launch", "stream wait"})
MEANWHILE = ", while another stream computed"
"""Added to the name of a delay in which the device had work: it may have had no room."""


class PathWalk:
    """Walks in one graph."""

    def __init__(self, graph: Graph, timelines: Sequence[Timeline], ranks: Sequence[RankMoments]) -> None:
        self._graph, self._timelines, self._ranks = graph, timelines, ranks
        self._done_ns = graph.time_ns[graph.source] + graph.work_ns.sum(axis=1)
        self._kinds = [path_kinds(timeline) for timeline in timelines]
        self._computing = [timeline.intervals("compute") for timeline in timelines]
        self._is_step = [np.append(timeline.of_kind("step"), True) for timeline in timelines]

    def back(self, moment: int, start_ns: int) -> tuple[PathPart, ...]:
        """The parts from a time to the moment, in order; they follow each other without a gap."""
        parts: list[PathPart] = []
        for part in self._parts(moment, start_ns):
            if part.end_ns <= max(part.start_ns, start_ns):
                continue
            if part.start_ns < start_ns:
                part = replace(part, start_ns=start_ns)
            last = parts[-1] if parts else None
            if last is not None and (last.rank, last.kind, last.name, last.place) == (
                part.rank,
                part.kind,
                part.name,
                part.place,
            ):
                parts[-1] = replace(last, start_ns=part.start_ns)
            else:
                parts.append(part)
        return tuple(reversed(parts))

    def _parts(self, moment: int, start_ns: int) -> Iterator[PathPart]:
        """The parts backwards, until one reaches the time."""
        graph = self._graph
        while (time_ns := int(graph.time_ns[moment])) > start_ns:
            trace = int(graph.trace[moment])
            first, behind = int(graph.first[moment]), int(graph.first[moment + 1])
            if first == behind:
                yield self._delay(trace, NOT_RECORDED, start_ns, time_ns)
                return
            edge = first + int(np.argmax(self._done_ns[first:behind]))
            moment = int(graph.source[edge])
            yield from self._along(edge, trace, int(graph.time_ns[moment]), time_ns)

    def _along(self, edge: int, trace: int, from_ns: int, to_ns: int) -> Iterator[PathPart]:
        """What lies between the two moments of an edge, backwards."""
        graph = self._graph
        done_ns, reason = int(self._done_ns[edge]), REASONS[graph.reason[edge]]
        if done_ns > from_ns and graph.row[edge] == ABSENT and graph.place[edge] != ABSENT:
            yield from self._on_thread(trace, int(graph.place[edge]), from_ns, to_ns)
            return
        row = int(graph.row[edge])
        if row == ABSENT:
            yield from self._late(trace, reason, from_ns, to_ns)
            return
        if to_ns > done_ns:
            yield self._delay(trace, DELAYS[reason], done_ns, to_ns)
        yield self._span(trace, row, int(self._timelines[trace].stream[row]), from_ns, done_ns)

    def _late(self, trace: int, reason: Reason, from_ns: int, to_ns: int) -> Iterator[PathPart]:
        """A delay, divided by whether the device computed meanwhile."""
        busy = clip(self._computing[trace], from_ns, to_ns) if reason in ON_THE_DEVICE else NEVER
        for start_ns, end_ns in reversed(busy.tolist()):
            yield self._delay(trace, DELAYS[reason], end_ns, to_ns)
            yield self._delay(trace, DELAYS[reason] + MEANWHILE, start_ns, end_ns)
            to_ns = start_ns
        yield self._delay(trace, DELAYS[reason], from_ns, to_ns)

    def _on_thread(self, trace: int, thread: int, from_ns: int, to_ns: int) -> Iterator[PathPart]:
        for start_ns, end_ns, row in reversed(self._ranks[trace].threads[thread].within(from_ns, to_ns)):
            if end_ns < to_ns:
                yield self._delay(trace, NOT_RECORDED, end_ns, to_ns)
            yield self._span(trace, row, thread, start_ns, end_ns)
            to_ns = start_ns
        if to_ns > from_ns:
            yield self._delay(trace, NOT_RECORDED, from_ns, to_ns)

    def _span(self, trace: int, row: int, place: int, start_ns: int, end_ns: int) -> PathPart:
        timeline = self._timelines[trace]
        return PathPart(
            rank=timeline.rank,
            kind=PATH_KINDS[self._kinds[trace][row]],
            name=BETWEEN_OPERATORS if self._is_step[trace][row] else timeline.names[timeline.name[row]],
            place=place,
            start_ns=start_ns,
            end_ns=end_ns,
        )

    def _delay(self, trace: int, name: str, start_ns: int, end_ns: int) -> PathPart:
        return PathPart(
            rank=self._timelines[trace].rank, kind="delay", name=name, place=None, start_ns=start_ns, end_ns=end_ns
        )
