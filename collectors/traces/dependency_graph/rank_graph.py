"""One rank's part of the dependency graph: its device, its host threads, and the dependencies between them.

- A device's span depends on the span before it on its stream, on the call that launched it, and on what its stream
  waited for (`stream_waits`, `inferred_stream_waits`).
- A thread depends on what it did before; in a call that waits for the device, on the device (`awaited`); and on the
  thread that it waits for (`wakings`).
- A collective of gloo depends on the c10d operator that enqueued it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.dependency_graph.dependencies import (
    LEAST_WAIT_NS,
    DeviceQueue,
    Rows,
    ThreadTime,
    Waking,
    awaited,
    device_queue,
    inferred_stream_waits,
    named,
    on_device,
    stream_waits,
    thread_time,
    wakings,
)
from collectors.traces.dependency_graph.graph import PATH_KINDS, GraphBuilder, Numbers, PathKind, work_of
from collectors.traces.intervals import Times
from collectors.traces.steps import is_at_work
from collectors.traces.timeline import ABSENT, KINDS, Timeline

# The host's part: the moments of each thread form a chain.


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


class Places:
    """The drafted moments of each thread, found by their time."""

    def __init__(self, points: Mapping[int, Iterable[Times]], draft: GraphBuilder, trace: int) -> None:
        self.times_ns = {thread: np.unique(np.concatenate(list(times))) for thread, times in points.items()}
        self.numbers = {thread: draft.moments(times, trace=trace) for thread, times in self.times_ns.items()}

    def at(self, threads: Numbers, times_ns: Times) -> Numbers:
        """Return the moments at these times of these threads. Each must have been among the points."""
        found = np.empty(threads.size, dtype=np.int64)
        for thread in np.unique(threads).tolist():
            chosen = threads == thread
            found[chosen] = self.numbers[thread][np.searchsorted(self.times_ns[thread], times_ns[chosen])]
        return found


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
        found = {thread: thread_time(timeline, row) for thread, row in rows.items()}
        return {thread: time for thread, time in found.items() if time.row.size}

    return Threads(workers=times(workers), servers=times(servers))


def points_of(threads: Threads, at: Sequence[tuple[Numbers, Times]], waits: Sequence[Waking]) -> dict[int, list[Times]]:
    """Return by thread the times that need a moment.

    These are the times given in `at` as (threads, times); of each wait both ends and the end of work that it waited
    for; a thread's start and end; of gloo's threads all starts and ends of stretches.
    """
    points: dict[int, list[Times]] = defaultdict(list)
    for thread, time in threads.all().items():
        points[thread] += [time.start_ns[:1], time.end_ns[-1:]]
    for thread, time in threads.servers.items():
        points[thread] += [time.start_ns, time.end_ns]
    for wait in waits:
        points[wait.thread].append(np.array([wait.begun_ns, wait.woken_ns], dtype=np.int64))
        points[wait.by_thread].append(np.array([wait.ended_ns], dtype=np.int64))
    for wheres, times_ns in at:
        for thread in np.unique(wheres).tolist():
            points[thread].append(times_ns[wheres == thread])
    return points


def chain(
    timeline: Timeline, threads: Threads, places: Places, draft: GraphBuilder, waited: Mapping[int, Times]
) -> None:
    """Draft an edge from each moment of a thread to the next, with the work done in between.

    waited: by thread, stretches [start, end) in which it only waited, so that their time is no work.
    """
    kinds = path_kinds(timeline)
    for thread, time in threads.all().items():
        times_ns, numbers = places.times_ns[thread], places.numbers[thread]
        work_ns = np.zeros((max(times_ns.size - 1, 0), len(PATH_KINDS)), dtype=np.int64)
        for number in range(len(PATH_KINDS)):
            chosen = kinds == number
            # Where one of gloo's threads is in no span, it does no work.
            if thread in threads.servers:
                chosen = np.append(chosen[:-1], False)
            work_ns[:, number] = np.diff(time.spent_ns(chosen, times_ns))
        stretches = waited.get(thread)
        if stretches is not None and stretches.size:
            work_ns[_is_inside(times_ns, stretches)] = 0
        draft.edges(
            numbers[:-1],
            numbers[1:],
            "work",
            work_ns=work_ns,
            place=np.full(work_ns.shape[0], thread, dtype=np.int64),
        )


def path_kinds(timeline: Timeline) -> NDArray[np.int8]:
    """Return per span the index of its kind in `PATH_KINDS`; the last entry is for a thread in no span (host)."""
    as_path: dict[str, PathKind] = {kind: kind for kind in PATH_KINDS if kind in KINDS}
    number = np.array([PATH_KINDS.index(as_path.get(kind, "host")) for kind in KINDS], dtype=np.int8)
    return np.append(number[timeline.kind], number[KINDS.index("host")])


def _is_inside(times_ns: Times, stretches: Times) -> NDArray[np.bool_]:
    """Return for each pair of neighbouring moments whether it lies within a stretch.

    Example: moments 0, 5, 9 and stretch [4, 10) give False, True.
    """
    stretches = stretches[np.argsort(stretches[:, 0], kind="stable")]
    until_ns = np.maximum.accumulate(stretches[:, 1])
    place = np.searchsorted(stretches[:, 0], times_ns[:-1], side="right") - 1
    inside: NDArray[np.bool_] = (place >= 0) & (times_ns[1:] <= until_ns[np.maximum(place, 0)])
    return inside


ENQUEUING = "c10d::"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Times on the host, ascending, and the thread of each."""

    time_ns: Times
    thread: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMoments:
    """What the joined graph needs of a rank's part.

    threads: the time of each thread. start, end: the drafted moments of communication, by row. marks: the drafted
    moments of its marks.
    """

    threads: Mapping[int, ThreadTime]
    start: Mapping[int, int]
    end: Mapping[int, int]
    marks: Numbers


def draft_rank(
    timeline: Timeline, draft: GraphBuilder, *, trace: int, marks: Marks, joined: NDArray[np.bool_]
) -> RankMoments:
    """Add the rank to the draft.

    joined: per span whether it is a collective whose end depends on other ranks, so that its duration is no work here.
    """
    queue = device_queue(timeline)
    begin, end = _device(timeline, queue, draft, trace, marks, joined)
    threads = threads_of(timeline, queue.call[queue.call != ABSENT])
    waiting, reached = awaited(timeline, queue)
    known = np.isin(timeline.stream[waiting], list(threads.workers))
    waiting, reached = waiting[known], reached[known]
    hosted = np.flatnonzero(is_at_work(timeline) & timeline.of_kind("communication") & ~on_device(timeline))
    waits = _wakings(timeline, threads, hosted)
    asked, asking = _asking(timeline, threads, hosted)
    # Moments on threads: where an edge starts or ends, and at the marks.
    called = np.flatnonzero(queue.call != ABSENT)
    starts, ends = np.concatenate((queue.call[called], waiting, hosted, asking)), np.concatenate((waiting, hosted))
    at = [
        (timeline.stream[starts], timeline.start_ns[starts]),
        (timeline.stream[ends], timeline.end_ns[ends]),
        (marks.thread, marks.time_ns),
    ]
    places = Places(points_of(threads, at, waits), draft, trace)

    def start_of(rows: Rows) -> Numbers:
        return places.at(timeline.stream[rows], timeline.start_ns[rows])

    def end_of(rows: Rows) -> Numbers:
        return places.at(timeline.stream[rows], timeline.end_ns[rows])

    # A call only waited if what it waited for ended after the call began.
    slept = queue.end_ns[reached] > timeline.start_ns[waiting]
    waited = _by_thread(timeline, np.concatenate((waiting[slept], hosted[joined[hosted]])), waits)
    chain(timeline, threads, places, draft, waited)
    # Edges between threads and device, and between threads.
    least_ns = np.full(called.size, _least_delay_ns(queue), dtype=np.int64)
    draft.edges(start_of(queue.call[called]), begin[called], "launch", work_ns=work_of("delay", least_ns))
    draft.edges(end[reached], end_of(waiting), "synchronisation")
    draft.edges(start_of(asking), start_of(asked), "enqueuing")
    draft.edges(
        places.at(_column(wait.by_thread for wait in waits), _column(wait.ended_ns for wait in waits)),
        places.at(_column(wait.thread for wait in waits), _column(wait.woken_ns for wait in waits)),
        "waking",
    )
    is_communication = timeline.of_kind("communication")[queue.row]
    rows = np.concatenate((queue.row[is_communication], hosted)).tolist()
    return RankMoments(
        threads=threads.all(),
        start=dict(zip(rows, np.concatenate((begin[is_communication], start_of(hosted))).tolist(), strict=True)),
        end=dict(zip(rows, np.concatenate((end[is_communication], end_of(hosted))).tolist(), strict=True)),
        marks=places.at(marks.thread, marks.time_ns),
    )


def _device(
    timeline: Timeline, queue: DeviceQueue, draft: GraphBuilder, trace: int, marks: Marks, joined: NDArray[np.bool_]
) -> tuple[Numbers, Numbers]:
    """Draft the device's own part, and return the moments at which its spans begin and end."""
    # The first mark after each launch; spans launched after the last mark have none.
    before = np.searchsorted(marks.time_ns, queue.called_ns, side="right")
    is_marked = queue.is_placed & (before < marks.time_ns.size)
    begin = draft.moments(queue.start_ns, trace=trace)
    end = draft.moments(queue.end_ns, trace=trace, mark=np.where(is_marked, before, ABSENT))
    alone = np.flatnonzero(~joined[queue.row])
    kinds, lasting_ns = path_kinds(timeline)[queue.row], queue.end_ns - queue.start_ns
    work_ns = np.where(kinds[:, None] == np.arange(len(PATH_KINDS)), lasting_ns[:, None], 0)
    draft.edges(begin[alone], end[alone], "work", work_ns=work_ns[alone], row=queue.row[alone])
    follows = np.flatnonzero(queue.stream[1:] == queue.stream[:-1])
    draft.edges(end[follows], begin[follows + 1], "stream order")
    told = stream_waits(timeline, queue)
    for source, target in (told, inferred_stream_waits(queue, *told, _least_delay_ns(queue))):
        draft.edges(end[source], begin[target], "stream wait")
    return begin, end


def _least_delay_ns(queue: DeviceQueue) -> int:
    """Return the least time from a call to its span's start: the shortest that this rank's trace shows.

    At most `LEAST_WAIT_NS`: a device that is always behind its host does not show its shortest.
    """
    delay_ns = (queue.start_ns - queue.called_ns)[queue.call != ABSENT]
    return int(delay_ns[delay_ns >= 0].min(initial=LEAST_WAIT_NS))


def _wakings(timeline: Timeline, threads: Threads, hosted: Rows) -> list[Waking]:
    if not threads.workers:
        return []
    served = hosted[np.isin(timeline.stream[hosted], list(threads.servers))]
    ends_ns = {
        thread: timeline.end_ns[served[timeline.stream[served] == thread]]
        for thread in np.unique(timeline.stream[served]).tolist()
    }
    times = threads.all().values()
    begins_ns = min(int(time.start_ns[0]) for time in times)
    return wakings(threads.workers, ends_ns, timeline, begins_ns, max(int(time.end_ns[-1]) for time in times))


def _asking(timeline: Timeline, threads: Threads, hosted: Rows) -> tuple[Rows, Rows]:
    """Return the collectives of gloo's own threads, and for each the c10d operator that began last before it."""
    is_asking = named(timeline, [name.startswith(ENQUEUING) for name in timeline.names]) & timeline.of_kind("host")
    asking = np.flatnonzero(is_asking & np.isin(timeline.stream, list(threads.workers)))
    served = hosted[np.isin(timeline.stream[hosted], list(threads.servers))]
    place = np.searchsorted(timeline.start_ns[asking], timeline.start_ns[served], side="right") - 1
    return served[place >= 0], asking[place[place >= 0]]


def _by_thread(timeline: Timeline, rows: Rows, waits: list[Waking]) -> dict[int, Times]:
    """Return by thread the stretches in which it only waited: these spans, and its waits for other threads."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for thread, start, end in zip(
        timeline.stream[rows].tolist(), timeline.start_ns[rows].tolist(), timeline.end_ns[rows].tolist(), strict=True
    ):
        found[thread].append((start, end))
    for wait in waits:
        found[wait.thread].append((wait.begun_ns, wait.woken_ns))
    return {thread: np.array(stretches, dtype=np.int64) for thread, stretches in found.items()}


def _column(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(values), dtype=np.int64)
