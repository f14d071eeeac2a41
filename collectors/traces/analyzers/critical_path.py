"""The critical path of each step across its ranks, and what a step would cost if a kind of work were free.

The path is the chain of kernels, launches, operators and collectives that made the step end when it did. We follow it
backwards from the step's end, always along the dependency that finished last; its parts add up to the step exactly. A
collective's transfer begins when its last rank arrives, so the path goes from a waiting rank to the rank waited for.

Not covered: waits for a rank without a trace, or whose clock cannot be aligned; they count as communication.
Source: Kelley and Walker 1959 (the path); Zhu et al. 2020, Daydream (the effect of changing a kind of work).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collectors.rank.rank_list import listed
from collectors.traces.cross_rank.clock_sync import Alignment, align, on_one_clock
from collectors.traces.cross_rank.matching import ROOTED, Matching, match
from collectors.traces.dependency_graph.graph import DEPENDENCIES, PATH_KINDS, Dependency, Graph, PathKind, replay
from collectors.traces.dependency_graph.rank_graph import (
    JoinedGraph,
    RankNodes,
    bounds_ns,
    common_steps,
    joined_graph,
    last_node,
    path_kinds,
)
from collectors.traces.intervals import Times, clip
from collectors.traces.table import Cell, Table, table_of
from collectors.traces.timeline import ABSENT, Timeline, stream_name


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPart:
    """A part of the path: a rank's work, or a delay before it continued.

    name: of the span or the delay. stream: the stream or thread of the span; None for a delay.
    """

    rank: int
    kind: PathKind
    name: str
    stream: int | None
    start_ns: int
    end_ns: int

    @property
    def lasting_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPath:
    """The path of a step, or of the whole trace if no step is marked.

    parts: in order, from the step's start to its end, without gaps.
    free_ns: by kind, the step's time if all work of that kind, in all steps, took no time and nothing else changed; at
    most the actual time.
    """

    step: str
    start_ns: int
    end_ns: int
    parts: tuple[PathPart, ...]
    free_ns: Mapping[PathKind, int]

    @property
    def step_ns(self) -> int:
        return self.end_ns - self.start_ns

    def spent_ns(self, kind: PathKind) -> int:
        """The time that the path spends in work of this kind."""
        return sum(part.lasting_ns for part in self.parts if part.kind == kind)


# Tables of the critical path: by kind of work, by rank, by name, and part by part for one step.

ALL_STEPS = "all steps"


def path_tables(steps: Sequence[StepPath]) -> tuple[Table, ...]:
    """Return the tables `critical_path`, `if_free`, `ranks`, `names` and `path`."""
    parts = [part for step in steps for part in step.parts]
    total_ns = sum(part.lasting_ns for part in parts)
    by_rank_ns: Counter[int] = Counter()
    by_name_ns: Counter[tuple[PathKind, str]] = Counter()
    for part in parts:
        by_rank_ns[part.rank] += part.lasting_ns
        by_name_ns[part.kind, part.name] += part.lasting_ns
    counts = Counter((part.kind, part.name) for part in parts)
    return (
        table_of(
            "critical_path",
            "Parts of the critical path, which sets each step's time",
            f"step time_ns {' '.join(f'{kind}_ns' for kind in PATH_KINDS)}",
            [(step.step, step.step_ns, *(step.spent_ns(kind) for kind in PATH_KINDS)) for step in steps],
        ),
        table_of(
            "if_free",
            "Minimum time of each step if a kind of work took no time",
            "step free time_then_ns saved_ns saved_share_ratio",
            _if_free(steps),
            "a bound: work of that kind is free in all steps and on all ranks; dependencies, all other work and all"
            " delays are unchanged. A step that only begins earlier because the work before it ends earlier saves"
            " nothing",
        ),
        table_of(
            "ranks",
            "Time of the path on each rank, over all steps",
            "rank time_ns share_ratio",
            [(rank, time_ns, _share(time_ns, total_ns)) for rank, time_ns in sorted(by_rank_ns.items())],
        ),
        table_of(
            "names",
            "Parts of the path by name, over all steps",
            "kind name parts time_ns share_ratio",
            [
                (*named, counts[named], time_ns, _share(time_ns, total_ns))
                for named, time_ns in by_name_ns.most_common()
            ],
        ),
        _path_of_median_step(steps),
    )


def _if_free(steps: Sequence[StepPath]) -> Iterator[tuple[Cell, ...]]:
    """Yield the time of all steps together if each kind were free, then of each step if there are several."""
    kinds = steps[0].free_ns if steps else ()
    total_ns = sum(step.step_ns for step in steps)
    costs = [(ALL_STEPS, kind, total_ns, sum(step.free_ns[kind] for step in steps)) for kind in kinds]
    if len(steps) > 1:
        costs += [(step.step, kind, step.step_ns, free_ns) for step in steps for kind, free_ns in step.free_ns.items()]
    for name, kind, was_ns, free_ns in costs:
        yield name, kind, free_ns, was_ns - free_ns, _share(was_ns - free_ns, was_ns)


def _path_of_median_step(steps: Sequence[StepPath]) -> Table:
    """Return the parts of the step of median length, longest first; of two middle steps, the shorter counts."""
    rows, notes = [], []
    for step in sorted(steps, key=lambda step: step.step_ns)[(len(steps) - 1) // 2 :][:1]:
        notes = [f"of {step.step}, the step of median length; a delay has no stream or thread"]
        for part in sorted(step.parts, key=lambda part: -part.lasting_ns):
            stream = None if part.stream is None else stream_name(part.stream)
            rows.append((part.start_ns - step.start_ns, part.rank, part.kind, part.name, stream, part.lasting_ns))
    title = "Parts of the path of one step, the longest first"
    return table_of("path", title, "start_ns rank kind name stream_or_thread time_ns", rows, *notes)


def _share(part_ns: int, total_ns: int) -> float | None:
    return part_ns / total_ns if total_ns else None


# Walk the dependency graph backwards from a node, always along the dependency that finished last.

NEVER = np.empty((0, 2), dtype=np.int64)

BETWEEN_OPERATORS = "between operators"
NOT_RECORDED = "nothing recorded"

DELAYS: dict[Dependency, str] = {
    "work": "waiting",
    "stream order": "gap on a stream",
    "launch": "launch to start",
    "stream wait": "gap between streams",
    "synchronisation": "return from synchronisation",
    "waking": "hand-over between threads",
    "enqueuing": "enqueue to start",
    "arrival": "after the last arrival",
}
"""The name of a delay, by the dependency that it follows."""

ON_THE_DEVICE: frozenset[Dependency] = frozenset({"stream order", "launch", "stream wait"})
MEANWHILE = ", while another stream computed"
"""Suffix of a delay during which the device computed, so that it may have had no room."""


class PathWalk:
    """Walks backwards through a graph."""

    def __init__(self, graph: Graph, timelines: Sequence[Timeline], ranks: Sequence[RankNodes]) -> None:
        self._graph, self._timelines, self._ranks = graph, timelines, ranks
        self._done_ns = graph.time_ns[graph.source] + graph.work_ns.sum(axis=1)
        self._kinds = [path_kinds(timeline) for timeline in timelines]
        self._computing = [timeline.intervals("compute") for timeline in timelines]
        # The last entry is for a thread in no span, whose row is -1.
        self._is_step = [np.append(timeline.of_kind("step"), True) for timeline in timelines]

    def back(self, node: int, start_ns: int) -> tuple[PathPart, ...]:
        """Return the parts from a time to the node, in order and without gaps."""
        parts: list[PathPart] = []
        for part in self._parts(node, start_ns):
            if part.end_ns <= max(part.start_ns, start_ns):
                continue
            if part.start_ns < start_ns:
                part = replace(part, start_ns=start_ns)
            # Merge adjacent parts that differ only in their times.
            if parts and replace(part, end_ns=parts[-1].end_ns) == replace(parts[-1], start_ns=part.start_ns):
                parts[-1] = replace(parts[-1], start_ns=part.start_ns)
            else:
                parts.append(part)
        return tuple(reversed(parts))

    def _parts(self, node: int, start_ns: int) -> Iterator[PathPart]:
        """Yield the parts backwards, until one reaches the time.

        Example: a span starts at 40; its launch was done at 10, and the previous span on its stream at 38. The walk
        goes to the end of that span, which finished last, and the 2 in between are a gap on the stream.
        """
        graph = self._graph
        while (time_ns := int(graph.time_ns[node])) > start_ns:
            trace = int(graph.trace[node])
            first, behind = int(graph.first[node]), int(graph.first[node + 1])
            if first == behind:
                yield self._delay(trace, NOT_RECORDED, start_ns, time_ns)
                return
            edge = first + int(np.argmax(self._done_ns[first:behind]))
            node = int(graph.source[edge])
            yield from self._along(edge, trace, int(graph.time_ns[node]), time_ns)

    def _along(self, edge: int, trace: int, from_ns: int, to_ns: int) -> Iterator[PathPart]:
        """Yield the parts between the two nodes of an edge, backwards: a thread's time, a delay, or a span."""
        graph = self._graph
        done_ns, delay = int(self._done_ns[edge]), DELAYS[DEPENDENCIES[graph.dependency[edge]]]
        row, thread = int(graph.row[edge]), int(graph.thread[edge])
        if row != ABSENT:
            if to_ns > done_ns:
                yield self._delay(trace, delay, done_ns, to_ns)
            yield self._span(trace, row, int(self._timelines[trace].stream[row]), from_ns, done_ns)
        elif thread != ABSENT and done_ns > from_ns:
            yield from self._on_thread(trace, thread, from_ns, to_ns)
        else:
            # A delay, split by whether the device computed meanwhile.
            is_on_device = DEPENDENCIES[graph.dependency[edge]] in ON_THE_DEVICE
            busy = clip(self._computing[trace], from_ns, to_ns) if is_on_device else NEVER
            for busy_from_ns, busy_to_ns in reversed(busy.tolist()):
                yield self._delay(trace, delay, busy_to_ns, to_ns)
                yield self._delay(trace, delay + MEANWHILE, busy_from_ns, busy_to_ns)
                to_ns = busy_from_ns
            yield self._delay(trace, delay, from_ns, to_ns)

    def _on_thread(self, trace: int, thread: int, from_ns: int, to_ns: int) -> Iterator[PathPart]:
        for start_ns, end_ns, row in reversed(self._ranks[trace].threads[thread].within(from_ns, to_ns)):
            if end_ns < to_ns:
                yield self._delay(trace, NOT_RECORDED, end_ns, to_ns)
            yield self._span(trace, row, thread, start_ns, end_ns)
            to_ns = start_ns
        if to_ns > from_ns:
            yield self._delay(trace, NOT_RECORDED, from_ns, to_ns)

    def _span(self, trace: int, row: int, stream: int, start_ns: int, end_ns: int) -> PathPart:
        timeline = self._timelines[trace]
        return PathPart(
            rank=timeline.rank,
            kind=PATH_KINDS[self._kinds[trace][row]],
            name=BETWEEN_OPERATORS if self._is_step[trace][row] else timeline.names[timeline.name[row]],
            stream=stream,
            start_ns=start_ns,
            end_ns=end_ns,
        )

    def _delay(self, trace: int, name: str, start_ns: int, end_ns: int) -> PathPart:
        rank = self._timelines[trace].rank
        return PathPart(rank=rank, kind="delay", name=name, stream=None, start_ns=start_ns, end_ns=end_ns)


WHOLE_TRACE = "whole trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The paths of all steps, on the ranks' common clock.

    notes: assumptions, and what was left out.
    """

    steps: tuple[StepPath, ...]
    notes: tuple[str, ...]

    def tables(self) -> tuple[Table, ...]:
        """Return tables of steps by kind of work, steps without each kind, ranks, names, and the path of one step."""
        return path_tables(self.steps)


def critical_path(timelines: Sequence[Timeline]) -> CriticalPath:
    """Return the critical path of these ranks' steps.

    Raises:
        ValueError: two Timelines belong to the same rank.
    """
    matching = match(timelines)
    return path_of(align(timelines, matching), matching)


def path_of(alignment: Alignment, matching: Matching) -> CriticalPath:
    """Return the critical path of ranks whose collectives are matched and whose clocks are aligned.

    If not all clocks could be compared, it covers the largest set of ranks with comparable clocks.
    """
    present = [timeline.rank for timeline in alignment.timelines if timeline.kind.size]
    if not present:
        return CriticalPath(steps=(), notes=("no span in any trace",))
    if differing := [timeline.rank for timeline in alignment.timelines if timeline.about.clocks_differ]:
        named = f"rank{'s' * (len(differing) > 1)} {listed(differing)}"
        note = f"there is no path: host and device of {named} have different clocks, so no launch can be followed"
        return CriticalPath(steps=(), notes=(note, *alignment.notes))
    aligned, within, left_out = on_one_clock(alignment, matching, present)
    ranks = aligned.applied()
    common = common_steps(ranks)
    joined = joined_graph(ranks, within.matched, common.marks)
    notes = [
        *left_out,
        *common.notes,
        *alignment.notes,
        *_of_matching(within, len(ranks)),
        *_of_moved(aligned),
    ]
    if not common.names:
        notes.append("no step is marked on every rank: the path is that of the whole trace")
    return CriticalPath(steps=_paths(joined, ranks, common.names or (WHOLE_TRACE,)), notes=tuple(notes))


def _paths(joined: JoinedGraph, ranks: Sequence[Timeline], names: Sequence[str]) -> tuple[StepPath, ...]:
    graph = joined.graph
    if not graph.time_ns.size:
        return ()
    walk = PathWalk(graph, ranks, joined.ranks)
    present = [kind for number, kind in enumerate(PATH_KINDS) if kind == "delay" or graph.work_ns[:, number].any()]
    free = {kind: _bounds_ns(joined, replay(graph, kind)) for kind in present}
    paths = []
    for step, (start_ns, end_ns) in enumerate(_bounds_ns(joined, graph.time_ns).tolist()):
        has_marks = joined.marks[0].size > 0
        last = last_node(graph, step, end_ns, joined.marks) if has_marks else int(np.argmax(graph.time_ns))
        paths.append(
            StepPath(
                step=names[step],
                start_ns=start_ns,
                end_ns=end_ns,
                parts=walk.back(last, start_ns),
                free_ns={
                    kind: min(int(bounds[step, 1] - bounds[step, 0]), end_ns - start_ns)
                    for kind, bounds in free.items()
                },
            )
        )
    return tuple(paths)


def _bounds_ns(joined: JoinedGraph, came_ns: Times) -> Times:
    """Return the start and end of each step (steps, 2) for these times of nodes; of everything if no step is marked.

    Both shift if work is free: even the first step begins only when work launched before it is done. Everything begins
    with a node that has no dependencies and so keeps its time.
    """
    if joined.marks[0].size:
        return bounds_ns(joined.graph, came_ns, joined.marks)
    return np.array([[came_ns.min(), came_ns.max()]], dtype=np.int64)


def _of_moved(alignment: Alignment) -> list[str]:
    """Return a note on how well the aligned clocks agree, if any was shifted."""
    if not any(alignment.offset_ns.values()):
        return []
    if alignment.residual_ns is None:
        return ["the ranks' clocks were aligned by a single collective: how well they agree is unknown"]
    return [
        f"the ranks' clocks, after alignment, agree within {alignment.residual_ns / 1e3:g} us, the median difference"
        " between a collective's ends"
    ]


def _of_matching(matching: Matching, ranks: int) -> list[str]:
    """Return notes on unmatched collectives, in which waiting for others counts as communication."""
    notes = list(matching.notes)
    if ranks == 1 and matching.unmatched:
        return [*notes, "a single rank: its waits for other ranks are unknown and count as communication"]
    reasons = Counter(spans.reason for spans in matching.unmatched)
    notes += [
        f"{count} spans of communication were not matched, and count in full: {reason}"
        for reason, count in reasons.items()
    ]
    missing = sorted({rank for collective in matching.matched for rank in collective.missing})
    if missing:
        notes.append(f"no trace of rank {listed(missing)}: waits for it count as communication")
    if any(collective.missing_count > len(collective.missing) for collective in matching.matched):
        notes.append(
            "process groups have more ranks than there are traces: waits for the other ranks count as communication"
        )
    if any(collective.collective in ROOTED for collective in matching.matched):
        notes.append(
            "ranks of a rooted collective need not wait for all others: the path goes through the last rank to arrive"
            " if a rank left after that, as if it had to wait"
        )
    return notes
