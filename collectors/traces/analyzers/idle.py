"""Idle time: each gap in a rank's work, divided by cause.

A gap ends when the next work starts. Its causes, by who was late:

- The host, until it launched that work: its thread loaded data (`data_loading`), waited in a call of the driver
  (`synchronisation`), or did something else (`host_bound`).
- The device, after that. Work is ready when its launch has returned and the previous work on its stream has ended. If
  it starts at most `LAUNCH_GAP_NS` later, the gap is the usual time of a launch (`launch_gap`). Otherwise something
  held it: a collective, if one on another stream ended just as the gap began (`collective`), or an unknown reason
  (`other`).

A device that waits inside a communication kernel is not idle; that wait counts as communication. Alongside a device,
gloo runs on the host, and nothing launches its work: the host is to blame for a whole gap before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import DATA_LOADING
from collectors.traces.intervals import Times, clip, gaps, intersection, length_ns, union, union_of, without
from collectors.traces.steps import LONG_AGO, StepInterval, is_at_work, is_of_gloo, launches, step_intervals
from collectors.traces.table import Cell, Table, table_of
from collectors.traces.timeline import ABSENT, SpanKind, Timeline

IdleCause = Literal["host_bound", "data_loading", "synchronisation", "launch_gap", "collective", "other"]
CAUSES: tuple[IdleCause, ...] = get_args(IdleCause)

LAUNCH_GAP_NS = 10_000
"""Maximum usual time of a launch. In traces of V100, A100 and MI300X, 99 % of the work that nothing holds starts within
4 us of the return of its launch, and within 10 us of the end of the previous work on its stream."""

SYNCHRONISATION = re.compile(r"Synchronize|^(cuda|hip)Memcpy(WithStream)?$")
"""Driver calls of CUDA and HIP that return only when the device has finished the work they wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCauses:
    """The gaps of a rank by cause.

    by_cause: disjoint parts that together make up all gaps; None if the trace cannot show the cause.
    unknown: number of gaps that end with work whose launch the trace lacks; they are in `other`.
    """

    gaps: Times
    by_cause: Mapping[IdleCause, Times | None]
    unknown: int = 0


def idle_causes(timeline: Timeline, start_ns: int, end_ns: int) -> IdleCauses:
    """Return the gaps within a window of a rank's trace, by cause.

    In a trace without a device only data loading is distinguished, since nothing is launched ahead. If the clocks of
    device and host differ, no cause is reported.
    """
    rows = np.flatnonzero(is_at_work(timeline))
    free = gaps(union(timeline.start_ns[rows], timeline.end_ns[rows]), start_ns, end_ns)
    if not timeline.is_device:
        loading = _named(timeline, DATA_LOADING, "host")
        unknown: dict[IdleCause, Times | None] = dict.fromkeys(CAUSES)
        return IdleCauses(
            gaps=free,
            by_cause=unknown | {"data_loading": intersection(free, loading), "other": without(free, loading)},
        )
    if timeline.about.clocks_differ:
        return IdleCauses(gaps=free, by_cause=dict.fromkeys(CAUSES) | {"other": free})
    launched = launches(timeline)
    # For each gap the row of the work that ends it; `ABSENT` if none follows.
    work = np.append(rows, ABSENT)[np.searchsorted(timeline.start_ns[rows], free[:, 1], side="left")]
    is_known = (work != ABSENT) & launched.is_known[work]
    # After the last work the host launched nothing more; before work with an unknown launch the cause is unknown.
    is_host = (work == ABSENT) | is_of_gloo(timeline)[work]
    # Until from_ns, the start of the next work's launch, the host is late; for the rest of the gap, the device is.
    from_ns = np.where(is_host, free[:, 1], np.clip(launched.start_ns[work], free[:, 0], free[:, 1]))
    late = np.stack((free[:, 0], from_ns), axis=1)
    rest = np.stack((from_ns, free[:, 1]), axis=1)
    ready_ns = np.maximum(launched.end_ns, _freed_ns(timeline, rows))[work]
    is_soon = is_known & (free[:, 1] - ready_ns <= LAUNCH_GAP_NS)
    # A collective on the device ended just as the gap began. Work after a collective on the same stream is ready only
    # when that has ended, so its ready_ns is not before the gap.
    collective_ends_ns = timeline.end_ns[timeline.of_kind("communication") & ~is_of_gloo(timeline)]
    is_collective = is_known & ~is_soon & (ready_ns < free[:, 0]) & np.isin(free[:, 0], collective_ends_ns)
    # The late thread is the one that launched the next work or, if unknown, the one that launched last.
    calls = launched.calls
    last_thread = np.append(timeline.stream[calls], ABSENT)[np.searchsorted(timeline.start_ns[calls], free[:, 1]) - 1]
    thread = np.where(is_known, timeline.stream[launched.row[work]], last_thread)
    return IdleCauses(
        gaps=free,
        by_cause={
            **_causes_on_host(timeline, late, thread),
            "launch_gap": _lasting(rest[is_soon]),
            "collective": _lasting(rest[is_collective]),
            "other": _lasting(rest[~is_soon & ~is_collective]),
        },
        unknown=int((~is_host & ~is_known).sum()),
    )


def _freed_ns(timeline: Timeline, rows: NDArray[np.int64]) -> Times:
    """Return for each span when the previous work on its stream had ended; `LONG_AGO` for the first span."""
    freed_ns = np.full(timeline.name.size, LONG_AGO)
    for stream in np.unique(timeline.stream[rows]):
        on_stream = rows[timeline.stream[rows] == stream]
        freed_ns[on_stream[1:]] = np.maximum.accumulate(timeline.end_ns[on_stream])[:-1]
    return freed_ns


def _causes_on_host(timeline: Timeline, late: Times, thread: NDArray[np.int64]) -> dict[IdleCause, Times | None]:
    """Divide the time in which the host was late by the activity of the late thread.

    Data loading has precedence over waiting in the driver, and that over everything else. thread: per gap.
    """
    parts: dict[IdleCause, list[Times]] = {"data_loading": [], "synchronisation": [], "host_bound": []}
    for number in np.unique(thread):
        mine = _lasting(late[thread == number])
        loading = _named(timeline, DATA_LOADING, "host", number)
        waiting = _named(timeline, SYNCHRONISATION, "launch", number)
        busy = without(mine, loading)
        parts["data_loading"].append(intersection(mine, loading))
        parts["synchronisation"].append(intersection(busy, waiting))
        parts["host_bound"].append(without(busy, waiting))
    return {cause: union_of(pieces) for cause, pieces in parts.items()}


def _named(timeline: Timeline, rule: re.Pattern[str], kind: SpanKind, thread: int | None = None) -> Times:
    """Return when spans of this kind ran whose names match the rule, on the given thread or on any."""
    is_known = np.array([rule.search(name) is not None for name in timeline.names], dtype=np.bool_)
    chosen = timeline.of_kind(kind) & is_known[timeline.name]
    if thread is not None:
        chosen &= timeline.stream == thread
    return union(timeline.start_ns[chosen], timeline.end_ns[chosen])


def _lasting(intervals: Times) -> Times:
    return intervals[intervals[:, 1] > intervals[:, 0]]


GAPS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleShare:
    """The idle time of an interval of a rank's trace.

    causes_ns: add up to idle_ns; None if the trace cannot show the cause.
    """

    rank: int
    stretch: StepInterval
    idle_ns: int
    causes_ns: Mapping[IdleCause, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A gap. after, before: names of the work before and after it. cause: of the largest part."""

    rank: int
    start_ns: int
    end_ns: int
    after: str
    before: str
    cause: IdleCause


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The idle time of all ranks' intervals, and each rank's longest gaps. notes: what is unknown, and why."""

    shares: tuple[IdleShare, ...]
    longest: tuple[Gap, ...]
    notes: tuple[str, ...]

    def tables(self) -> tuple[Table, ...]:
        """Return the causes in the whole traces and in their steps, and the longest gaps."""
        begins_ns = {share.rank: share.stretch.start_ns for share in self.shares if share.stretch.part == "trace"}
        return (
            table_of(
                "causes",
                "Why nothing ran, from each rank's first work to its last",
                f"rank {_FIGURES}",
                [(share.rank, *_figures(share)) for share in self.shares if share.stretch.part == "trace"],
            ),
            table_of(
                "steps",
                "Why nothing ran in each step; partial: not a complete step of its own",
                f"rank step part {_FIGURES}",
                [
                    (share.rank, share.stretch.name, share.stretch.part, *_figures(share))
                    for share in self.shares
                    if share.stretch.part != "trace"
                ],
            ),
            table_of(
                "gaps",
                f"The {GAPS_SHOWN} longest gaps of each rank",
                "rank start_ns length_ns cause after before",
                [
                    (
                        gap.rank,
                        gap.start_ns - begins_ns[gap.rank],
                        gap.end_ns - gap.start_ns,
                        gap.cause,
                        gap.after,
                        gap.before,
                    )
                    for gap in self.longest
                ],
                "start: after the rank's first work. cause: that of most of the gap.",
            ),
        )


_FIGURES = " ".join(("idle_ns", "idle_share_ratio", *(f"{cause}_ns" for cause in CAUSES)))


def _figures(share: IdleShare) -> tuple[Cell, ...]:
    span_ns = share.stretch.end_ns - share.stretch.start_ns
    idle_ratio = share.idle_ns / span_ns if span_ns else None
    return (share.idle_ns, idle_ratio, *(share.causes_ns[cause] for cause in CAUSES))


def idle(timelines: Sequence[Timeline]) -> Idle:
    """Return the idle time of every rank by cause."""
    shares: list[IdleShare] = []
    longest: list[Gap] = []
    notes: list[str] = []
    for timeline in timelines:
        parts = step_intervals(timeline)
        if not parts:
            notes.append(f"rank {timeline.rank}: nothing computes, communicates or copies in its trace")
            continue
        start_ns, end_ns = min(part.start_ns for part in parts), max(part.end_ns for part in parts)
        causes = idle_causes(timeline, start_ns, end_ns)
        shares += [_share(timeline.rank, part, causes) for part in parts]
        longest += _longest(timeline, parts[0], causes)
        if causes.unknown:
            notes.append(
                f"rank {timeline.rank}: the trace lacks the launch of the work that ends {causes.unknown} of its gaps;"
                " they count as other"
            )
        if timeline.about.clocks_differ:
            notes.append(
                f"rank {timeline.rank}: host and device have different clocks, so causes are unknown and all idle time"
                " counts as other"
            )
        if not timeline.is_device:
            notes.append(
                f"rank {timeline.rank}: its trace has no device, so nothing is launched ahead, and other is the host"
            )
    return Idle(shares=tuple(shares), longest=tuple(longest), notes=tuple(notes))


def _share(rank: int, stretch: StepInterval, causes: IdleCauses) -> IdleShare:
    return IdleShare(
        rank=rank,
        stretch=stretch,
        idle_ns=length_ns(clip(causes.gaps, stretch.start_ns, stretch.end_ns)),
        causes_ns={
            cause: None if parts is None else length_ns(clip(parts, stretch.start_ns, stretch.end_ns))
            for cause, parts in causes.by_cause.items()
        },
    )


def _longest(timeline: Timeline, trace: StepInterval, causes: IdleCauses) -> list[Gap]:
    """Return the longest gaps within the whole trace; each has work on both sides."""
    inside = clip(causes.gaps, trace.start_ns, trace.end_ns)
    rows = np.flatnonzero(is_at_work(timeline))
    by_end = rows[np.argsort(timeline.end_ns[rows], kind="stable")]
    gaps = []
    for number in np.argsort(inside[:, 0] - inside[:, 1], kind="stable")[:GAPS_SHOWN]:
        start_ns, end_ns = inside[number].tolist()
        after = by_end[np.searchsorted(timeline.end_ns[by_end], start_ns, side="left")]
        before = rows[np.searchsorted(timeline.start_ns[rows], end_ns, side="left")]
        lengths_ns = {
            cause: length_ns(clip(parts, start_ns, end_ns))
            for cause, parts in causes.by_cause.items()
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
