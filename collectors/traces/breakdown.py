"""Divides the time of a rank's steps into computation, communication, copies and idle time.

Overlapping spans count once. Times are exact, in integer nanoseconds.
Source: HolisticTraceAnalysis, temporal breakdown and communication-computation overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from collectors.metrics import rank as rank_metrics
from collectors.metrics.metric import Sample
from collectors.traces.event_names import collective_of
from collectors.traces.intervals import Times, clip, intersection, length_ns, union, union_of
from collectors.traces.steps import StepInterval, steps
from collectors.traces.timeline import ABSENT, KINDS, Timeline

NAMES_SHOWN = 5
NAME_LENGTH = 60
"""Maximum length of a kernel's name in a message; names of templates may have hundreds of characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The time of a rank's step, or of another interval.

    step: its number, from 0. step_ns: its length.
    communication_ns, overlap_ns, exposed_communication_ns: None if the whole trace has no communication.
    exposed_copy_ns: time in which only copies ran; None without a device, where copies are ordinary operators.
    idle_ns: time in which none of these ran.
    collectives_ns: by collective, the time in which it ran, and its overlap with computation.
    """

    step: int
    step_ns: int
    compute_ns: int
    communication_ns: int | None
    overlap_ns: int | None
    exposed_communication_ns: int | None
    exposed_copy_ns: int | None
    idle_ns: int
    collectives_ns: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def samples(self) -> list[Sample]:
        """Return the known values as samples, in seconds and as ratios."""
        known = {
            rank_metrics.TRACED_STEP_SECONDS: self.step_ns,
            rank_metrics.COMPUTE_SECONDS: self.compute_ns,
            rank_metrics.COMMUNICATION_SECONDS: self.communication_ns,
            rank_metrics.OVERLAP_SECONDS: self.overlap_ns,
            rank_metrics.EXPOSED_COMMUNICATION_SECONDS: self.exposed_communication_ns,
            rank_metrics.EXPOSED_COPY_SECONDS: self.exposed_copy_ns,
            rank_metrics.IDLE_SECONDS: self.idle_ns,
        }
        samples = [metric.at(value / 1e9) for metric, value in known.items() if value is not None]
        if self.communication_ns and self.overlap_ns is not None:
            samples.append(rank_metrics.OVERLAP_RATIO.at(self.overlap_ns / self.communication_ns))
        if self.step_ns and self.exposed_communication_ns is not None:
            samples.append(rank_metrics.EXPOSED_COMMUNICATION_RATIO.at(self.exposed_communication_ns / self.step_ns))
        for name, (run_ns, overlap_ns) in self.collectives_ns.items():
            samples.append(rank_metrics.COLLECTIVE_SECONDS.at(run_ns / 1e9, collective=name))
            samples.append(rank_metrics.COLLECTIVE_OVERLAP_RATIO.at(overlap_ns / run_ns, collective=name))
        return samples


def breakdowns(timeline: Timeline) -> list[Breakdown]:
    """Return the breakdown of each whole step, over its time on the device; numbers count all marked steps."""
    marked = steps(timeline)
    return [breakdown for breakdown, step in zip(divide(timeline, marked), marked, strict=True) if step.part == "step"]


def divide(timeline: Timeline, parts: Sequence[StepInterval]) -> list[Breakdown]:
    """Return the breakdown of each of these intervals, numbered in order."""
    compute, communication, copies = (timeline.intervals(kind) for kind in ("compute", "communication", "copy"))
    collectives = _intervals_of_collectives(timeline)
    has_communication = communication.size > 0
    breakdowns = []
    for number, part in enumerate(parts):
        bounds_ns = part.start_ns, part.end_ns
        computing, communicating = clip(compute, *bounds_ns), clip(communication, *bounds_ns)
        busy = union_of([computing, communicating])
        # Without a device, copies are ordinary operators and count as computation.
        everything = union_of([busy, clip(copies, *bounds_ns)]) if timeline.is_device else busy
        communication_ns, overlap_ns = length_ns(communicating), length_ns(intersection(computing, communicating))
        of_collectives = {name: clip(intervals, *bounds_ns) for name, intervals in collectives.items()}
        breakdowns.append(
            Breakdown(
                step=number,
                step_ns=part.end_ns - part.start_ns,
                compute_ns=length_ns(computing),
                communication_ns=communication_ns if has_communication else None,
                overlap_ns=overlap_ns if has_communication else None,
                exposed_communication_ns=communication_ns - overlap_ns if has_communication else None,
                exposed_copy_ns=length_ns(everything) - length_ns(busy) if timeline.is_device else None,
                idle_ns=part.end_ns - part.start_ns - length_ns(everything),
                collectives_ns={
                    name: (length_ns(intervals), length_ns(intersection(computing, intervals)))
                    for name, intervals in of_collectives.items()
                    if intervals.size
                },
            )
        )
    return breakdowns


def why_no_communication(timeline: Timeline) -> str | None:
    """Return why there is no communication, with the most frequent kernel names; None if there is some."""
    if timeline.intervals("communication").size:
        return None
    chosen = timeline.kind == KINDS.index("compute")
    numbers, counts = np.unique(timeline.name[chosen], return_counts=True)
    often = [timeline.names[numbers[index]] for index in np.argsort(-counts, kind="stable")[:NAMES_SHOWN]]
    # The template arguments in a kernel's name may be pages of C++.
    shown = ", ".join(name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 3]}..." for name in often) or "none"
    return f"no communication kernels found; names seen: {shown}"


def _intervals_of_collectives(timeline: Timeline) -> dict[str, Times]:
    """Return the intervals in which each collective ran, sorted by name."""
    rows = np.flatnonzero(timeline.of_kind("communication"))
    # The collective of each distinct pair of call and name; `which` has the pair of each row.
    called, which = np.unique(np.stack((timeline.call[rows], timeline.name[rows])), axis=1, return_inverse=True)
    collectives = [
        collective_of(timeline.names[name]) if call == ABSENT else timeline.calls[call].collective
        for call, name in called.T.tolist()
    ]
    intervals = {}
    for collective in sorted(set(collectives)):
        is_this = np.array([name == collective for name in collectives], dtype=np.bool_)
        chosen = rows[is_this[which.ravel()]]
        intervals[collective] = union(timeline.start_ns[chosen], timeline.end_ns[chosen])
    return intervals
