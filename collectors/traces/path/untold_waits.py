"""Which span of the device waited for one on another stream, though its trace does not say that it waited at all.

Such are the waits inside of a CUDA graph. A span that had been put on the device long before, and whose stream was
free, is taken to have waited for the span of another stream that ended last before it, if it began soon after: sooner
than it had been ready. One for which the device merely had no room, until by chance another span ended, looks alike.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.path.device_queue import DeviceQueue, Rows
from collectors.traces.path.host_waits import LEAST_WAIT_NS
from collectors.traces.steps.launches import LONG_AGO


def untold_waits(queue: DeviceQueue, source: Rows, target: Rows, least_delay_ns: int) -> tuple[Rows, Rows]:
    """What was waited for, and what waited: the same number of indices in the queue.

    source, target: the waits that the trace tells, likewise. least_delay_ns: from a call to a span's start, at least.
    """
    follows = np.concatenate(([False], queue.stream[1:] == queue.stream[:-1]))[: queue.row.size]
    ready_ns = np.where(queue.is_placed, queue.called_ns + least_delay_ns, LONG_AGO)
    ready_ns[follows] = np.maximum(ready_ns[follows], queue.end_ns[np.flatnonzero(follows) - 1])
    np.maximum.at(ready_ns, target, queue.end_ns[source])
    waiting = np.flatnonzero((ready_ns > LONG_AGO // 2) & (queue.start_ns - ready_ns >= LEAST_WAIT_NS))
    found, is_soon = _ended_last(queue, waiting, ready_ns[waiting])
    return found[is_soon], waiting[is_soon]


def _ended_last(queue: DeviceQueue, waiting: Rows, ready_ns: Times) -> tuple[Rows, NDArray[np.bool_]]:
    """For each that waits what ended last before it on another stream, and whether that explains its start."""
    by_end = np.argsort(queue.end_ns, kind="stable")
    place = np.searchsorted(queue.end_ns[by_end], queue.start_ns[waiting], side="right") - 1
    while True:
        found = by_end[np.maximum(place, 0)]
        is_after = (place >= 0) & (queue.end_ns[found] > ready_ns)
        is_wrong = (queue.stream[found] == queue.stream[waiting]) | (queue.called_ns[found] > queue.called_ns[waiting])
        if not (is_after & is_wrong).any():
            is_soon = queue.start_ns[waiting] - queue.end_ns[found] <= queue.end_ns[found] - ready_ns
            return found, is_after & is_soon
        place[is_after & is_wrong] -= 1
