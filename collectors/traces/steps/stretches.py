"""The stretches of a trace that figures are given for: all of it, each of its steps, and what no step holds.

A step is marked on the host, and the device runs behind the host. So a step begins and ends on the device at the
moment when all that the host had launched before its own beginning and end is done, but no earlier than on the host.
Where the host waits for the device at the end of a step, and where there is no device, both are the same. Steps that
follow each other on the host follow each other on the device: no moment is in two, and none between them is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from collectors.traces.gaps import gaps
from collectors.traces.intervals import Times, clip, union
from collectors.traces.spans import Timeline
from collectors.traces.steps.launches import LONG_AGO, Launches, is_at_work, launches
from collectors.traces.steps.lost_work import lost_work

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
