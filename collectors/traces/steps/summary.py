"""Where each rank's time went: over its whole trace, in each step, and in what no step holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.traces.spans import Kind, Timeline
from collectors.traces.steps.breakdown import Breakdown, divide, why_no_communication
from collectors.traces.steps.stretches import Stretch, stretches
from collectors.traces.table import Cell, Column, Table

WORKING: tuple[Kind, ...] = ("compute", "communication", "copy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One stretch of one rank's trace.

    work_ns: the sum of the spans of each kind, as far as they lie in the stretch; without communication where the whole
    trace holds none, and without copies where it has no device.
    """

    rank: int
    stretch: Stretch
    breakdown: Breakdown
    work_ns: Mapping[Kind, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The stretches of all ranks, by rank and time. notes: what is not known, and why."""

    shares: tuple[Share, ...]
    notes: tuple[str, ...]

    def tables(self) -> tuple[Table, ...]:
        """The traces, their steps, and the collectives of each trace."""
        traces = [share for share in self.shares if share.stretch.part == "trace"]
        parts = [share for share in self.shares if share.stretch.part != "trace"]
        begins_ns = {share.rank: share.stretch.start_ns for share in traces}
        return (
            Table(
                name="traces",
                title="Where each rank's time went, from its first work to its last",
                columns=(Column(name="rank"), *_COLUMNS),
                rows=tuple((share.rank, *_cells(share)) for share in traces),
            ),
            Table(
                name="steps",
                title="Where the time of each step went; a partial one is no step of its own or not whole",
                columns=(
                    Column(name="rank"),
                    Column(name="step"),
                    Column(name="part"),
                    Column(name="why"),
                    Column(name="start", unit="ns"),
                    *_COLUMNS,
                ),
                rows=tuple(
                    (
                        share.rank,
                        share.stretch.name,
                        share.stretch.part,
                        share.stretch.why,
                        share.stretch.start_ns - begins_ns[share.rank],
                        *_cells(share),
                    )
                    for share in parts
                ),
                notes=(
                    "start: after the rank's first work.",
                    "why: of a partial one, what makes it so.",
                ),
            ),
            Table(
                name="collectives",
                title="How long each collective ran in the whole trace, and computation beside it",
                columns=(
                    Column(name="rank"),
                    Column(name="collective"),
                    Column(name="time", unit="ns"),
                    Column(name="overlap", unit="ns"),
                    Column(name="overlap_share", unit="ratio"),
                ),
                rows=tuple(
                    (share.rank, name, run_ns, overlap_ns, overlap_ns / run_ns)
                    for share in traces
                    for name, (run_ns, overlap_ns) in share.breakdown.collectives_ns.items()
                ),
            ),
        )


def summary(timelines: Sequence[Timeline]) -> Summary:
    """The division of every rank's time."""
    shares: list[Share] = []
    notes: list[str] = []
    for timeline in timelines:
        parts = stretches(timeline)
        works_ns = _works_ns(timeline, parts)
        shares += [
            Share(rank=timeline.rank, stretch=part, breakdown=breakdown, work_ns=work_ns)
            for part, breakdown, work_ns in zip(parts, divide(timeline, parts), works_ns, strict=True)
        ]
        notes += [f"rank {timeline.rank}: {reason}" for reason in _reasons(timeline, parts)]
    return Summary(shares=tuple(shares), notes=tuple(notes))


_COLUMNS = (
    Column(name="span", unit="ns"),
    Column(name="compute", unit="ns"),
    Column(name="communication", unit="ns"),
    Column(name="overlap", unit="ns"),
    Column(name="exposed_communication", unit="ns"),
    Column(name="exposed_copies", unit="ns"),
    Column(name="idle", unit="ns"),
    Column(name="overlap_share", unit="ratio"),
    Column(name="exposed_share", unit="ratio"),
    Column(name="idle_share", unit="ratio"),
    Column(name="compute_work", unit="ns"),
    Column(name="communication_work", unit="ns"),
    Column(name="copy_work", unit="ns"),
)
"""overlap_share: of communication; the other shares are of the span."""


def _cells(share: Share) -> tuple[Cell, ...]:
    found = share.breakdown
    return (
        found.step_ns,
        found.compute_ns,
        found.communication_ns,
        found.overlap_ns,
        found.exposed_communication_ns,
        found.exposed_copy_ns,
        found.idle_ns,
        _ratio(found.overlap_ns, found.communication_ns),
        _ratio(found.exposed_communication_ns, found.step_ns),
        _ratio(found.idle_ns, found.step_ns),
        *(share.work_ns.get(kind) for kind in WORKING),
    )


def _ratio(part_ns: int | None, whole_ns: int | None) -> float | None:
    return part_ns / whole_ns if part_ns is not None and whole_ns else None


def _reasons(timeline: Timeline, parts: Sequence[Stretch]) -> list[str]:
    """What is not known of this rank, and why."""
    if not parts:
        return ["nothing computes, communicates or copies in its trace"]
    reasons = []
    if (reason := why_no_communication(timeline)) is not None:
        reasons.append(reason)
    if not timeline.is_device:
        reasons.append("its trace has no device: operators of the host compute, and copies are among them")
    if not timeline.of_kind("step").any():
        reasons.append("no step is marked in its trace")
    return reasons


def _works_ns(timeline: Timeline, parts: Sequence[Stretch]) -> list[dict[Kind, int]]:
    """Per stretch the sum of the spans of each kind in it.

    The work until a moment is the sum of all that ended by then, and of what began by then up to it; of a stretch it
    is the difference between its end and its start.
    """
    known: dict[Kind, bool] = {
        "compute": True,
        "communication": bool(timeline.intervals("communication").size),
        "copy": timeline.is_device,
    }
    works_ns: list[dict[Kind, int]] = [{} for _ in parts]
    if not parts:
        return works_ns
    origin_ns = int(timeline.start_ns.min())
    moments_ns = np.array([(part.start_ns, part.end_ns) for part in parts], dtype=np.int64) - origin_ns
    for kind in (kind for kind in WORKING if known[kind]):
        chosen = timeline.of_kind(kind)
        work_ns = np.zeros(moments_ns.shape, dtype=np.int64)
        for sign, edges_ns in ((1, timeline.start_ns[chosen]), (-1, timeline.end_ns[chosen])):
            sorted_ns = np.sort(edges_ns) - origin_ns
            sums_ns = np.concatenate(([0], np.cumsum(sorted_ns)))
            passed = np.searchsorted(sorted_ns, moments_ns, side="right")
            work_ns += sign * (passed * moments_ns - sums_ns[passed])
        for number, (before, after) in enumerate(work_ns):
            works_ns[number][kind] = int(after - before)
    return works_ns
