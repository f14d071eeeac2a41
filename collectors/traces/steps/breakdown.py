"""How a traced step, or other stretch of a trace, divides into computation, communication, copies and nothing.

Time is a union: spans that overlap count once. Exact, in integer nanoseconds.
Source: HolisticTraceAnalysis, temporal breakdown and communication-computation overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from collectors.catalogue import communication as metrics
from collectors.metric import Sample
from collectors.traces.intervals import Times, clip, intersection, length_ns, union
from collectors.traces.names import collective_of
from collectors.traces.spans import ABSENT, KINDS, Timeline
from collectors.traces.steps.stretches import Stretch, steps

NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """One step, or other stretch, of one rank.

    step: which of them it is, from 0; step_ns: how long it lasts.
    communication_ns, overlap_ns, exposed_communication_ns: None where the whole trace holds no communication.
    exposed_copy_ns: None on the host, where a copy is an operator like others.
    idle_ns: nothing of all this ran.
    collectives_ns: of communication, by collective: the time in which it ran, and that in which computation did too.
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
        """The figures that are known, in seconds and as ratios of what their definitions name."""
        known = {
            metrics.TRACED_STEP_SECONDS: self.step_ns,
            metrics.COMPUTE_SECONDS: self.compute_ns,
            metrics.COMMUNICATION_SECONDS: self.communication_ns,
            metrics.OVERLAP_SECONDS: self.overlap_ns,
            metrics.EXPOSED_COMMUNICATION_SECONDS: self.exposed_communication_ns,
            metrics.EXPOSED_COPY_SECONDS: self.exposed_copy_ns,
            metrics.IDLE_SECONDS: self.idle_ns,
        }
        samples = [metric.at(value / 1e9) for metric, value in known.items() if value is not None]
        if self.communication_ns and self.overlap_ns is not None:
            samples.append(metrics.OVERLAP_RATIO.at(self.overlap_ns / self.communication_ns))
        if self.step_ns and self.exposed_communication_ns is not None:
            samples.append(metrics.EXPOSED_COMMUNICATION_RATIO.at(self.exposed_communication_ns / self.step_ns))
        for name, (run_ns, overlap_ns) in self.collectives_ns.items():
            samples.append(metrics.COLLECTIVE_SECONDS.at(run_ns / 1e9, collective=name))
            samples.append(metrics.COLLECTIVE_OVERLAP_RATIO.at(overlap_ns / run_ns, collective=name))
        return samples


def breakdowns(timeline: Timeline) -> list[Breakdown]:
    """One for each step that the trace holds whole, over its time on the device; numbered as they are marked."""
    marked = steps(timeline)
    divided = divide(timeline, marked)
    return [breakdown for breakdown, step in zip(divided, marked, strict=True) if step.part == "step"]


def divide(timeline: Timeline, parts: Sequence[Stretch]) -> list[Breakdown]:
    """One for each of these stretches, numbered in order."""
    compute, communication, copies = (timeline.intervals(kind) for kind in ("compute", "communication", "copy"))
    collectives = _intervals_of_collectives(timeline)
    return [
        _breakdown(
            number,
            part.end_ns - part.start_ns,
            clip(compute, part.start_ns, part.end_ns),
            clip(communication, part.start_ns, part.end_ns) if communication.size else None,
            clip(copies, part.start_ns, part.end_ns) if timeline.is_device else None,
            {name: clip(intervals, part.start_ns, part.end_ns) for name, intervals in collectives.items()},
        )
        for number, part in enumerate(parts)
    ]


def why_no_communication(timeline: Timeline) -> str | None:
    """The reason why communication is absent, with the names that were seen instead; None where there is some."""
    if timeline.intervals("communication").size:
        return None
    chosen = timeline.kind == KINDS.index("compute")
    numbers, counts = np.unique(timeline.name[chosen], return_counts=True)
    often = [timeline.names[numbers[index]] for index in np.argsort(-counts, kind="stable")[:NAMES_SHOWN]]
    seen = ", ".join(often) if often else "none"
    return f"no communication kernels found; names seen: {seen}"


def _intervals_of_collectives(timeline: Timeline) -> dict[str, Times]:
    """When each collective ran, in the order of their names."""
    rows = np.flatnonzero(timeline.of_kind("communication"))
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


def _breakdown(
    number: int,
    step_ns: int,
    compute: Times,
    communication: Times | None,
    copies: Times | None,
    collectives: Mapping[str, Times],
) -> Breakdown:
    busy = compute if communication is None else _together(compute, communication)
    everything = busy if copies is None else _together(busy, copies)
    overlap_ns = None if communication is None else length_ns(intersection(compute, communication))
    communication_ns = None if communication is None else length_ns(communication)
    return Breakdown(
        step=number,
        step_ns=step_ns,
        compute_ns=length_ns(compute),
        communication_ns=communication_ns,
        overlap_ns=overlap_ns,
        exposed_communication_ns=None
        if communication_ns is None or overlap_ns is None
        else communication_ns - overlap_ns,
        exposed_copy_ns=None if copies is None else length_ns(everything) - length_ns(busy),
        idle_ns=step_ns - length_ns(everything),
        collectives_ns={
            name: (length_ns(intervals), length_ns(intersection(compute, intervals)))
            for name, intervals in collectives.items()
            if intervals.size
        },
    )


def _together(one: Times, other: Times) -> Times:
    both = np.concatenate((one, other))
    return union(both[:, 0], both[:, 1])
