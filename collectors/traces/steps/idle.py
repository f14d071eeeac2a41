"""Why nothing ran: each gap in a rank's work, divided by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.traces.intervals import clip, length_ns
from collectors.traces.spans import Timeline
from collectors.traces.steps.idle_causes import CAUSES, Cause, IdleCauses, idle_causes
from collectors.traces.steps.launches import is_at_work
from collectors.traces.steps.stretches import Stretch, stretches
from collectors.traces.table import Cell, Column, Table

GAPS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleShare:
    """One stretch of one rank's trace. causes_ns: they add up to idle_ns; None where the trace cannot tell."""

    rank: int
    stretch: Stretch
    idle_ns: int
    causes_ns: Mapping[Cause, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One time in which nothing ran. after, before: what had ended and what began. cause: that of the most of it."""

    rank: int
    start_ns: int
    end_ns: int
    after: str
    before: str
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The stretches of all ranks, and the longest gaps of each rank's trace. notes: what is not known, and why."""

    shares: tuple[IdleShare, ...]
    longest: tuple[Gap, ...]
    notes: tuple[str, ...]

    def tables(self) -> tuple[Table, ...]:
        """The causes in the whole traces, in their steps, and the longest gaps."""
        begins_ns = {share.rank: share.stretch.start_ns for share in self.shares if share.stretch.part == "trace"}
        return (
            Table(
                name="causes",
                title="Why nothing ran, from each rank's first work to its last",
                columns=(Column(name="rank"), *_COLUMNS),
                rows=tuple((share.rank, *_cells(share)) for share in self.shares if share.stretch.part == "trace"),
            ),
            Table(
                name="steps",
                title="Why nothing ran in each step; a partial one is no step of its own or not whole",
                columns=(Column(name="rank"), Column(name="step"), Column(name="part"), *_COLUMNS),
                rows=tuple(
                    (share.rank, share.stretch.name, share.stretch.part, *_cells(share))
                    for share in self.shares
                    if share.stretch.part != "trace"
                ),
            ),
            Table(
                name="gaps",
                title=f"The {GAPS_SHOWN} longest gaps of each rank",
                columns=(
                    Column(name="rank"),
                    Column(name="start", unit="ns"),
                    Column(name="length", unit="ns"),
                    Column(name="cause"),
                    Column(name="after"),
                    Column(name="before"),
                ),
                rows=tuple(
                    (
                        gap.rank,
                        gap.start_ns - begins_ns[gap.rank],
                        gap.end_ns - gap.start_ns,
                        gap.cause,
                        gap.after,
                        gap.before,
                    )
                    for gap in self.longest
                ),
                notes=("start: after the rank's first work. cause: that of most of the gap.",),
            ),
        )


_COLUMNS = (
    Column(name="idle", unit="ns"),
    Column(name="idle_share", unit="ratio"),
    *(Column(name=cause, unit="ns") for cause in CAUSES),
)


def idle(timelines: Sequence[Timeline]) -> Idle:
    """The gaps of every rank by cause."""
    shares: list[IdleShare] = []
    longest: list[Gap] = []
    notes: list[str] = []
    for timeline in timelines:
        parts = stretches(timeline)
        if not parts:
            notes.append(f"rank {timeline.rank}: nothing computes, communicates or copies in its trace")
            continue
        start_ns, end_ns = min(part.start_ns for part in parts), max(part.end_ns for part in parts)
        found = idle_causes(timeline, start_ns, end_ns)
        shares += [_share(timeline.rank, part, found) for part in parts]
        longest += _longest(timeline, parts[0], found)
        if found.unknown:
            notes.append(
                f"rank {timeline.rank}: the trace holds no launch of what ends {found.unknown} of its gaps; they are"
                " other"
            )
        if not timeline.is_device:
            notes.append(
                f"rank {timeline.rank}: its trace has no device: nothing is launched ahead, and other is the host"
            )
    return Idle(shares=tuple(shares), longest=tuple(longest), notes=tuple(notes))


def _share(rank: int, stretch: Stretch, found: IdleCauses) -> IdleShare:
    return IdleShare(
        rank=rank,
        stretch=stretch,
        idle_ns=length_ns(clip(found.gaps, stretch.start_ns, stretch.end_ns)),
        causes_ns={
            cause: None if parts is None else length_ns(clip(parts, stretch.start_ns, stretch.end_ns))
            for cause, parts in found.by_cause.items()
        },
    )


def _longest(timeline: Timeline, trace: Stretch, found: IdleCauses) -> list[Gap]:
    """The longest gaps within the whole trace, where each has work on both sides."""
    inside = clip(found.gaps, trace.start_ns, trace.end_ns)
    rows = np.flatnonzero(is_at_work(timeline))
    by_end = rows[np.argsort(timeline.end_ns[rows], kind="stable")]
    gaps = []
    for number in np.argsort(inside[:, 0] - inside[:, 1], kind="stable")[:GAPS_SHOWN]:
        start_ns, end_ns = inside[number].tolist()
        after = by_end[np.searchsorted(timeline.end_ns[by_end], start_ns, side="left")]
        before = rows[np.searchsorted(timeline.start_ns[rows], end_ns, side="left")]
        lengths_ns = {
            cause: length_ns(clip(parts, start_ns, end_ns))
            for cause, parts in found.by_cause.items()
            if parts is not None
        }
        gaps.append(
            Gap(
                rank=timeline.rank,
                start_ns=start_ns,
                end_ns=end_ns,
                after=timeline.names[timeline.name[after]],
                before=timeline.names[timeline.name[before]],
                cause=max(lengths_ns, key=lambda cause: lengths_ns[cause]),
            )
        )
    return gaps


def _cells(share: IdleShare) -> tuple[Cell, ...]:
    lasts_ns = share.stretch.end_ns - share.stretch.start_ns
    return (
        share.idle_ns,
        share.idle_ns / lasts_ns if lasts_ns else None,
        *(share.causes_ns[cause] for cause in CAUSES),
    )
