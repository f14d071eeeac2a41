"""Builds the dependency graph: each rank's nodes and edges, and the collectives that join ranks; and its common steps.

`dependencies` finds the waits, rule by rule; this module turns them into edges. The work between two nodes is that of a
span on the device, or of a thread from one of its nodes to the next.
A collective's transfer begins at its last arrival. A rank that left before, for example the root of a broadcast, did
not wait, and its span counts with its own duration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.cross_rank.matching import MatchedCollective
from collectors.traces.dependency_graph.dependencies import (
    DeviceQueue,
    Rows,
    ThreadTime,
    device_queue,
    enqueuings,
    inferred_stream_waits,
    least_delay_ns,
    on_device,
    stream_order,
    stream_waits,
    synchronisations,
    thread_time,
    wakings,
)
from collectors.traces.dependency_graph.graph import PATH_KINDS, Graph, GraphBuilder, Numbers, PathKind, work_of
from collectors.traces.intervals import Times
from collectors.traces.steps import LONG_AGO, is_at_work, steps
from collectors.traces.timeline import ABSENT, KINDS, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Times on the host, ascending, and the thread of each."""

    time_ns: Times
    thread: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNodes:
    """A rank's nodes that the joined graph needs.

    threads: the time of each thread. start, end: the nodes of communication, by row. marks: the nodes of its marks.
    """

    threads: Mapping[int, ThreadTime]
    start: Mapping[int, int]
    end: Mapping[int, int]
    marks: Numbers


def add_rank(
    timeline: Timeline, builder: GraphBuilder, *, trace: int, marks: Marks, is_joined: NDArray[np.bool_]
) -> RankNodes:
    """Add the rank's nodes, and the edges of every rule.

    is_joined: for each span, whether it is a collective whose end depends on other ranks, so that its duration is not
    work of this rank.
    """
    queue = device_queue(timeline)
    start, end = _add_device(timeline, queue, builder, trace, marks, is_joined)
    threads = threads_of(timeline, queue.call[queue.call != ABSENT])
    # Results of the rules for host threads, as rows and as indices in the queue.
    called = np.flatnonzero(queue.call != ABSENT)
    waiting, reached = synchronisations(timeline, queue)
    is_worker = np.isin(timeline.stream[waiting], list(threads.workers))
    waiting, reached = waiting[is_worker], reached[is_worker]
    hosted = np.flatnonzero(is_at_work(timeline) & timeline.of_kind("communication") & ~on_device(timeline))
    served = hosted[np.isin(timeline.stream[hosted], list(threads.servers))]
    enqueued, enqueuing = enqueuings(timeline, served, list(threads.workers))
    woken, begun_ns, woken_ns, by_thread, ended_ns = _waits_of_threads(timeline, threads, served)
    # Nodes on threads: at both ends of every edge, and at the marks.
    starts, ends = np.concatenate((queue.call[called], waiting, hosted, enqueuing)), np.concatenate((waiting, hosted))
    points = (
        (woken, begun_ns),
        (woken, woken_ns),
        (by_thread, ended_ns),
        (timeline.stream[starts], timeline.start_ns[starts]),
        (timeline.stream[ends], timeline.end_ns[ends]),
        (marks.thread, marks.time_ns),
    )
    nodes = ThreadNodes(timeline, threads, points, builder, trace)
    # Stretches in which a thread only waited: in calls and collectives, and for other threads. A call only waited if
    # the span that it waited for ended after the call began.
    slept = np.concatenate((waiting[queue.end_ns[reached] > timeline.start_ns[waiting]], hosted[is_joined[hosted]]))
    waited_ns = np.stack(
        (
            np.concatenate((timeline.start_ns[slept], begun_ns)),
            np.concatenate((timeline.end_ns[slept], woken_ns)),
        ),
        axis=1,
    )
    _add_work_of_threads(timeline, threads, nodes, builder, np.concatenate((timeline.stream[slept], woken)), waited_ns)
    # Edges between threads and device, and between threads.
    delay_ns = np.full(called.size, least_delay_ns(queue), dtype=np.int64)
    builder.add_edges(nodes.start_of(queue.call[called]), start[called], "launch", work_ns=work_of("delay", delay_ns))
    builder.add_edges(end[reached], nodes.end_of(waiting), "synchronisation")
    builder.add_edges(nodes.start_of(enqueuing), nodes.start_of(enqueued), "enqueuing")
    builder.add_edges(nodes.at(by_thread, ended_ns), nodes.at(woken, woken_ns), "waking")
    is_communication = timeline.of_kind("communication")[queue.row]
    rows = np.concatenate((queue.row[is_communication], hosted)).tolist()
    start_nodes = np.concatenate((start[is_communication], nodes.start_of(hosted))).tolist()
    end_nodes = np.concatenate((end[is_communication], nodes.end_of(hosted))).tolist()
    return RankNodes(
        threads=threads.all(),
        start=dict(zip(rows, start_nodes, strict=True)),
        end=dict(zip(rows, end_nodes, strict=True)),
        marks=nodes.at(marks.thread, marks.time_ns),
    )


# The device: a node at the start and the end of each span.


def _add_device(
    timeline: Timeline,
    queue: DeviceQueue,
    builder: GraphBuilder,
    trace: int,
    marks: Marks,
    is_joined: NDArray[np.bool_],
) -> tuple[Numbers, Numbers]:
    """Add the device's nodes, its work, and the rules between its spans; return the nodes of span starts and ends."""
    # The first mark after each launch; spans launched after the last mark have none.
    mark = np.searchsorted(marks.time_ns, queue.called_ns, side="right")
    has_mark = queue.is_placed & (mark < marks.time_ns.size)
    start = builder.add_nodes(queue.start_ns, trace=trace)
    end = builder.add_nodes(queue.end_ns, trace=trace, mark=np.where(has_mark, mark, ABSENT))
    alone = np.flatnonzero(~is_joined[queue.row])
    kinds, lasting_ns = path_kinds(timeline)[queue.row], queue.end_ns - queue.start_ns
    # One column per kind of work, with a span's duration in the column of its kind.
    work_ns = np.where(kinds[:, None] == np.arange(len(PATH_KINDS)), lasting_ns[:, None], 0)
    builder.add_edges(start[alone], end[alone], "work", work_ns=work_ns[alone], row=queue.row[alone])
    source, target = stream_order(queue)
    builder.add_edges(end[source], start[target], "stream order")
    recorded = stream_waits(timeline, queue)
    for source, target in (recorded, inferred_stream_waits(queue, *recorded, least_delay_ns(queue))):
        builder.add_edges(end[source], start[target], "stream wait")
    return start, end


def path_kinds(timeline: Timeline) -> NDArray[np.int8]:
    """Return for each span the index of its kind in `PATH_KINDS`; a last entry (host) is for a thread in no span."""
    as_path: dict[str, PathKind] = {kind: kind for kind in PATH_KINDS if kind in KINDS}
    number = np.array([PATH_KINDS.index(as_path.get(kind, "host")) for kind in KINDS], dtype=np.int8)
    return np.append(number[timeline.kind], number[KINDS.index("host")])


# Host threads: a node wherever another thread, the device or a step interacts with the thread.


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """The threads that do work, each with its time.

    workers: threads that compute, launch work or run steps. servers: gloo's own threads, which only communicate.
    """

    workers: Mapping[int, ThreadTime]
    servers: Mapping[int, ThreadTime]

    def all(self) -> dict[int, ThreadTime]:
        """Return workers and servers together."""
        return {**self.workers, **self.servers}


def threads_of(timeline: Timeline, calls: Rows) -> Threads:
    """Return the threads of a rank. calls: the rows of calls that launched work on its device."""
    at_work = is_at_work(timeline) & ~on_device(timeline)
    is_hosted = at_work | timeline.of_kind("host") | timeline.of_kind("launch") | timeline.of_kind("step")
    communicates = at_work & timeline.of_kind("communication")
    works = (at_work & ~communicates) | timeline.of_kind("step")
    workers = np.union1d(timeline.stream[works], timeline.stream[calls])
    servers = np.setdiff1d(timeline.stream[communicates], workers)

    def times(threads: NDArray[np.int64]) -> dict[int, ThreadTime]:
        rows = {thread: np.flatnonzero(is_hosted & (timeline.stream == thread)) for thread in threads.tolist()}
        thread_times = {thread: thread_time(timeline, row) for thread, row in rows.items()}
        return {thread: time for thread, time in thread_times.items() if time.row.size}

    return Threads(workers=times(workers), servers=times(servers))


def _waits_of_threads(timeline: Timeline, threads: Threads, served: Rows) -> Times:
    """Return the columns of `Waking` as an array (5, waits): thread, begun_ns, woken_ns, by_thread, ended_ns.

    served: the collectives on gloo's own threads, whose ends others may wait for.
    """
    if not threads.workers:
        return np.empty((5, 0), dtype=np.int64)
    endings = {
        thread: timeline.end_ns[served[timeline.stream[served] == thread]]
        for thread in np.unique(timeline.stream[served]).tolist()
    }
    times = threads.all().values()
    begins_ns, ends_ns = min(int(time.start_ns[0]) for time in times), max(int(time.end_ns[-1]) for time in times)
    waits = wakings(threads.workers, endings, timeline, begins_ns, ends_ns)
    rows = [(wait.thread, wait.begun_ns, wait.woken_ns, wait.by_thread, wait.ended_ns) for wait in waits]
    return np.array(rows, dtype=np.int64).reshape(-1, 5).T


class ThreadNodes:
    """The nodes of each thread, by time.

    points: pairs of threads and times that need a node. A thread's start and end also get nodes, and so do all starts
    and ends of stretches of gloo's threads.
    """

    def __init__(
        self,
        timeline: Timeline,
        threads: Threads,
        points: tuple[tuple[Numbers, Times], ...],
        builder: GraphBuilder,
        trace: int,
    ) -> None:
        self._timeline = timeline
        moments: dict[int, list[Times]] = defaultdict(list)
        for thread, time in threads.workers.items():
            moments[thread] += [time.start_ns[:1], time.end_ns[-1:]]
        for thread, time in threads.servers.items():
            moments[thread] += [time.start_ns, time.end_ns]
        for on_threads, times_ns in points:
            for thread in np.unique(on_threads).tolist():
                moments[thread].append(times_ns[on_threads == thread])
        self.times_ns = {thread: np.unique(np.concatenate(times_ns)) for thread, times_ns in moments.items()}
        self.numbers = {thread: builder.add_nodes(times_ns, trace=trace) for thread, times_ns in self.times_ns.items()}

    def at(self, threads: Numbers, times_ns: Times) -> Numbers:
        """Return the nodes at these times of these threads, which must be among the points."""
        nodes = np.empty(threads.size, dtype=np.int64)
        for thread in np.unique(threads).tolist():
            chosen = threads == thread
            nodes[chosen] = self.numbers[thread][np.searchsorted(self.times_ns[thread], times_ns[chosen])]
        return nodes

    def start_of(self, rows: Rows) -> Numbers:
        """Return the nodes at the starts of these spans."""
        return self.at(self._timeline.stream[rows], self._timeline.start_ns[rows])

    def end_of(self, rows: Rows) -> Numbers:
        """Return the nodes at the ends of these spans."""
        return self.at(self._timeline.stream[rows], self._timeline.end_ns[rows])


def _add_work_of_threads(
    timeline: Timeline,
    threads: Threads,
    nodes: ThreadNodes,
    builder: GraphBuilder,
    waiting: Numbers,
    waited_ns: Times,
) -> None:
    """Add an edge from each node of a thread to its next, with the work in between.

    waiting, waited_ns: threads, and stretches [start, end) in which they only waited, so that this time is not work.
    """
    kinds = path_kinds(timeline)
    for thread, time in threads.all().items():
        times_ns, numbers = nodes.times_ns[thread], nodes.numbers[thread]
        work_ns = np.zeros((max(times_ns.size - 1, 0), len(PATH_KINDS)), dtype=np.int64)
        for number in range(len(PATH_KINDS)):
            chosen = kinds == number
            # One of gloo's threads does no work outside its spans.
            if thread in threads.servers:
                chosen = np.append(chosen[:-1], False)
            work_ns[:, number] = np.diff(time.spent_ns(chosen, times_ns))
        stretches = waited_ns[waiting == thread]
        if stretches.size:
            work_ns[_is_inside(times_ns, stretches)] = 0
        on_thread = np.full(work_ns.shape[0], thread, dtype=np.int64)
        builder.add_edges(numbers[:-1], numbers[1:], "work", work_ns=work_ns, thread=on_thread)


def _is_inside(times_ns: Times, stretches: Times) -> NDArray[np.bool_]:
    """Return for each pair of adjacent times whether it lies within a stretch.

    Example: times 0, 5, 9 and stretch [4, 10) give False, True.
    """
    stretches = stretches[np.argsort(stretches[:, 0], kind="stable")]
    until_ns = np.maximum.accumulate(stretches[:, 1])
    begun = np.searchsorted(stretches[:, 0], times_ns[:-1], side="right") - 1
    inside: NDArray[np.bool_] = (begun >= 0) & (times_ns[1:] <= until_ns[np.maximum(begun, 0)])
    return inside


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedGraph:
    """The graph, each rank's part of it, and the nodes of each rank's marks."""

    graph: Graph
    ranks: tuple[RankNodes, ...]
    marks: tuple[Numbers, ...]


def joined_graph(
    timelines: Sequence[Timeline], matched: Sequence[MatchedCollective], marks: Sequence[Marks]
) -> JoinedGraph:
    """Return the graph of these ranks, whose clocks are aligned. marks: per rank, host times that need nodes."""
    trace_of = {timeline.rank: trace for trace, timeline in enumerate(timelines)}
    # For each collective its last arrival, and per rank: trace, row, and whether the rank stayed until then.
    arrivals_ns: list[int] = []
    members: list[list[tuple[int, int, bool]]] = []
    is_joined = [np.zeros(timeline.kind.size, dtype=np.bool_) for timeline in timelines]
    for collective in matched:
        rows = [(trace_of[rank], row) for rank, row in zip(collective.ranks, collective.rows, strict=True)]
        arrival_ns = max(int(timelines[trace].start_ns[row]) for trace, row in rows)
        for trace, row in rows:
            is_joined[trace][row] = timelines[trace].end_ns[row] >= arrival_ns
        arrivals_ns.append(arrival_ns)
        members.append([(trace, row, bool(is_joined[trace][row])) for trace, row in rows])
    builder = GraphBuilder()
    ranks = tuple(
        add_rank(timeline, builder, trace=trace, marks=marks[trace], is_joined=is_joined[trace])
        for trace, timeline in enumerate(timelines)
    )
    # The start of each transfer: after every arrival, and before the end on every rank that waited for it.
    transfers = builder.add_nodes(np.array(arrivals_ns, dtype=np.int64), trace=0).tolist()
    arrivals: list[tuple[int, int]] = []
    ends: list[tuple[int, int, int, int]] = []
    for transfer, arrival_ns, of_ranks in zip(transfers, arrivals_ns, members, strict=True):
        for trace, row, has_waited in of_ranks:
            arrivals.append((ranks[trace].start[row], transfer))
            if has_waited:
                transfer_ns = int(timelines[trace].end_ns[row]) - arrival_ns
                ends.append((transfer, ranks[trace].end[row], transfer_ns, row))
    source, target = np.array(arrivals, dtype=np.int64).reshape(-1, 2).T
    builder.add_edges(source, target, "arrival")
    source, target, lasting_ns, row_of_edge = np.array(ends, dtype=np.int64).reshape(-1, 4).T
    builder.add_edges(source, target, "work", work_ns=work_of("communication", lasting_ns), row=row_of_edge)
    graph = builder.build()
    return JoinedGraph(graph=graph, ranks=ranks, marks=tuple(graph.number[rank.marks] for rank in ranks))


# Steps that are whole on all ranks, and their joint start and end.
#
# A step ends when all work that any rank launched before its end is done on every rank. It starts where the previous
# step ended, but not before it starts on the first rank. So no time is in two steps, and between steps that follow each
# other on the hosts none is lost, however far the devices lag.


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSteps:
    """Steps in order. marks: per rank, the host times at which steps start and end, alternating.

    notes: on steps that were left out.
    """

    names: tuple[str, ...]
    marks: tuple[Marks, ...]
    notes: tuple[str, ...]


def common_steps(timelines: Sequence[Timeline]) -> CommonSteps:
    """Return the steps that are whole in every rank's trace.

    Steps match by name; a step without a number in its name is numbered by its position in the trace (`step_names`).
    """
    row_of: list[dict[str, int]] = []
    notes = []
    for timeline in timelines:
        complete = {}
        for row, step in zip(np.flatnonzero(timeline.of_kind("step")).tolist(), steps(timeline), strict=True):
            if step.part == "step":
                complete[step.name] = row
            else:
                notes.append(f"rank {timeline.rank}: {step.name} is left out: {step.why}")
        row_of.append(complete)
    names = tuple(name for name in row_of[0] if all(name in of_rank for of_rank in row_of)) if row_of else ()
    if others := len(set().union(*row_of)) - len(names):
        notes.append(f"{others} of the steps are left out: not every rank's trace holds them whole")
    marks = []
    for timeline, of_rank in zip(timelines, row_of, strict=True):
        rows = np.array([of_rank[name] for name in names], dtype=np.int64)
        times_ns = np.stack((timeline.start_ns[rows], timeline.end_ns[rows]), axis=1).ravel()
        marks.append(Marks(time_ns=times_ns, thread=np.repeat(timeline.stream[rows], 2)))
    return CommonSteps(names=names, marks=tuple(marks), notes=tuple(notes))


def bounds_ns(graph: Graph, came_ns: Times, marks: Sequence[Numbers]) -> Times:
    """Return the start and end of each step (steps, 2) for these times of the nodes.

    marks: per rank, the nodes of its marks.
    """
    # Per rank and mark: when all work that the rank launched before the mark was done, or the mark's own time if later.
    reached_ns = np.full((len(marks), marks[0].size), LONG_AGO, dtype=np.int64)
    launched = np.flatnonzero(graph.mark != ABSENT)
    np.maximum.at(reached_ns, (graph.trace[launched], graph.mark[launched]), came_ns[launched])
    reached_ns = np.maximum(np.maximum.accumulate(reached_ns, axis=1), came_ns[np.stack(marks)])
    # Even columns are starts, odd ones ends; no step may overlap the previous one.
    starts_ns, ends_ns = reached_ns[:, ::2].min(axis=0), reached_ns[:, 1::2].max(axis=0)
    ends_ns = np.maximum.accumulate(np.maximum(ends_ns, starts_ns[0]))
    starts_ns[1:] = np.clip(starts_ns[1:], ends_ns[:-1], ends_ns[1:])
    return np.stack((starts_ns, ends_ns), axis=1)


def last_node(graph: Graph, step: int, end_ns: int, marks: Sequence[Numbers]) -> int:
    """Return the node at which the step ended: a mark, or the end of work launched before it."""
    ending = np.flatnonzero(graph.time_ns == end_ns)
    launched = ending[(graph.mark[ending] != ABSENT) & (graph.mark[ending] <= 2 * step + 1)]
    marked = np.array([numbers[: 2 * step + 2] for numbers in marks], dtype=np.int64).ravel()
    return int(np.concatenate((launched, marked[graph.time_ns[marked] == end_ns]))[0])
