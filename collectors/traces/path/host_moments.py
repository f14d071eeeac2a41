"""The host's part of the graph of moments: what each thread did comes after what it did before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.path.device_queue import Rows, on_device
from collectors.traces.path.host_waits import Waking
from collectors.traces.path.moments import PATH_KINDS, Draft, Numbers, PathKind
from collectors.traces.path.thread_time import ThreadTime, thread_time
from collectors.traces.spans import KINDS, Timeline
from collectors.traces.steps.launches import is_at_work


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """The threads that take part in the work, each with its time.

    workers: those that compute, or put work on the device. servers: gloo's own, which only communicate.
    """

    workers: Mapping[int, ThreadTime]
    servers: Mapping[int, ThreadTime]

    def all(self) -> dict[int, ThreadTime]:
        """Both."""
        return {**self.workers, **self.servers}


class Places:
    """The drafted moments of each thread, found by their time."""

    def __init__(self, points: Mapping[int, Iterable[Times]], draft: Draft, trace: int) -> None:
        self.times_ns = {thread: np.unique(np.concatenate(list(times))) for thread, times in points.items()}
        self.numbers = {thread: draft.moments(times, trace=trace) for thread, times in self.times_ns.items()}

    def at(self, threads: Numbers, times_ns: Times) -> Numbers:
        """The moments at these times of these threads, all of which must have been among the points."""
        found = np.empty(threads.size, dtype=np.int64)
        for thread in np.unique(threads).tolist():
            chosen = threads == thread
            found[chosen] = self.numbers[thread][np.searchsorted(self.times_ns[thread], times_ns[chosen])]
        return found


def threads_of(timeline: Timeline, calls: Rows) -> Threads:
    """The threads of a rank. calls: the rows of those that put something on its device."""
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
    """The times that need a moment, by thread: those given, both ends of each wait, and the thread's own ends."""
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


def chain(timeline: Timeline, threads: Threads, places: Places, draft: Draft, waited: Mapping[int, Times]) -> None:
    """Draft what binds each moment of a thread to the one before.

    waited: by thread, stretches [start, end) in which it only waited, so that the time in them is no work.
    """
    kinds = path_kinds(timeline)
    for thread, time in threads.all().items():
        times_ns, numbers = places.times_ns[thread], places.numbers[thread]
        work_ns = np.zeros((max(times_ns.size - 1, 0), len(PATH_KINDS)), dtype=np.int64)
        for number in range(len(PATH_KINDS)):
            chosen = kinds == number
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
    """Per span the index of its kind in `PATH_KINDS`, and at the end that of a thread that is in no span."""
    as_path: dict[str, PathKind] = {kind: kind for kind in PATH_KINDS if kind in KINDS}
    number = np.array([PATH_KINDS.index(as_path.get(kind, "host")) for kind in KINDS], dtype=np.int8)
    return np.append(number[timeline.kind], number[KINDS.index("host")])


def _is_inside(times_ns: Times, stretches: Times) -> NDArray[np.bool_]:
    """Per pair of neighbouring moments whether it lies in a stretch."""
    stretches = stretches[np.argsort(stretches[:, 0], kind="stable")]
    until_ns = np.maximum.accumulate(stretches[:, 1])
    place = np.searchsorted(stretches[:, 0], times_ns[:-1], side="right") - 1
    inside: NDArray[np.bool_] = (place >= 0) & (times_ns[1:] <= until_ns[np.maximum(place, 0)])
    return inside
