"""Which span of the device waited for one on another stream.

A trace says that a stream was made to wait, and not for what. Taken is the span of another stream that had ended last
when the waiting one began, of those that had been put there before the wait. A wait whose stream the trace does not
name concerns what its thread puts on the device next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collectors.traces.path.device_queue import DeviceQueue, Rows, named
from collectors.traces.spans import ABSENT, Timeline
from collectors.traces.steps.launches import LONG_AGO


def stream_waits(timeline: Timeline, queue: DeviceQueue) -> tuple[Rows, Rows]:
    """What was waited for, and what waited: the same number of indices in the queue."""
    names = ["StreamWaitEvent" in name for name in timeline.names]
    calls = np.flatnonzero(timeline.of_kind("launch") & named(timeline, names))
    waiting = _waiting(timeline, queue, calls)
    calls, waiting = calls[waiting != ABSENT], waiting[waiting != ABSENT]
    asked_ns, began_ns = timeline.start_ns[calls], queue.start_ns[waiting]
    awaited = np.full(calls.size, ABSENT, dtype=np.int64)
    ended_ns = np.full(calls.size, LONG_AGO, dtype=np.int64)
    for stream in np.unique(queue.stream):
        here = np.flatnonzero(queue.stream == stream)
        last = np.minimum(
            np.searchsorted(np.maximum.accumulate(queue.end_ns[here]), began_ns, side="right"),
            np.searchsorted(np.maximum.accumulate(queue.called_ns[here]), asked_ns, side="left"),
        )
        found = here[np.maximum(last, 1) - 1]
        later = (last > 0) & (queue.stream[waiting] != stream) & (queue.end_ns[found] > ended_ns)
        awaited[later], ended_ns[later] = found[later], queue.end_ns[found[later]]
    known = awaited != ABSENT
    return awaited[known], waiting[known]


def streams_of(timeline: Timeline, calls: Rows) -> NDArray[np.int64]:
    """The stream that each call names, by the event that shares its correlation; `ABSENT` where there is none."""
    events = np.flatnonzero(timeline.of_kind("wait") & named(timeline, ["Stream" in name for name in timeline.names]))
    by_correlation = dict(zip(timeline.correlation[events].tolist(), timeline.stream[events].tolist(), strict=True))
    by_correlation.pop(ABSENT, None)
    return np.array([by_correlation.get(key, ABSENT) for key in timeline.correlation[calls].tolist()], dtype=np.int64)


def _waiting(timeline: Timeline, queue: DeviceQueue, calls: Rows) -> Rows:
    """For each call the first span that was put on the waiting stream after it, or `ABSENT`."""
    called = np.flatnonzero(queue.call != ABSENT)
    asked_ns, stream = timeline.start_ns[calls], streams_of(timeline, calls)
    by_stream = _next(called, queue, queue.stream[called], asked_ns, stream)
    threads = np.where(stream == ABSENT, timeline.stream[calls], ABSENT)
    by_thread = _next(called, queue, timeline.stream[queue.call[called]], asked_ns, threads)
    return np.where(stream == ABSENT, by_thread, by_stream)


def _next(
    called: Rows, queue: DeviceQueue, place: NDArray[np.int64], asked_ns: Rows, wanted: NDArray[np.int64]
) -> Rows:
    """For each moment the first of what was called at its place from then on. place: of each that was called."""
    found = np.full(asked_ns.size, ABSENT, dtype=np.int64)
    for number in np.unique(wanted[wanted != ABSENT]):
        mine, here = np.flatnonzero(wanted == number), called[place == number]
        here = here[np.argsort(queue.called_ns[here], kind="stable")]
        behind = np.searchsorted(queue.called_ns[here], asked_ns[mine], side="left")
        there = behind < here.size
        found[mine[there]] = here[behind[there]]
    return found
