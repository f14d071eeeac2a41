"""Steps of a trace, and the launches that assign the device's work to steps.

Analyses report on the whole trace, each of its steps, and the time outside steps. A step is marked on the host, and the
device lags behind. On the device, a step begins (and ends) when the device has finished everything that the host
launched before the step began (or ended) on the host, but no earlier than on the host. The two agree if the host waits
for the device at the end of a step, and if there is no device. Steps that follow each other on the host also do so on
the device: no moment is in two steps, and none between them is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import GLOO
from collectors.traces.intervals import Times, clip, gaps, union, union_of
from collectors.traces.timeline import ABSENT, Timeline

# Launches: the driver call that put each span on the device.

LONG_AGO = -(2**62)
"""A time before every trace, far enough inside 64 bits that its distance to any moment does not overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """The launch of each span of a Timeline; one entry per span.

    row: the row of the launch; `ABSENT` if the trace lacks it, and for spans that are not at work.
    is_known: whether the time of the launch is known. start_ns, end_ns: of the launch; `LONG_AGO` if it was before the
    trace began, or is unknown.
    """

    row: NDArray[np.int64]
    is_known: NDArray[np.bool_]
    start_ns: Times
    end_ns: Times

    @property
    def calls(self) -> NDArray[np.int64]:
        """The rows, in order, of all launches whose work is in the trace."""
        is_launch = np.zeros(self.row.size, dtype=np.bool_)
        is_launch[self.row[self.row != ABSENT]] = True
        return np.flatnonzero(is_launch)


def is_at_work(timeline: Timeline) -> NDArray[np.bool_]:
    """Return for each span whether it is at work: computes, communicates or copies."""
    return timeline.of_kind("compute") | timeline.of_kind("communication") | timeline.of_kind("copy")


def is_of_gloo(timeline: Timeline) -> NDArray[np.bool_]:
    """Return for each span whether gloo runs it: on the host, even if there is a device, and so without a launch."""
    is_named = np.array([name.startswith(GLOO) for name in timeline.names], dtype=np.bool_)
    chosen: NDArray[np.bool_] = timeline.of_kind("communication") & is_named[timeline.name]
    return chosen


def launch_of(timeline: Timeline) -> NDArray[np.int64]:
    """Return for each span at work the row of its launch; `ABSENT` for others, or if the trace lacks the launch.

    Many spans share the launch of a graph. If several calls have the same correlation, the first is the launch.
    """
    launch = np.full(timeline.name.size, ABSENT, dtype=np.int64)
    calls = np.flatnonzero(timeline.of_kind("launch") & (timeline.correlation != ABSENT))
    rows = np.flatnonzero(is_at_work(timeline) & (timeline.correlation != ABSENT))
    if not calls.size or not rows.size:
        return launch
    # Look up each span's correlation in the calls' sorted ones; the stable sort puts the earliest call first.
    calls = calls[np.argsort(timeline.correlation[calls], kind="stable")]
    correlations, correlation = timeline.correlation[calls], timeline.correlation[rows]
    index = np.minimum(np.searchsorted(correlations, correlation), calls.size - 1)
    is_held = correlations[index] == correlation
    launch[rows[is_held]] = calls[index[is_held]]
    return launch


def launches(timeline: Timeline) -> Launches:
    """Return when each span at work was launched.

    A stream runs in the order of launches, so every span before its first span with a launch in the trace was launched
    before the trace began. The time is unknown for other spans without a launch, for gloo's, if the launch was left
    out, and if host and device have different clocks.
    """
    row = launch_of(timeline)
    if timeline.about.clocks_differ:
        return Launches(
            row=row,
            is_known=np.zeros(row.size, dtype=np.bool_),
            start_ns=np.full(row.size, LONG_AGO),
            end_ns=np.full(row.size, LONG_AGO),
        )
    is_known = row != ABSENT
    launched = np.flatnonzero(is_known)
    start_ns, end_ns = np.full(row.size, LONG_AGO), np.full(row.size, LONG_AGO)
    start_ns[launched], end_ns[launched] = timeline.start_ns[row[launched]], timeline.end_ns[row[launched]]
    at_work = np.flatnonzero(
        is_at_work(timeline) & ~is_of_gloo(timeline) & ~np.isin(timeline.correlation, timeline.about.untimed)
    )
    for stream in np.unique(timeline.stream[at_work[~is_known[at_work]]]):
        # Spans before the first known launch of a stream were launched before the trace began.
        on_stream = at_work[timeline.stream[at_work] == stream]
        known = np.flatnonzero(is_known[on_stream])
        if known.size:
            is_known[on_stream[: known[0]]] = True
    return Launches(row=row, is_known=is_known, start_ns=start_ns, end_ns=end_ns)


# Lost work: launches whose work on the device is missing from the trace.
#
# A trace does not contain device work in order of time. So a trace that ends early, or whose profiler lost events, may
# lack work anywhere, and its first and last launch say nothing about those between. A launch that was lost together
# with its work goes unnoticed.

LAUNCHES_OF_KERNELS = re.compile(r"Launch(?!HostFunc)")
"""Driver calls of CUDA and HIP after which a kernel is expected."""

CAPTURE_BEGINS = re.compile(r"StreamBeginCapture")
CAPTURE_ENDS = re.compile(r"StreamEndCapture")
"""Driver calls between which launches are captured into a graph, and run only when the graph is launched."""


def lost_work(
    timeline: Timeline, launched: Launches, start_ns: Times, end_ns: Times
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count launches in each window of the host's time: those without device work, and all that should have it.

    Work without a time counts as missing. A launch belongs to the window in which its call begins. Several calls with
    the same correlation are a single launch, at the first call.
    """
    is_untimed = np.isin(timeline.correlation, timeline.about.untimed)
    calls = np.flatnonzero(
        timeline.of_kind("launch")
        & (timeline.correlation != ABSENT)
        & (_named(timeline, LAUNCHES_OF_KERNELS) | is_untimed)
    )
    # The first call of each correlation, in order of time.
    calls = calls[np.sort(np.unique(timeline.correlation[calls], return_index=True)[1])]
    has_work = np.isin(timeline.correlation[calls], timeline.correlation[launched.row != ABSENT]) & ~is_untimed[calls]
    is_expected = has_work | is_untimed[calls] | ~_is_captured(timeline, timeline.start_ns[calls])
    calls, has_work = calls[is_expected], has_work[is_expected]
    first = np.searchsorted(timeline.start_ns[calls], start_ns, side="left")
    behind = np.maximum(first, np.searchsorted(timeline.start_ns[calls], end_ns, side="left"))
    # Prefix sums: lost_before[i] counts the lost among the first i calls.
    lost_before = np.append(0, np.cumsum(~has_work))
    return lost_before[behind] - lost_before[first], behind - first


def _is_captured(timeline: Timeline, moments_ns: Times) -> NDArray[np.bool_]:
    """Return for each moment whether any thread was capturing a graph.

    A capture covers streams, not threads, so it also captures what the backward's thread launches meanwhile.
    """
    begins, ends = (
        np.flatnonzero(timeline.of_kind("launch") & _named(timeline, rule)) for rule in (CAPTURE_BEGINS, CAPTURE_ENDS)
    )
    captures = []
    for thread in np.unique(timeline.stream[begins]):
        begins_ns = timeline.start_ns[begins[timeline.stream[begins] == thread]]
        ends_ns = timeline.end_ns[ends[timeline.stream[ends] == thread]]
        # Pair each begin with the next end; ignore a capture whose end the trace lacks.
        following = np.searchsorted(ends_ns, begins_ns, side="right")
        has_end = following < ends_ns.size
        captures.append(np.stack((begins_ns[has_end], ends_ns[following[has_end]]), axis=1))
    captured = union_of(captures)
    # Inside a capture, the number of edges passed is odd; outside it is even.
    inside: NDArray[np.bool_] = np.searchsorted(captured.ravel(), moments_ns, side="right") % 2 == 1
    return inside


def _named(timeline: Timeline, rule: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return for each span whether the rule matches its name; each distinct name is searched once."""
    is_known = np.array([rule.search(name) is not None for name in timeline.names], dtype=np.bool_)
    chosen: NDArray[np.bool_] = is_known[timeline.name]
    return chosen


IntervalPart = Literal["trace", "step", "partial"]

CUT = "the trace's file is cut: any of the step's work may be missing"
"""Why no step is whole in a trace whose file is cut: a launch is written, and so lost, together with its work."""

NOTHING = "nothing ran in it"
"""Why a step without work is not whole. A loop that ends before its profiler's schedule leaves such a step, since each
call of step() opens the next."""


NO_TIME = "it has no time of its own: all of its work ran during the previous step"
"""Why a step of no length on the device is not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInterval:
    """A rank's whole trace, one of its steps, or time outside steps, in Unix time.

    part: `partial` is time that is not a complete step. why: the reason for that.
    name: of a step, as in `step_names`; for time outside steps, its place.
    """

    part: IntervalPart
    name: str
    start_ns: int
    end_ns: int
    why: str | None = None


def step_intervals(timeline: Timeline) -> tuple[StepInterval, ...]:
    """Return the whole trace, from the first start to the last end of work, then its steps and the time outside.

    Empty if nothing is at work. Time outside steps is listed only if something is at work in it.
    """
    chosen = is_at_work(timeline)
    busy = union(timeline.start_ns[chosen], timeline.end_ns[chosen])
    if not busy.size:
        return ()
    trace = StepInterval(part="trace", name="trace", start_ns=int(busy[0, 0]), end_ns=int(busy[-1, 1]))
    marked = steps(timeline)
    parts = [*marked, *_outside(marked, busy)] if marked else []
    return (trace, *sorted(parts, key=lambda interval: interval.start_ns))


def steps(timeline: Timeline) -> tuple[StepInterval, ...]:
    """Return each marked step, in order; a step is `partial` if it has no work or the trace lacks some of it.

    Steps are marked on the host; if the device has another clock, it has no steps.
    """
    if timeline.about.clocks_differ:
        return ()
    names = step_names(timeline)
    rows = timeline.of_kind("step")
    start_ns, end_ns = timeline.start_ns[rows], timeline.end_ns[rows]
    reasons = [CUT if timeline.about.is_cut else None] * len(names)
    has_launches = np.zeros(len(names), dtype=np.bool_)
    if timeline.is_device or timeline.about.untimed:
        launched = launches(timeline)
        lost, expected = lost_work(timeline, launched, start_ns, end_ns)
        for number in np.flatnonzero(lost).tolist():
            its_time = ", or its time" if timeline.about.untimed else ""
            reasons[number] = f"the trace lacks the work of {lost[number]} of {expected[number]} launches{its_time}"
        has_launches = _begins_within(timeline.start_ns[launched.calls], start_ns, end_ns)
        start_ns, end_ns = _when_done(timeline, launched, start_ns), _when_done(timeline, launched, end_ns)
    has_work = has_launches | _is_at_work_within(timeline, start_ns, end_ns)
    for number in np.flatnonzero(~has_work).tolist():
        reasons[number] = reasons[number] or NOTHING
    for number in np.flatnonzero(start_ns == end_ns).tolist():
        reasons[number] = reasons[number] or NO_TIME
    return tuple(
        StepInterval(
            part="step" if reasons[number] is None else "partial",
            name=name,
            start_ns=int(start_ns[number]),
            end_ns=int(end_ns[number]),
            why=reasons[number],
        )
        for number, name in enumerate(names)
    )


def step_names(timeline: Timeline) -> list[str]:
    """Return a unique name for each marked step: its annotation, with an index from 0 if that has no number."""
    names = [timeline.names[number] for number in timeline.name[timeline.of_kind("step")].tolist()]
    return [name if "#" in name else f"{name} {number}" for number, name in enumerate(names)]


def _when_done(timeline: Timeline, launched: Launches, moments_ns: Times) -> Times:
    """Return when the device has finished everything launched before each moment, but no earlier than the moment."""
    rows = np.flatnonzero(launched.is_known)
    if not rows.size:
        return moments_ns
    rows = rows[np.argsort(launched.start_ns[rows], kind="stable")]
    # done_ns[i]: when the first i + 1 launches have all finished.
    done_ns = np.maximum.accumulate(timeline.end_ns[rows])
    before = np.searchsorted(launched.start_ns[rows], moments_ns, side="left")
    return np.maximum(moments_ns, np.where(before > 0, done_ns[before - 1], moments_ns))


def _begins_within(moments_ns: Times, start_ns: Times, end_ns: Times) -> NDArray[np.bool_]:
    """Return for each window whether any of the sorted moments lies in it."""
    is_begun_within: NDArray[np.bool_] = np.searchsorted(moments_ns, end_ns) > np.searchsorted(moments_ns, start_ns)
    return is_begun_within


def _is_at_work_within(timeline: Timeline, start_ns: Times, end_ns: Times) -> NDArray[np.bool_]:
    """Return for each window whether something is at work in it, even a span of no length."""
    chosen = is_at_work(timeline)
    # When the last of the spans that begin before the window ends.
    begun = np.searchsorted(timeline.start_ns[chosen], start_ns)
    until_ns = np.append(LONG_AGO, np.maximum.accumulate(timeline.end_ns[chosen]))[begun]
    goes_on: NDArray[np.bool_] = (until_ns > start_ns) & (end_ns > start_ns)
    return goes_on | _begins_within(timeline.start_ns[chosen], start_ns, end_ns)


def _outside(marked: tuple[StepInterval, ...], busy: Times) -> list[StepInterval]:
    """Return the time outside steps in which something is at work, split at each step, even a step of no length."""
    inside_steps = union_of([np.array([[step.start_ns, step.end_ns] for step in marked], dtype=np.int64)])
    momentary_ns = sorted({step.start_ns for step in marked if step.start_ns == step.end_ns})
    free = [
        piece
        for start_ns, end_ns in gaps(inside_steps, int(busy[0, 0]), int(busy[-1, 1])).tolist()
        for piece in pairwise([start_ns, *(at for at in momentary_ns if start_ns < at < end_ns), end_ns])
    ]
    intervals = []
    for start_ns, end_ns in free:
        if not clip(busy, start_ns, end_ns).size:
            continue
        earlier = [f"after {step.name}" for step in marked if step.end_ns <= start_ns]
        later = [f"before {step.name}" for step in marked if step.start_ns >= end_ns]
        name = " and ".join(earlier[-1:] + later[:1])
        intervals.append(
            StepInterval(part="partial", name=name, start_ns=start_ns, end_ns=end_ns, why="no step holds it")
        )
    return intervals
