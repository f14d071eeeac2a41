"""Where each rank's time went: over its whole trace, in each step, and outside the steps.

Time is a union: overlapping spans count once. Work is the sum of durations. Both are exact, in integer nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.traces.breakdown import Breakdown, divide, why_no_communication
from collectors.traces.event_names import RECORD
from collectors.traces.steps import StepInterval, step_intervals, steps
from collectors.traces.table import Cell, Table, table_of
from collectors.traces.timeline import SpanKind, Timeline

WORKING: tuple[SpanKind, ...] = ("compute", "communication", "copy")


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSummary:
    """An interval of a rank's trace.

    work_ns: by kind, the sum of the spans' durations within the interval; without communication if the whole trace has
    none, and without copies if it has no device.
    """

    rank: int
    stretch: StepInterval
    breakdown: Breakdown
    work_ns: Mapping[SpanKind, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """The step intervals of all ranks, sorted by rank and time.

    decided_by: by rank and name of a kernel or copy that communicates, the rule that classified it.
    notes: what is unknown, and why.
    """

    shares: tuple[IntervalSummary, ...]
    decided_by: Mapping[tuple[int, str], str]
    notes: tuple[str, ...]

    def tables(self) -> tuple[Table, ...]:
        """Return the traces, their steps, the collectives of each trace, and the rules that classified them."""
        traces = [share for share in self.shares if share.stretch.part == "trace"]
        begins_ns = {share.rank: share.stretch.start_ns for share in traces}
        return (
            table_of(
                "traces",
                "Where each rank's time went, from its first work to its last",
                f"rank {_FIGURES}",
                [(share.rank, *_figures(share)) for share in traces],
            ),
            table_of(
                "steps",
                "Where the time of each step went; partial: not a complete step of its own",
                f"rank step part why start_ns {_FIGURES}",
                [
                    (
                        share.rank,
                        share.stretch.name,
                        share.stretch.part,
                        share.stretch.why,
                        share.stretch.start_ns - begins_ns[share.rank],
                        *_figures(share),
                    )
                    for share in self.shares
                    if share.stretch.part != "trace"
                ],
                "start: after the rank's first work.",
                "why: what makes a step partial.",
            ),
            table_of(
                "collectives",
                "How long each collective ran in the whole trace, and how long computation overlapped it",
                "rank collective time_ns overlap_ns overlap_share_ratio",
                [
                    (share.rank, name, run_ns, overlap_ns, overlap_ns / run_ns)
                    for share in traces
                    for name, (run_ns, overlap_ns) in share.breakdown.collectives_ns.items()
                ],
            ),
            table_of(
                "rules",
                "The rule that marked each kernel or copy as communication",
                "rank name decided_by",
                [(rank, name, rule) for (rank, name), rule in self.decided_by.items()],
                f"{RECORD}: torch's operator around the launch; else the name, by the library that gives it",
            ),
        )


def summary(timelines: Sequence[Timeline]) -> TraceSummary:
    """Return the division of every rank's time."""
    shares: list[IntervalSummary] = []
    notes: list[str] = []
    for timeline in timelines:
        parts = step_intervals(timeline)
        works_ns = _works_ns(timeline, parts)
        shares += [
            IntervalSummary(rank=timeline.rank, stretch=part, breakdown=breakdown, work_ns=work_ns)
            for part, breakdown, work_ns in zip(parts, divide(timeline, parts), works_ns, strict=True)
        ]
        notes += [f"rank {timeline.rank}: {reason}" for reason in _unknown(timeline, parts)]
    rules = {(timeline.rank, name): rule for timeline in timelines for name, rule in timeline.about.decided_by.items()}
    return TraceSummary(shares=tuple(shares), decided_by=rules, notes=tuple(notes))


_FIGURES = (
    "span_ns compute_ns communication_ns overlap_ns exposed_communication_ns exposed_copies_ns idle_ns"
    " overlap_share_ratio exposed_share_ratio idle_share_ratio compute_work_ns communication_work_ns copy_work_ns"
)
"""overlap_share: share of communication; the other shares refer to the span."""


def _figures(share: IntervalSummary) -> tuple[Cell, ...]:
    breakdown = share.breakdown
    return (
        breakdown.step_ns,
        breakdown.compute_ns,
        breakdown.communication_ns,
        breakdown.overlap_ns,
        breakdown.exposed_communication_ns,
        breakdown.exposed_copy_ns,
        breakdown.idle_ns,
        _ratio(breakdown.overlap_ns, breakdown.communication_ns),
        _ratio(breakdown.exposed_communication_ns, breakdown.step_ns),
        _ratio(breakdown.idle_ns, breakdown.step_ns),
        *(share.work_ns.get(kind) for kind in WORKING),
    )


def _ratio(part_ns: int | None, whole_ns: int | None) -> float | None:
    return part_ns / whole_ns if part_ns is not None and whole_ns else None


def _unknown(timeline: Timeline, parts: Sequence[StepInterval]) -> Iterator[str]:
    """Yield what is unknown about this rank, and why."""
    if not parts:
        yield "nothing computes, communicates or copies in its trace"
        for step in steps(timeline):
            yield f"{step.name} is partial: {step.why}"
        return
    if (reason := why_no_communication(timeline)) is not None:
        yield reason
    if not timeline.is_device:
        yield "its trace has no device: operators of the host compute, and copies are among them"
    if not timeline.of_kind("step").any():
        yield "no step is marked in its trace"


def _works_ns(timeline: Timeline, parts: Sequence[StepInterval]) -> list[dict[SpanKind, int]]:
    """Return for each interval the sum of the spans' durations in it, by kind.

    This is the work before the interval's end minus the work before its start. The work before a moment t is the sum of
    t - start over spans that started by t, minus the sum of t - end over spans that ended by t: spans [0, 4) and [2, 9)
    have (5 + 3) - 1 = 7 before t = 5.
    """
    works_ns: list[dict[SpanKind, int]] = [{} for _ in parts]
    if not parts:
        return works_ns
    origin_ns = int(timeline.start_ns.min())
    moments_ns = np.array([(part.start_ns, part.end_ns) for part in parts], dtype=np.int64) - origin_ns
    known: list[SpanKind] = ["compute"]
    if timeline.intervals("communication").size:
        known.append("communication")
    if timeline.is_device:
        known.append("copy")
    for kind in known:
        chosen = timeline.of_kind(kind)
        work_ns = np.zeros(moments_ns.shape, dtype=np.int64)
        for sign, edges_ns in ((1, timeline.start_ns[chosen]), (-1, timeline.end_ns[chosen])):
            sorted_ns = np.sort(edges_ns) - origin_ns
            sums_ns = np.concatenate(([0], np.cumsum(sorted_ns)))
            # The sum of t - edge over all edges before t, from their number and their sum.
            passed = np.searchsorted(sorted_ns, moments_ns, side="right")
            work_ns += sign * (passed * moments_ns - sums_ns[passed])
        for number, (before, after) in enumerate(work_ns):
            works_ns[number][kind] = int(after - before)
    return works_ns
