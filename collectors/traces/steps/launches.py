"""Which call of the driver put each span on the device, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.names import GLOO
from collectors.traces.spans import ABSENT, Timeline

LONG_AGO = -(2**62)
"""Before every trace, and far enough from the limits of 64 bits that its distance from any moment is a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Per span of a Timeline.

    row: that of its launch; `ABSENT` where the trace does not hold it, and of what is not at work.
    is_known: whether it is known when the launch was. start_ns, end_ns: of the launch; `LONG_AGO` where it was before
    the trace began, and where it is not known.
    """

    row: NDArray[np.int64]
    is_known: NDArray[np.bool_]
    start_ns: Times
    end_ns: Times

    @property
    def calls(self) -> NDArray[np.int64]:
        """The rows of all launches whose work the trace holds, in order."""
        is_launch = np.zeros(self.row.size, dtype=np.bool_)
        is_launch[self.row[self.row != ABSENT]] = True
        return np.flatnonzero(is_launch)


def is_at_work(timeline: Timeline) -> NDArray[np.bool_]:
    """Per span whether it computes, communicates or copies."""
    return timeline.of_kind("compute") | timeline.of_kind("communication") | timeline.of_kind("copy")


def is_of_gloo(timeline: Timeline) -> NDArray[np.bool_]:
    """Per span whether gloo runs it: on the host, also beside a device, so that it has no launch."""
    is_named = np.array([name.startswith(GLOO) for name in timeline.names], dtype=np.bool_)
    chosen: NDArray[np.bool_] = timeline.of_kind("communication") & is_named[timeline.name]
    return chosen


def launch_of(timeline: Timeline) -> NDArray[np.int64]:
    """Per span at work the row of its launch; `ABSENT` of other spans, and where the trace does not hold the launch.

    A launch of a graph is that of many spans. Of several calls with one correlation the first is the launch.
    """
    found = np.full(timeline.name.size, ABSENT, dtype=np.int64)
    calls = np.flatnonzero(timeline.of_kind("launch") & (timeline.correlation != ABSENT))
    rows = np.flatnonzero(is_at_work(timeline) & (timeline.correlation != ABSENT))
    if not calls.size or not rows.size:
        return found
    calls = calls[np.argsort(timeline.correlation[calls], kind="stable")]
    correlations, wanted = timeline.correlation[calls], timeline.correlation[rows]
    place = np.minimum(np.searchsorted(correlations, wanted), calls.size - 1)
    is_held = correlations[place] == wanted
    found[rows[is_held]] = calls[place[is_held]]
    return found


def launches(timeline: Timeline) -> Launches:
    """When each span at work was launched.

    A stream runs in the order of launches. So what it ran before its first span with a launch in the trace was
    launched before the trace began. Of other spans without a launch nothing is known, nor of what gloo runs.
    """
    row = launch_of(timeline)
    is_known = row != ABSENT
    held = np.flatnonzero(is_known)
    start_ns, end_ns = np.full(row.size, LONG_AGO), np.full(row.size, LONG_AGO)
    start_ns[held], end_ns[held] = timeline.start_ns[row[held]], timeline.end_ns[row[held]]
    at_work = np.flatnonzero(is_at_work(timeline) & ~is_of_gloo(timeline))
    for stream in np.unique(timeline.stream[at_work[~is_known[at_work]]]):
        here = at_work[timeline.stream[at_work] == stream]
        known = np.flatnonzero(is_known[here])
        if known.size:
            is_known[here[: known[0]]] = True
    return Launches(row=row, is_known=is_known, start_ns=start_ns, end_ns=end_ns)
