"""Finds work on the device whose times contradict its stream, its launch or the synchronisation that waited for it.

A stream runs its work one by one in the order of launch. Work begins after its launch, and ends before the end of the
device's synchronisation that was called after it. Parameters named `launch` take the result of `launches_of`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.reading.raw_events import AT_WORK, CALLS, CATEGORIES, RawEvents
from collectors.traces.timeline import ABSENT

Mask = NDArray[np.bool_]

SECOND_NS = 10**9

CLEARLY_NS = SECOND_NS
"""A larger contradiction between times is an error: streams and graphs cannot explain such an overlap."""

BEYOND_NOISE_NS = 100_000
"""A larger contradiction to the order of a stream, or to a synchronisation, is an error."""

CLOCKS_AGREE_NS = 10_000
"""Approximate accuracy with which kineto puts host and device on the same clock."""

UNSTEADY_NS = 10**6
"""Maximum change of the difference between two clocks during a trace."""

UNKNOWN_NS = -(2**62)
"""Marks an unknown amount by which a span is early or late."""

NEVER_NS = 2**63 - 1
"""Start time of work that does not exist."""

_DEVICE_SYNCHRONISES = re.compile(r"DeviceSynchronize$")


def is_of(raw: RawEvents, categories: Sequence[int]) -> Mask:
    """Return whether each event belongs to one of these categories; compares the few categories, not the events."""
    is_chosen: Mask = np.isin(np.arange(len(CATEGORIES)), categories)[raw.category]
    return is_chosen


def is_at_work(raw: RawEvents) -> Mask:
    """Return whether each event is a kernel, a copy or a fill on a device."""
    return is_of(raw, AT_WORK)


def launches_of(raw: RawEvents) -> NDArray[np.int64]:
    """Return for each work on the device the row of the first call with its correlation, or `ABSENT`."""
    launch = np.full(raw.start_ns.size, ABSENT, dtype=np.int64)
    is_correlated = raw.correlation != ABSENT
    calls = np.flatnonzero(is_of(raw, CALLS) & is_correlated)
    rows = np.flatnonzero(is_at_work(raw) & is_correlated)
    if calls.size and rows.size:
        calls = calls[np.lexsort((raw.start_ns[calls], raw.correlation[calls]))]
        correlations, correlation = raw.correlation[calls], raw.correlation[rows]
        index = np.minimum(np.searchsorted(correlations, correlation), calls.size - 1)
        is_held = correlations[index] == correlation
        launch[rows[is_held]] = calls[index[is_held]]
    return launch


def _shares_launch(launch: NDArray[np.int64]) -> Mask:
    """Return whether each work shares its launch with other work: a graph's launch, or a wrong one."""
    known = launch[launch != ABSENT]
    shares: Mask = np.append(np.bincount(known, minlength=launch.size) > 1, False)[launch]
    return shares


def early_by_ns(raw: RawEvents, launch: NDArray[np.int64]) -> Times:
    """Return how much earlier than its launch each work on the device begins; `UNKNOWN_NS` without a launch."""
    return np.where(launch == ABSENT, UNKNOWN_NS, raw.start_ns[launch] - raw.start_ns)


def outlasts_next(raw: RawEvents, by_ns: int = CLEARLY_NS) -> Mask:
    """Return whether each work ends more than `by_ns` after the next on its stream began."""
    is_outlasting = np.zeros(raw.start_ns.size, dtype=np.bool_)
    rows = np.flatnonzero(is_at_work(raw))
    rows = rows[np.lexsort((raw.start_ns[rows], raw.thread[rows], raw.process[rows]))]
    current, following = rows[:-1], rows[1:]
    is_same = (raw.thread[current] == raw.thread[following]) & (raw.process[current] == raw.process[following])
    overlap_ns = raw.start_ns[current] + raw.duration_ns[current] - raw.start_ns[following]
    is_outlasting[current[is_same & (overlap_ns > by_ns)]] = True
    return is_outlasting


def is_out_of_order(raw: RawEvents, launch: NDArray[np.int64]) -> Mask:
    """Return whether each work begins out of the order in which its stream's work was launched.

    If work begins after other work that was launched later, either it is too late or the other too early: the smaller
    group is wrong. If both are equally large, the early group is wrong if any of its work begins before its launch,
    otherwise the late group. A graph's work shares its launch and runs on other streams, so it is not judged.
    """
    is_wrong = np.zeros(raw.start_ns.size, dtype=np.bool_)
    is_graph = np.array([*("GraphLaunch" in name for name in raw.names), False], dtype=np.bool_)[raw.name]
    rows = np.flatnonzero((launch != ABSENT) & ~_shares_launch(launch))
    rows = rows[~is_graph[launch[rows]]]
    rows = rows[np.lexsort((raw.start_ns[launch[rows]], raw.thread[rows], raw.process[rows]))]
    is_next = (np.diff(raw.thread[rows]) != 0) | (np.diff(raw.process[rows]) != 0)
    for stretch in np.split(rows, np.flatnonzero(is_next) + 1):
        if stretch.size < 2:
            continue
        start_ns, called_ns = raw.start_ns[stretch], raw.start_ns[launch[stretch]]
        # Calls of several threads overlap: only a call after another's return is certainly later.
        returned_ns = called_ns + raw.duration_ns[launch[stretch]] + CLOCKS_AGREE_NS
        # soonest_ns[i]: the earliest start of the work from place i on.
        soonest_ns = np.append(np.minimum.accumulate(start_ns[::-1])[::-1], NEVER_NS)
        is_late = start_ns - BEYOND_NOISE_NS > soonest_ns[np.searchsorted(called_ns, returned_ns)]
        if not is_late.any():
            continue
        by_return = np.argsort(returned_ns, kind="stable")
        latest_ns = np.append(UNKNOWN_NS, np.maximum.accumulate(start_ns[by_return]))
        earlier = np.searchsorted(returned_ns[by_return], called_ns, side="right")
        is_early = start_ns + BEYOND_NOISE_NS < latest_ns[earlier]
        # Judge separate faults separately: they are separated where all earlier work begins before all later work.
        is_cut = np.maximum.accumulate(start_ns)[:-1] <= soonest_ns[1:-1]
        fault = np.append(0, np.cumsum(is_cut))
        is_impossible = is_early & (start_ns + BEYOND_NOISE_NS < called_ns)
        late, early, impossible = (np.bincount(fault, weights=side) for side in (is_late, is_early, is_impossible))
        are_late = (late < early) | ((late == early) & (impossible == 0))
        is_wrong[stretch] = np.where(are_late[fault], is_late, is_early)
    return is_wrong


def late_by_ns(raw: RawEvents, launch: NDArray[np.int64]) -> tuple[Times, NDArray[np.int64]]:
    """Return how long after the first synchronisation called after its launch each work ends, and that call's row.

    `UNKNOWN_NS` and `ABSENT` if there is none, or if the trace has several devices, since a call waits for one of them.
    """
    late_ns, waited_by = np.full(raw.start_ns.size, UNKNOWN_NS), np.full(raw.start_ns.size, ABSENT, dtype=np.int64)
    waits = np.array([*(_DEVICE_SYNCHRONISES.search(name) is not None for name in raw.names), False])[raw.name]
    waits = np.flatnonzero(waits & is_of(raw, CALLS))
    if not waits.size or np.unique(raw.process[is_at_work(raw)]).size != 1:
        return late_ns, waited_by
    waits = waits[np.argsort(raw.start_ns[waits], kind="stable")]
    rows = np.flatnonzero(launch != ABSENT)
    launched_ns = raw.start_ns[launch[rows]] + raw.duration_ns[launch[rows]]
    index = np.searchsorted(raw.start_ns[waits], launched_ns)
    rows, index = rows[index < waits.size], index[index < waits.size]
    waited_ns = raw.start_ns[waits[index]] + raw.duration_ns[waits[index]]
    late_ns[rows] = raw.start_ns[rows] + raw.duration_ns[rows] - waited_ns
    waited_by[rows] = waits[index]
    return late_ns, waited_by


def is_alone(contradiction_ns: Times) -> Mask:
    """Return whether each work clearly contradicts the host while most others do not; all False if most do."""
    is_known, is_wrong = contradiction_ns != UNKNOWN_NS, contradiction_ns > CLEARLY_NS
    is_most = 2 * int(is_wrong.sum()) >= int(is_known.sum())
    return np.zeros_like(is_wrong) if is_most else is_wrong


def is_late_alone(raw: RawEvents, launch: NDArray[np.int64]) -> Mask:
    """Return whether each work ends after the synchronisation that waited for it although the clocks agree.

    The clocks agree if most synchronisations are respected. If they do not, work is still wrong if it ends after the
    next on its stream began, or later than clocks can explain: they differ at most by the shortest time from a launch
    to its work.
    """
    late_ns, waited_by = late_by_ns(raw, launch)
    is_late: Mask = late_ns > BEYOND_NOISE_NS
    if not is_late.any():
        return is_late
    is_late &= ~_shares_launch(launch)
    synchronisations = np.unique(waited_by[waited_by != ABSENT]).size
    if 2 * np.unique(waited_by[is_late]).size < synchronisations:
        return is_late
    explained_ns = max(0, -int(early_by_ns(raw, launch).max())) + UNSTEADY_NS
    is_unexplained = is_late & (late_ns > explained_ns)
    if 2 * int(is_unexplained.sum()) >= int((late_ns != UNKNOWN_NS).sum()):
        is_unexplained[:] = False
    return (is_late & outlasts_next(raw, BEYOND_NOISE_NS)) | is_unexplained | is_alone(late_ns)
