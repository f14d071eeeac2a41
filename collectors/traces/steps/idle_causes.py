"""Each moment in which nothing ran on a rank, given to one cause.

A gap ends when the next work starts. Until the host launched that work, the host was late: its thread was loading
data, was waiting in a call of the driver, or was doing anything else. The work was ready once its launch had returned
and what ran before it on its stream was over. Where it starts soon after that, the gap is what a launch takes. Where
it does not, something held it: a collective if one on another stream ended just as the gap began; else it is unknown
what, and other. A device that waits inside a communication kernel is not idle; that wait is communication. What gloo
runs beside a device is work of the host, which nothing launches: a gap before it is the host's to its end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.gaps import gaps, without
from collectors.traces.intervals import Times, intersection, union
from collectors.traces.names import DATA_LOADING
from collectors.traces.spans import ABSENT, Kind, Timeline
from collectors.traces.steps.launches import LONG_AGO, Launches, is_at_work, is_of_gloo, launches

Cause = Literal["host_bound", "data_loading", "synchronisation", "launch_gap", "collective", "other"]
CAUSES: tuple[Cause, ...] = get_args(Cause)

LAUNCH_GAP_NS = 10_000
"""What a launch may take. In traces of V100, A100 and MI300X 99 % of the work that nothing holds starts within 4 us of
the return of its launch, and within 10 us of the end of what ran before it on its stream."""

SYNCHRONISATION = re.compile(r"Synchronize|^(cuda|hip)Memcpy(WithStream)?$")
"""Calls of the driver, of CUDA and HIP, that return when the device has done what they wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCauses:
    """The gaps of one rank; by_cause: disjoint parts of them, which together are all; None where it cannot be told.

    unknown: gaps before work whose launch the trace does not hold; they are in `other`.
    """

    gaps: Times
    by_cause: Mapping[Cause, Times | None]
    unknown: int = 0


def idle_causes(timeline: Timeline, start_ns: int, end_ns: int) -> IdleCauses:
    """The gaps within a window of a rank's trace.

    On a trace without a device, only loading data is told from the rest: there nothing is launched ahead.
    """
    rows = np.flatnonzero(is_at_work(timeline))
    free = gaps(union(timeline.start_ns[rows], timeline.end_ns[rows]), start_ns, end_ns)
    if not timeline.is_device:
        loading = _named(timeline, DATA_LOADING, "host")
        told: dict[Cause, Times | None] = dict.fromkeys(CAUSES)
        return IdleCauses(
            gaps=free,
            by_cause=told | {"data_loading": intersection(free, loading), "other": without(free, loading)},
        )
    launched, call = launches(timeline), _next(timeline, rows, free)
    is_known = (call != ABSENT) & launched.is_known[call]
    # Behind the last work the host launched nothing more; before work of an unknown launch nothing can be told.
    is_host = (call == ABSENT) | is_of_gloo(timeline)[call]
    is_unknown = ~is_host & ~is_known
    from_ns = np.where(is_host, free[:, 1], np.clip(launched.start_ns[call], free[:, 0], free[:, 1]))
    late = np.stack((free[:, 0], from_ns), axis=1)
    rest = np.stack((from_ns, free[:, 1]), axis=1)
    ready_ns = np.maximum(launched.end_ns, _freed_ns(timeline, rows))[call]
    is_soon = is_known & (free[:, 1] - ready_ns <= LAUNCH_GAP_NS)
    # Work behind a collective on the same stream is ready only when that has ended.
    is_collective = is_known & ~is_soon & (ready_ns < free[:, 0]) & _follows_collective(timeline, free)
    thread = np.where(is_known, timeline.stream[launched.row[call]], _last_thread(timeline, launched, free[:, 1]))
    return IdleCauses(
        gaps=free,
        by_cause={
            **_causes_on_host(timeline, late, thread),
            "launch_gap": _lasting(rest[is_soon]),
            "collective": _lasting(rest[is_collective]),
            "other": _lasting(rest[~is_soon & ~is_collective]),
        },
        unknown=int(is_unknown.sum()),
    )


def _next(timeline: Timeline, rows: NDArray[np.int64], free: Times) -> NDArray[np.int64]:
    """Per gap the row of the work that ends it; `ABSENT` where none follows."""
    place = np.searchsorted(timeline.start_ns[rows], free[:, 1], side="left")
    return np.append(rows, ABSENT)[place]


def _freed_ns(timeline: Timeline, rows: NDArray[np.int64]) -> Times:
    """Per span when what ran before it on its stream was over; `LONG_AGO` where it is the first."""
    freed_ns = np.full(timeline.name.size, LONG_AGO)
    for stream in np.unique(timeline.stream[rows]):
        here = rows[timeline.stream[rows] == stream]
        freed_ns[here[1:]] = np.maximum.accumulate(timeline.end_ns[here])[:-1]
    return freed_ns


def _follows_collective(timeline: Timeline, free: Times) -> NDArray[np.bool_]:
    """Per gap whether a collective of the device ended as it began."""
    chosen = timeline.of_kind("communication") & ~is_of_gloo(timeline)
    return np.isin(free[:, 0], timeline.end_ns[chosen])


def _causes_on_host(timeline: Timeline, late: Times, thread: NDArray[np.int64]) -> dict[Cause, Times | None]:
    """What the thread that was late did: it loaded data, else waited for the driver, else anything."""
    parts: dict[Cause, list[Times]] = {"data_loading": [], "synchronisation": [], "host_bound": []}
    for number in np.unique(thread):
        mine = _lasting(late[thread == number])
        loading = _named(timeline, DATA_LOADING, "host", number)
        waiting = _named(timeline, SYNCHRONISATION, "launch", number)
        busy = without(mine, loading)
        parts["data_loading"].append(intersection(mine, loading))
        parts["synchronisation"].append(intersection(busy, waiting))
        parts["host_bound"].append(without(busy, waiting))
    return {cause: _together(found) for cause, found in parts.items()}


def _named(timeline: Timeline, rule: re.Pattern[str], kind: Kind, thread: int | None = None) -> Times:
    """When a span of the kind ran whose name the rule knows; on one thread, or on any."""
    is_known = np.array([rule.search(name) is not None for name in timeline.names], dtype=np.bool_)
    chosen = timeline.of_kind(kind) & is_known[timeline.name]
    if thread is not None:
        chosen &= timeline.stream == thread
    return union(timeline.start_ns[chosen], timeline.end_ns[chosen])


def _last_thread(timeline: Timeline, launched: Launches, moments_ns: Times) -> NDArray[np.int64]:
    """The thread that launched work last before each moment; `ABSENT` where none did."""
    calls = launched.calls
    place = np.searchsorted(timeline.start_ns[calls], moments_ns) - 1
    thread: NDArray[np.int64] = np.append(timeline.stream[calls], ABSENT)[place]
    return thread


def _lasting(intervals: Times) -> Times:
    """Without those that are empty."""
    return intervals[intervals[:, 1] > intervals[:, 0]]


def _together(parts: Sequence[Times]) -> Times:
    joined = np.concatenate([np.empty((0, 2), dtype=np.int64), *parts])
    return union(joined[:, 0], joined[:, 1])
