"""One rank's part of the dependency graph: the nodes of its device and host threads, and an edge per dependency.

`dependencies` finds what waited for what, rule by rule; here each rule becomes edges. The work between two nodes is
that of a span on the device, or of a thread from one of its nodes to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
from collectors.traces.dependency_graph.graph import PATH_KINDS, GraphBuilder, Numbers, PathKind, work_of
from collectors.traces.intervals import Times
from collectors.traces.steps import is_at_work
from collectors.traces.timeline import ABSENT, KINDS, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Times on the host, ascending, and the thread of each."""

    time_ns: Times
    thread: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNodes:
    """What the joined graph needs of a rank's part.

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

    is_joined: per span whether it is a collective whose end depends on other ranks, so that its duration is no work
    here.
    """
    queue = device_queue(timeline)
    start, end = _add_device(timeline, queue, builder, trace, marks, is_joined)
    threads = threads_of(timeline, queue.call[queue.call != ABSENT])
    # What the rules of host threads find, as rows and as indices in the queue.
    called = np.flatnonzero(queue.call != ABSENT)
    waiting, reached = synchronisations(timeline, queue)
    is_worker = np.isin(timeline.stream[waiting], list(threads.workers))
    waiting, reached = waiting[is_worker], reached[is_worker]
    hosted = np.flatnonzero(is_at_work(timeline) & timeline.of_kind("communication") & ~on_device(timeline))
    served = hosted[np.isin(timeline.stream[hosted], list(threads.servers))]
    enqueued, enqueuing = enqueuings(timeline, served, list(threads.workers))
    woken, begun_ns, woken_ns, by_thread, ended_ns = _waits_of_threads(timeline, threads, served)
    # Nodes on threads: at the ends of every edge, and at the marks.
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
    # what it waited for ended after the call began.
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
    """Add the device's nodes, its work, and the rules between its spans; return the nodes of its starts and ends."""
    # The first mark after each launch; spans launched after the last mark have none.
    mark = np.searchsorted(marks.time_ns, queue.called_ns, side="right")
    has_mark = queue.is_placed & (mark < marks.time_ns.size)
    start = builder.add_nodes(queue.start_ns, trace=trace)
    end = builder.add_nodes(queue.end_ns, trace=trace, mark=np.where(has_mark, mark, ABSENT))
    alone = np.flatnonzero(~is_joined[queue.row])
    kinds, lasting_ns = path_kinds(timeline)[queue.row], queue.end_ns - queue.start_ns
    # One column per kind of work; a span's duration stands in the column of its kind.
    work_ns = np.where(kinds[:, None] == np.arange(len(PATH_KINDS)), lasting_ns[:, None], 0)
    builder.add_edges(start[alone], end[alone], "work", work_ns=work_ns[alone], row=queue.row[alone])
    source, target = stream_order(queue)
    builder.add_edges(end[source], start[target], "stream order")
    recorded = stream_waits(timeline, queue)
    for source, target in (recorded, inferred_stream_waits(queue, *recorded, least_delay_ns(queue))):
        builder.add_edges(end[source], start[target], "stream wait")
    return start, end


def path_kinds(timeline: Timeline) -> NDArray[np.int8]:
    """Return per span the index of its kind in `PATH_KINDS`; the last entry is for a thread in no span (host)."""
    as_path: dict[str, PathKind] = {kind: kind for kind in PATH_KINDS if kind in KINDS}
    number = np.array([PATH_KINDS.index(as_path.get(kind, "host")) for kind in KINDS], dtype=np.int8)
    return np.append(number[timeline.kind], number[KINDS.index("host")])


# Host threads: a node wherever something of another thread, the device or a step touches the thread.


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """The threads that take part in the work, each with its time.

    workers: threads that compute, launch work or run steps. servers: gloo's own threads, which only communicate.
    """

    workers: Mapping[int, ThreadTime]
    servers: Mapping[int, ThreadTime]

    def all(self) -> dict[int, ThreadTime]:
        """Return workers and servers together."""
        return {**self.workers, **self.servers}


def threads_of(timeline: Timeline, calls: Rows) -> Threads:
    """Return the threads of a rank. calls: the rows of calls that launched something on its device."""
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
    """Return (5, waits) the columns of `Waking`: thread, begun_ns, woken_ns, by_thread, ended_ns.

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
    """The nodes of each thread, found by their time.

    points: pairs of threads and times that need a node. So do a thread's start and end; of gloo's threads all starts
    and ends of stretches.
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
        """Return the nodes at these times of these threads. Each must have been among the points."""
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
    """Add an edge from each node of a thread to its next, with the work done in between.

    waiting, waited_ns: threads, and stretches [start, end) in which they only waited, so that their time is no work.
    """
    kinds = path_kinds(timeline)
    for thread, time in threads.all().items():
        times_ns, numbers = nodes.times_ns[thread], nodes.numbers[thread]
        work_ns = np.zeros((max(times_ns.size - 1, 0), len(PATH_KINDS)), dtype=np.int64)
        for number in range(len(PATH_KINDS)):
            chosen = kinds == number
            # Where one of gloo's threads is in no span, it does no work.
            if thread in threads.servers:
                chosen = np.append(chosen[:-1], False)
            work_ns[:, number] = np.diff(time.spent_ns(chosen, times_ns))
        stretches = waited_ns[waiting == thread]
        if stretches.size:
            work_ns[_is_inside(times_ns, stretches)] = 0
        on_thread = np.full(work_ns.shape[0], thread, dtype=np.int64)
        builder.add_edges(numbers[:-1], numbers[1:], "work", work_ns=work_ns, thread=on_thread)


def _is_inside(times_ns: Times, stretches: Times) -> NDArray[np.bool_]:
    """Return for each pair of neighbouring times whether it lies within a stretch.

    Example: times 0, 5, 9 and stretch [4, 10) give False, True.
    """
    stretches = stretches[np.argsort(stretches[:, 0], kind="stable")]
    until_ns = np.maximum.accumulate(stretches[:, 1])
    begun = np.searchsorted(stretches[:, 0], times_ns[:-1], side="right") - 1
    inside: NDArray[np.bool_] = (begun >= 0) & (times_ns[1:] <= until_ns[np.maximum(begun, 0)])
    return inside
