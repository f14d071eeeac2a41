"""Of each span of time, how many launches in it should have put work on the device, and how many of them lack it.

A trace writes the work of its device in no order of time. So one that ends early, or whose profiler lost events, may
lack work anywhere, and its first and last launch say nothing of those between. Launches lost with their work are not
found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times, union
from collectors.traces.spans import ABSENT, Timeline
from collectors.traces.steps.launches import Launches

LAUNCHES_OF_KERNELS = re.compile(r"Launch(?!HostFunc)")
"""Calls of the driver after which a kernel is to be expected, as CUDA and HIP name them."""

CAPTURE_BEGINS = re.compile(r"StreamBeginCapture")
CAPTURE_ENDS = re.compile(r"StreamEndCapture")
"""Calls of the driver between which launches go into a graph, and run when that is launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWork:
    """Per stretch. expected: launches in it that should have work on the device. lost: those of them without any."""

    expected: NDArray[np.int64]
    lost: NDArray[np.int64]


def lost_work(timeline: Timeline, launched: Launches, start_ns: Times, end_ns: Times) -> LostWork:
    """Of the host's time from each start to its end; a launch belongs to the moment at which its call began.

    Several calls with one correlation are one launch, at the first of them.
    """
    calls = np.flatnonzero(
        timeline.of_kind("launch") & (timeline.correlation != ABSENT) & _named(timeline, LAUNCHES_OF_KERNELS)
    )
    calls = calls[np.sort(np.unique(timeline.correlation[calls], return_index=True)[1])]
    has_work = np.isin(timeline.correlation[calls], timeline.correlation[launched.row != ABSENT])
    is_expected = has_work | ~_is_captured(timeline, timeline.start_ns[calls])
    calls, has_work = calls[is_expected], has_work[is_expected]
    first = np.searchsorted(timeline.start_ns[calls], start_ns, side="left")
    behind = np.maximum(first, np.searchsorted(timeline.start_ns[calls], end_ns, side="left"))
    lost_before = np.append(0, np.cumsum(~has_work))
    return LostWork(expected=behind - first, lost=lost_before[behind] - lost_before[first])


def _is_captured(timeline: Timeline, moments_ns: Times) -> NDArray[np.bool_]:
    """Per moment whether any thread captured then.

    A capture holds streams and not threads: what the thread of a backward launches meanwhile goes into it too.
    """
    begins, ends = (
        np.flatnonzero(timeline.of_kind("launch") & _named(timeline, rule)) for rule in (CAPTURE_BEGINS, CAPTURE_ENDS)
    )
    captures = [np.empty((0, 2), dtype=np.int64)]
    for thread in np.unique(timeline.stream[begins]):
        begins_ns = timeline.start_ns[begins[timeline.stream[begins] == thread]]
        ends_ns = timeline.end_ns[ends[timeline.stream[ends] == thread]]
        place = np.searchsorted(ends_ns, begins_ns, side="right")
        # One whose end the trace lacks excuses nothing.
        is_told = place < ends_ns.size
        captures.append(np.stack((begins_ns[is_told], ends_ns[place[is_told]]), axis=1))
    joined = np.concatenate(captures)
    held = union(joined[:, 0], joined[:, 1])
    # An odd number of edges has passed within a capture, and an even one outside.
    inside: NDArray[np.bool_] = np.searchsorted(held.ravel(), moments_ns, side="right") % 2 == 1
    return inside


def _named(timeline: Timeline, rule: re.Pattern[str]) -> NDArray[np.bool_]:
    """Per span whether the rule knows its name; each name is asked once."""
    is_known = np.array([rule.search(name) is not None for name in timeline.names], dtype=np.bool_)
    chosen: NDArray[np.bool_] = is_known[timeline.name]
    return chosen
