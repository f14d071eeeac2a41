"""How far the device is behind the host: the delay of each launch, and how many wait to start.

A launch's delay runs from the start of the call to the start of the first span that it put on the device; a graph is
one launch. kineto puts both clocks on one. A queue holds what is launched and not started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.spans import ABSENT, KINDS, Timeline
from collectors.traces.steps.durations import Durations, durations
from collectors.traces.steps.launches import is_at_work, is_of_gloo, launch_of

GRAPH = "graph"
GRAPH_LAUNCH = "GraphLaunch"
"""What CUDA and HIP call the launch of a graph holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What waits for one stream, or for the whole device where it is None.

    length: from each of these moments on; it is 0 before the first and after the last.
    """

    stream: int | None
    moments_ns: Times
    length: NDArray[np.int64]

    @property
    def longest(self) -> int:
        """The most that waited at one moment."""
        return int(self.length.max())

    @property
    def mean_length(self) -> float | None:
        """Over the time from the first launch to the last start; None where that is no time."""
        lasting_ns = np.diff(self.moments_ns)
        if not lasting_ns.sum():
            return None
        # As numbers with a point: one wrong time makes a trace last for years, and lengths times years exceed 64 bits.
        return float(np.average(self.length[:-1], weights=lasting_ns.astype(np.float64)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchQueue:
    """Of one rank.

    delays: by the kind of what was launched, `GRAPH` for graphs. queues: of the device, then of each stream.
    spans_of_graphs: on the device. unknown: spans on the device whose launch the trace does not hold; what gloo runs
    has none.
    early: launches after their own span by the trace's clocks; they are in no figure.
    """

    rank: int
    delays: Mapping[str, Durations]
    queues: tuple[Queue, ...]
    spans_of_graphs: int
    unknown: int
    early: int


def launch_queue(timeline: Timeline) -> LaunchQueue:
    """The delays and queues of a rank; of a trace without a device, none."""
    launch = launch_of(timeline)
    is_on_device = is_at_work(timeline) & ~is_of_gloo(timeline) & timeline.is_device
    rows = np.flatnonzero(launch != ABSENT)
    is_graph = np.array([GRAPH_LAUNCH in name for name in timeline.names], dtype=np.bool_)
    # Rows are by start, so the first of a launch is the one that started first.
    calls, first = np.unique(launch[rows], return_index=True)
    started = rows[first]
    delay_ns = timeline.start_ns[started] - timeline.start_ns[calls]
    is_sound = delay_ns >= 0
    kinds = np.where(is_graph[timeline.name[calls]], len(KINDS), timeline.kind[started].astype(np.int64))
    found = durations(delay_ns[is_sound], kinds[is_sound])
    return LaunchQueue(
        rank=timeline.rank,
        delays={(*KINDS, GRAPH)[number]: delays for number, delays in found.items()},
        queues=_queues(
            timeline.start_ns[calls[is_sound]], timeline.start_ns[started[is_sound]], timeline.stream[started[is_sound]]
        ),
        spans_of_graphs=int(is_graph[timeline.name[launch[rows]]].sum()),
        unknown=int((is_on_device & (launch == ABSENT)).sum()),
        early=int((~is_sound).sum()),
    )


def _queues(launched_ns: Times, started_ns: Times, stream: NDArray[np.int64]) -> tuple[Queue, ...]:
    if not stream.size:
        return ()
    streams = np.unique(stream).tolist()
    return (
        _queue(None, launched_ns, started_ns),
        *(_queue(number, launched_ns[stream == number], started_ns[stream == number]) for number in streams),
    )


def _queue(stream: int | None, launched_ns: Times, started_ns: Times) -> Queue:
    moments_ns, place = np.unique(np.concatenate((launched_ns, started_ns)), return_inverse=True)
    change = np.zeros(moments_ns.size, dtype=np.int64)
    np.add.at(change, place.ravel(), np.repeat((1, -1), (launched_ns.size, started_ns.size)))
    return Queue(stream=stream, moments_ns=moments_ns, length=np.cumsum(change))
