"""One rank's part of the graph of moments: its device, its threads, and what binds them to each other.

- A span of the device comes after the one before it on its stream, after the call that put it there, and after what
  its stream was made to wait for (`stream_waits`, `untold_waits`).
- A thread goes on after what it did before, in a call that waits for the device after that, and after the thread that
  it waits for (`host_waits`).
- gloo begins a collective after the operator of c10d that asked for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.path.device_queue import DeviceQueue, Rows, device_queue, named, on_device
from collectors.traces.path.host_moments import Places, Threads, chain, path_kinds, points_of, threads_of
from collectors.traces.path.host_waits import LEAST_WAIT_NS, Waking, awaited, wakings
from collectors.traces.path.moments import PATH_KINDS, Draft, Numbers, work_of
from collectors.traces.path.stream_waits import stream_waits
from collectors.traces.path.thread_time import ThreadTime
from collectors.traces.path.untold_waits import untold_waits
from collectors.traces.spans import ABSENT, Timeline
from collectors.traces.steps.launches import is_at_work

ENQUEUING = "c10d::"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Moments on the host, ascending, and the thread that each is on."""

    time_ns: Times
    thread: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMoments:
    """What others need of a rank's part of the graph.

    threads: the time of each. start, end: by row, the drafted moments of its communication. marks: those of its marks.
    """

    threads: Mapping[int, ThreadTime]
    start: Mapping[int, int]
    end: Mapping[int, int]
    marks: Numbers


def draft_rank(timeline: Timeline, draft: Draft, *, trace: int, marks: Marks, joined: NDArray[np.bool_]) -> RankMoments:
    """Take the rank into the draft.

    joined: per span whether it is a collective whose end others decide, so that its own duration binds nothing.
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

    slept = queue.end_ns[reached] > timeline.start_ns[waiting]
    waited = _by_thread(timeline, np.concatenate((waiting[slept], hosted[joined[hosted]])), waits)
    chain(timeline, threads, places, draft, waited)
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
    timeline: Timeline, queue: DeviceQueue, draft: Draft, trace: int, marks: Marks, joined: NDArray[np.bool_]
) -> tuple[Numbers, Numbers]:
    """Draft the device's own part: the moments at which its spans begin and end."""
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
    for source, target in (told, untold_waits(queue, *told, _least_delay_ns(queue))):
        draft.edges(end[source], begin[target], "stream wait")
    return begin, end


def _least_delay_ns(queue: DeviceQueue) -> int:
    """What a span needs from its call to its start at least: the shortest time that any of this rank took.

    No more than the least wait: a device that was always behind its host does not tell.
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
    """What gloo's own threads did, and the operator that began last before each."""
    is_asking = named(timeline, [name.startswith(ENQUEUING) for name in timeline.names]) & timeline.of_kind("host")
    asking = np.flatnonzero(is_asking & np.isin(timeline.stream, list(threads.workers)))
    served = hosted[np.isin(timeline.stream[hosted], list(threads.servers))]
    place = np.searchsorted(timeline.start_ns[asking], timeline.start_ns[served], side="right") - 1
    return served[place >= 0], asking[place[place >= 0]]


def _by_thread(timeline: Timeline, rows: Rows, waits: list[Waking]) -> dict[int, Times]:
    """By thread when it only waited: in these spans, and for other threads."""
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
