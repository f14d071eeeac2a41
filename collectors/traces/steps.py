"""The stretches of a trace that figures are given for: all of it, each of its steps, and what no step holds.

A step is marked on the host, and the device runs behind the host. So a step begins and ends on the device at the
moment when all that the host had launched before its own beginning and end is done, but no earlier than on the host.
Where the host waits for the device at the end of a step, and where there is no device, both are the same. Steps that
follow each other on the host follow each other on the device: no moment is in two, and none between them is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import GLOO
from collectors.traces.intervals import Times, clip, gaps, union
from collectors.traces.timeline import ABSENT, Timeline

# Which call of the driver put each span on the device, and when.

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


# Of each span of time, how many launches in it should have put work on the device, and how many of them lack it.
#
# A trace writes the work of its device in no order of time. So one that ends early, or whose profiler lost events, may
# lack work anywhere, and its first and last launch say nothing of those between. Launches lost with their work are not
# found.

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


Part = Literal["trace", "step", "partial"]

CUT = "the trace's file is cut: any of the step's work may be missing"
"""Why no step of a trace whose file is cut is whole: a launch and its work are written together, and lost together."""

NOTHING = "nothing ran in it"
"""Why a step is not whole where nothing is at work. A loop that ends before its profiler's schedule leaves such a step
behind: each call of step() opens the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One stretch of a rank's trace, in Unix time.

    part: all of the trace, a whole step, or time that is no whole step; why: for the last, what it is.
    name: of a step, as in `step_names`; of time that no step holds, where it lies.
    """

    part: Part
    name: str
    start_ns: int
    end_ns: int
    why: str | None = None


def stretches(timeline: Timeline) -> tuple[Stretch, ...]:
    """All of the trace, from the first span at work to the end of the last; then its steps and what lies outside.

    Empty where nothing is at work. Time outside of steps counts where something is at work in it.
    """
    chosen = is_at_work(timeline)
    busy = union(timeline.start_ns[chosen], timeline.end_ns[chosen])
    if not busy.size:
        return ()
    trace = Stretch(part="trace", name="trace", start_ns=int(busy[0, 0]), end_ns=int(busy[-1, 1]))
    marked = steps(timeline)
    parts = [*marked, *_outside(marked, busy)] if marked else []
    return (trace, *sorted(parts, key=lambda stretch: stretch.start_ns))


def steps(timeline: Timeline) -> tuple[Stretch, ...]:
    """Each step that is marked, in order; `partial` where it has no work, or the trace does not hold all of it."""
    names = step_names(timeline)
    rows = timeline.of_kind("step")
    start_ns, end_ns = timeline.start_ns[rows], timeline.end_ns[rows]
    reasons = [CUT if timeline.about.is_cut else None] * len(names)
    has_launches = np.zeros(len(names), dtype=np.bool_)
    if timeline.is_device:
        launched = launches(timeline)
        lost = _lost(timeline, launched, start_ns, end_ns)
        reasons = [one or other for one, other in zip(lost, reasons, strict=True)]
        has_launches = _begins_within(timeline.start_ns[launched.calls], start_ns, end_ns)
        start_ns, end_ns = _when_done(timeline, launched, start_ns), _when_done(timeline, launched, end_ns)
    has_work = has_launches | _is_at_work_within(timeline, start_ns, end_ns)
    reasons = [why if why or has_some else NOTHING for why, has_some in zip(reasons, has_work.tolist(), strict=True)]
    return tuple(
        Stretch(
            part="step" if reasons[number] is None else "partial",
            name=name,
            start_ns=int(start_ns[number]),
            end_ns=int(end_ns[number]),
            why=reasons[number],
        )
        for number, name in enumerate(names)
    )


def step_names(timeline: Timeline) -> list[str]:
    """What tells each marked step from the others: its annotation, with its place from 0 where that has no number."""
    names = [timeline.names[number] for number in timeline.name[timeline.of_kind("step")].tolist()]
    return [name if "#" in name else f"{name} {place}" for place, name in enumerate(names)]


def _when_done(timeline: Timeline, launched: Launches, moments_ns: Times) -> Times:
    """When the device has done what was launched before each moment; the moment itself where that was earlier."""
    rows = np.flatnonzero(launched.is_known)
    if not rows.size:
        return moments_ns
    rows = rows[np.argsort(launched.start_ns[rows], kind="stable")]
    done_ns = np.maximum.accumulate(timeline.end_ns[rows])
    before = np.searchsorted(launched.start_ns[rows], moments_ns, side="left")
    return np.maximum(moments_ns, np.where(before > 0, done_ns[before - 1], moments_ns))


def _lost(timeline: Timeline, launched: Launches, start_ns: Times, end_ns: Times) -> list[str | None]:
    """Per step what the trace lacks of it, told by its launches of kernels."""
    found = lost_work(timeline, launched, start_ns, end_ns)
    return [
        f"the trace lacks the work of {lost} of {expected} launches" if lost else None
        for lost, expected in zip(found.lost.tolist(), found.expected.tolist(), strict=True)
    ]


def _begins_within(moments_ns: Times, start_ns: Times, end_ns: Times) -> NDArray[np.bool_]:
    """Per window whether one of the moments, which are in order, lies in it."""
    found: NDArray[np.bool_] = np.searchsorted(moments_ns, end_ns) > np.searchsorted(moments_ns, start_ns)
    return found


def _is_at_work_within(timeline: Timeline, start_ns: Times, end_ns: Times) -> NDArray[np.bool_]:
    """Per window whether something is at work in it, be it for no time."""
    chosen = is_at_work(timeline)
    begun = np.searchsorted(timeline.start_ns[chosen], start_ns)
    until_ns = np.append(LONG_AGO, np.maximum.accumulate(timeline.end_ns[chosen]))[begun]
    goes_on: NDArray[np.bool_] = (until_ns > start_ns) & (end_ns > start_ns)
    return goes_on | _begins_within(timeline.start_ns[chosen], start_ns, end_ns)


def _outside(marked: tuple[Stretch, ...], busy: Times) -> list[Stretch]:
    """The time in no step in which something is at work, from each step to the next, though one lasts no time."""
    held = union(
        np.array([step.start_ns for step in marked], dtype=np.int64),
        np.array([step.end_ns for step in marked], dtype=np.int64),
    )
    momentary_ns = sorted({step.start_ns for step in marked if step.start_ns == step.end_ns})
    free = [
        piece
        for start_ns, end_ns in gaps(held, int(busy[0, 0]), int(busy[-1, 1])).tolist()
        for piece in pairwise([start_ns, *(at for at in momentary_ns if start_ns < at < end_ns), end_ns])
    ]
    found = []
    for start_ns, end_ns in free:
        if not clip(busy, start_ns, end_ns).size:
            continue
        earlier = [f"after {step.name}" for step in marked if step.end_ns <= start_ns]
        later = [f"before {step.name}" for step in marked if step.start_ns >= end_ns]
        name = " and ".join(earlier[-1:] + later[:1])
        found.append(Stretch(part="partial", name=name, start_ns=start_ns, end_ns=end_ns, why="no step holds it"))
    return found
