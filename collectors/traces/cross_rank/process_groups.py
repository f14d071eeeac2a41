"""Process groups of the traced ranks, and the alignment of each group's collectives.

The ranks of a group call the same collectives in the same order, but their traces may begin at different ones. If all
traces tell sequence numbers, these give the common positions. Else each rank's sequence of collectives is aligned with
that of the longest trace, the reference, by a shift:

    position    0 1 2 3 4
    reference   A B C D E
    rank 1        B C D E     shift 1: its collective i is the reference's collective i + 1

The shift is told by the numbers of the steps that the collectives are in, if both traces have these; else by the kinds
of collectives. If the kinds agree at several shifts, those count at which the ends of the two ranks lie apart most
evenly; two clocks may differ by any constant.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import OTHER, collective_of
from collectors.traces.intervals import Times
from collectors.traces.steps import launch_of
from collectors.traces.timeline import ABSENT, Call, Timeline


def median_ns(moments_ns: Times, axis: int = 0) -> Times:
    """Return the median along the axis, rounded down to whole nanoseconds.

    Only differences to the first moment go through a float, which cannot hold Unix time to the nanosecond.
    """
    first_ns = np.take(moments_ns, [0], axis=axis)
    apart_ns: NDArray[np.float64] = np.median((moments_ns - first_ns).astype(np.float64), axis=axis)
    middle_ns: Times = np.take(first_ns, 0, axis=axis) + np.floor(apart_ns).astype(np.int64)
    return middle_ns


# Spans of communication by process group.

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """The collectives of one process group on the ranks whose traces hold some.

    name: None if the traces do not tell groups; the group then holds all collectives of one name.
    ranks: those in the group; empty if the traces do not tell. size: their number; None likewise.
    rows: by rank, ascending, the indices of its spans, in order.
    """

    name: str | None
    ranks: tuple[int, ...]
    rows: Mapping[int, Rows]
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmatchedSpans:
    """Spans of one rank that cannot be matched, and why."""

    rank: int
    rows: Rows
    reason: str


def call_of(timeline: Timeline, row: int) -> Call:
    """Return what a span of communication is, from its name alone if the trace tells nothing else."""
    number = int(timeline.call[row])
    if number == ABSENT:
        return Call(collective=collective_of(timeline.names[timeline.name[row]]))
    return timeline.calls[number]


def process_groups(timelines: Mapping[int, Timeline]) -> tuple[list[ProcessGroup], list[UnmatchedSpans]]:
    """Return all process groups of these ranks, and the spans that cannot be matched. timelines: by rank."""
    calls = {rank: _rows_by_call(timeline) for rank, timeline in sorted(timelines.items())}
    # What one rank's trace tells of a group's ranks and size counts for all ranks. Several entries of one name mean
    # that different groups share it.
    ranks_of: dict[str | None, set[tuple[int, ...]]] = defaultdict(set)
    sizes_of: dict[tuple[str | None, str], set[int]] = defaultdict(set)
    for timeline in timelines.values():
        for group_name, group_ranks in timeline.about.groups.items():
            ranks_of[group_name].add(tuple(group_ranks))
    for call in (call for of_rank in calls.values() for call in of_rank):
        if call.group is not None and call.ranks:
            ranks_of[call.group].add(call.ranks)
        if call.group_size is not None and not call.ranks:
            sizes_of[_shared_by_group(call)].add(call.group_size)
    rows: dict[tuple[str | None, tuple[int, ...], int | None, str], dict[int, list[Rows]]] = defaultdict(dict)
    unmatched = []
    for rank, of_rank in calls.items():
        for call, found in of_rank.items():
            if reason := _why_unmatched(call):
                unmatched.append(UnmatchedSpans(rank=rank, rows=found, reason=reason))
                continue
            fitting = [
                ranks for ranks in ranks_of[call.group] if rank in ranks and call.group_size in (None, len(ranks))
            ]
            members = call.ranks or (fitting[0] if len(fitting) == 1 else ())
            sizes = sizes_of[_shared_by_group(call)]
            size = len(members) or call.group_size or (min(sizes) if len(sizes) == 1 else None)
            name, collective = _shared_by_group(call)
            rows[name, members, size, collective].setdefault(rank, []).append(found)
    groups = [
        ProcessGroup(
            name=name,
            ranks=ranks,
            rows={rank: np.sort(np.concatenate(found)) for rank, found in of_group.items()},
            size=size,
        )
        for (name, ranks, size, _), of_group in rows.items()
    ]
    return groups, unmatched


def _rows_by_call(timeline: Timeline) -> dict[Call, Rows]:
    """Return the rank's communication: its rows, in order, by Call."""
    chosen = np.flatnonzero(timeline.of_kind("communication"))
    found: dict[Call, list[Rows]] = defaultdict(list)
    # One number for each pair of call and name, so that `call_of` is asked once per pair and not once per span.
    pairs = timeline.call[chosen].astype(np.int64) * len(timeline.names) + timeline.name[chosen]
    order = np.argsort(pairs, kind="stable")
    _, firsts = np.unique(pairs[order], return_index=True)
    for rows in np.split(chosen[order], firsts[1:]):
        if rows.size:
            found[call_of(timeline, int(rows[0]))].append(rows)
    return {call: np.sort(np.concatenate(rows)) for call, rows in found.items()}


def _shared_by_group(call: Call) -> tuple[str | None, str]:
    """Return what collectives of one group share: the group's name, or without one the collective's."""
    return call.group, call.collective if call.group is None else ""


def _why_unmatched(call: Call) -> str | None:
    """Return why spans of this Call cannot be matched with another rank's; None if they can be."""
    if call.collective == "send":
        if call.peer is None:
            return "a message from one rank to another, and the trace does not say which"
        return f"a message with rank {call.peer}; messages are not matched"
    if call.collective == OTHER:
        return "the trace does not say which collective it is"
    if len(call.ranks) == 1 or (not call.ranks and call.group_size == 1):
        return "its process group has no other rank"
    return None


# The number of the step in which each collective was launched.

_NUMBER = re.compile(r"#(\d+)$")


def step_numbers(timeline: Timeline, rows: Rows) -> NDArray[np.int64]:
    """Return for each row the number in the name of its step; `ABSENT` outside of steps, or if they have no numbers.

    A device runs behind its host: its work belongs to the step in which the host launched it, if the launch is known.
    """
    numbers = numbers_of_marks(timeline)
    if not (numbers != ABSENT).any():
        return np.full(rows.size, ABSENT, dtype=np.int64)
    launch = launch_of(timeline)[rows]
    launched_ns = timeline.start_ns[np.where(launch == ABSENT, rows, launch)]
    # The last step that began before the launch, if it had not ended by then.
    marked = np.flatnonzero(timeline.of_kind("step"))
    step = np.searchsorted(timeline.start_ns[marked], launched_ns, side="right") - 1
    is_inside = (step >= 0) & (launched_ns <= timeline.end_ns[marked][step])
    if timeline.about.clocks_differ:
        is_inside &= launch != ABSENT
    return np.where(is_inside, numbers[step], ABSENT)


def numbers_of_marks(timeline: Timeline) -> NDArray[np.int64]:
    """Return for each marked step, in order, the number in its name; `ABSENT` if it has none."""
    found = [_NUMBER.search(timeline.names[name]) for name in timeline.name[timeline.of_kind("step")]]
    return np.array([ABSENT if number is None else int(number[1]) for number in found], dtype=np.int64)


# Alignment of two ranks' sequences of collectives.

TOLERANCE_NS = 5_000
"""How far apart the ends of one collective may lie; shifts whose unevenness differs by less cannot be told apart."""

LEAST_SHARED = 3
"""The ends of fewer collectives lie apart evenly at any shift."""

LEAST_AGREEMENT = 0.75
"""The smallest share of the collectives in both traces that must be of one kind if the shift is right."""

MOST_SEPARATE = 0.1
"""The largest share of a group's collectives that one rank may seem to leave before another comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSequence:
    """One rank's collectives of a group, in order.

    kinds: numbers, equal for what is alike on all ranks. steps: the number of each one's step; `ABSENT` if not known.
    """

    kinds: NDArray[np.int64]
    steps: NDArray[np.int64]
    start_ns: Times
    end_ns: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Where one rank's sequence stands in the reference: its collective i is the reference's i + positions.

    positions: negative if this rank has some collectives before the reference's first.
    is_by_steps: whether the numbers of steps tell it. shared_ratio: the share of the shorter that has a counterpart.
    ties: at how many other shifts they fit as well.
    """

    positions: int
    is_by_steps: bool = False
    shared_ratio: float = 1.0
    ties: int = 0


def best_shift(reference: CollectiveSequence, other: CollectiveSequence) -> Shift | None:
    """Return the shift of the other; None if they agree at no shift, or have no step in common.

    Numbers of steps may tell any shift. Without them, at least half of the shorter must have a counterpart, and of
    equally good shifts the one nearest to 0 is taken.
    """
    steps, other_steps = (np.unique(one.steps[one.steps != ABSENT]) for one in (reference, other))
    is_by_steps, positions, ties = False, None, 0
    if steps.size and other_steps.size:
        common = np.intersect1d(steps, other_steps)
        if not common.size:
            return None
        positions = _shift_by_steps(reference, other, common)
        is_by_steps = positions is not None
    if positions is None:
        fitting = _shifts_by_kinds_and_ends(reference, other)
        if not fitting:
            return None
        positions, ties = fitting[0], len(fitting) - 1
    shared_ratio = _count_shared(reference, other, positions) / min(reference.kinds.size, other.kinds.size)
    return Shift(positions=positions, is_by_steps=is_by_steps, shared_ratio=shared_ratio, ties=ties)


def _shift_by_steps(reference: CollectiveSequence, other: CollectiveSequence, common: NDArray[np.int64]) -> int | None:
    """Return the shift at which most of the common steps begin together; None if none has most, or kinds disagree.

    Example: steps 4 4 5 5 6 6 in the reference and 5 5 6 6 in the other. Step 5 begins at 2 and at 0, step 6 at 4 and
    at 2: both tell the shift 2.
    """
    begins, other_begins = (
        np.array([np.argmax(one.steps == number) for number in common]) for one in (reference, other)
    )
    shifts, counts = np.unique(begins - other_begins, return_counts=True)
    shift = int(shifts[counts.argmax()])
    is_most = 2 * counts.max() > common.size
    return shift if is_most and _agreement(reference, other, shift) >= LEAST_AGREEMENT else None


def _shifts_by_kinds_and_ends(reference: CollectiveSequence, other: CollectiveSequence) -> list[int]:
    """Return the shifts at which the sequences agree best, the nearest to 0 first.

    If all kinds agree at 0 and the ends lie apart evenly there, no other shift is tried.

    Example, in us: kinds A A A A in the reference and A A A in the other agree at shifts 0 and 1. Ends tell more:

        reference ends at     0  30  40  90
        other ends at           530 540 590    its clock is 500 ahead
        apart at shift 0    530 510 550        uneven by 20: not the same collectives
        apart at shift 1        500 500 500    even: these are
    """
    size, other_size = reference.kinds.size, other.kinds.size
    if not min(size, other_size):
        return []
    # All shifts at which at least half of the shorter, rounded up, has a counterpart.
    half = (min(size, other_size) + 1) // 2
    shifts = range(half - other_size, size - half + 1)
    if 0 in shifts and _agreement(reference, other, 0) == 1 and _unevenness_ns(reference, other, 0) <= TOLERANCE_NS:
        return [0]
    # The shifts with the best agreement of kinds, if that is good enough.
    agreements = {shift: _agreement(reference, other, shift) for shift in sorted(shifts, key=abs)}
    best = max(agreements.values())
    if best < LEAST_AGREEMENT:
        return []
    agreeing = [shift for shift, agreement in agreements.items() if agreement == best]
    # Of these, the shifts whose ends lie apart about as evenly as at the best one.
    comparable = [shift for shift in agreeing if _count_shared(reference, other, shift) >= LEAST_SHARED]
    if len(comparable) < 2:
        return comparable or agreeing
    unevenness_ns = {shift: _unevenness_ns(reference, other, shift) for shift in comparable}
    limit_ns = 2 * min(unevenness_ns.values()) + TOLERANCE_NS
    return [shift for shift in comparable if unevenness_ns[shift] <= limit_ns]


def ran_together(reference: CollectiveSequence, other: CollectiveSequence, shift: int) -> bool:
    """Return whether both ranks were in nearly all shared collectives at the same time, whatever their clocks show."""
    mine, theirs = _shared(reference, other, shift)
    # Move the other's times by the median difference of the ends, which is that of the clocks.
    apart_ns = median_ns(reference.end_ns[mine] - other.end_ns[theirs])
    start_ns, end_ns = other.start_ns[theirs] + apart_ns, other.end_ns[theirs] + apart_ns
    is_before = reference.end_ns[mine] + TOLERANCE_NS < start_ns
    is_after = reference.start_ns[mine] > end_ns + TOLERANCE_NS
    return bool((is_before | is_after).mean() <= MOST_SEPARATE)


def _count_shared(reference: CollectiveSequence, other: CollectiveSequence, shift: int) -> int:
    """Return how many collectives both have at this shift."""
    return min(reference.kinds.size - max(shift, 0), other.kinds.size - max(-shift, 0))


def _shared(reference: CollectiveSequence, other: CollectiveSequence, shift: int) -> tuple[slice, slice]:
    """Return the collectives that both have, as a slice of the reference and of the other.

    Example: of 5 and 4 collectives at shift 1 these are 1 to 4 and 0 to 3; at shift -1, 0 to 2 and 1 to 3.
    """
    count = _count_shared(reference, other, shift)
    return slice(max(shift, 0), max(shift, 0) + count), slice(max(-shift, 0), max(-shift, 0) + count)


def _agreement(reference: CollectiveSequence, other: CollectiveSequence, shift: int) -> float:
    """Return the share of the shared collectives that are of one kind."""
    mine, theirs = _shared(reference, other, shift)
    return float((reference.kinds[mine] == other.kinds[theirs]).mean())


def _unevenness_ns(reference: CollectiveSequence, other: CollectiveSequence, shift: int) -> float:
    """Return the median absolute deviation of the differences between ends."""
    mine, theirs = _shared(reference, other, shift)
    apart_ns = reference.end_ns[mine] - other.end_ns[theirs]
    return float(np.median(np.abs(apart_ns - median_ns(apart_ns))))


# The common positions of a group's collectives, equal on all of its ranks.

_EQUAL_ON_ALL_RANKS = {
    "all_reduce": "given_elements",
    "broadcast": "given_elements",
    "reduce": "given_elements",
    "all_gather": "filled_elements",
    "reduce_scatter": "given_elements",
}
"""The buffer whose size is equal on all ranks of a group; the other may differ, and in all_to_all both may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedGroup:
    """Ranks of one group whose collectives have a common order.

    positions: by rank, one per row; rows with equal positions are one collective. kinds: by rank, one per row; equal if
    the rows are alike in all that must be alike on all ranks. is_numbered: whether sequence numbers tell the positions.
    notes: what was assumed.
    """

    positions: Mapping[int, NDArray[np.int64]]
    kinds: Mapping[int, NDArray[np.int64]]
    is_numbered: bool
    notes: tuple[str, ...] = ()


def aligned_groups(group: ProcessGroup, timelines: Mapping[int, Timeline]) -> list[AlignedGroup]:
    """Return the group in one common order, or in several if ranks of an unknown group prove to be in several.

    A rank that agrees with no other is alone in its order.
    """
    kinds = _kinds(group, timelines)
    numbers = {rank: timelines[rank].sequence[rows] for rank, rows in group.rows.items()}
    if all((of_rank != ABSENT).all() for of_rank in numbers.values()):
        return [AlignedGroup(positions=_positions_of(numbers), kinds=kinds, is_numbered=True)]
    sequences = {
        rank: CollectiveSequence(
            kinds=kinds[rank],
            steps=step_numbers(timelines[rank], rows),
            start_ns=timelines[rank].start_ns[rows],
            end_ns=timelines[rank].end_ns[rows],
        )
        for rank, rows in group.rows.items()
    }
    return [
        AlignedGroup(
            positions={rank: np.arange(group.rows[rank].size) + shift.positions for rank, shift in shifts.items()},
            kinds={rank: kinds[rank] for rank in shifts},
            is_numbered=False,
            notes=tuple(_notes(group, shifts)),
        )
        for shifts in _aligned_sets(sequences, is_named=group.name is not None)
    ]


def _kinds(group: ProcessGroup, timelines: Mapping[int, Timeline]) -> dict[int, NDArray[np.int64]]:
    """Return by rank and row one number for each (collective, dtype, elements of the buffer that must be equal)."""
    numbers: dict[tuple[str, str | None, int | None], int] = {}
    kinds = {}
    for rank, rows in group.rows.items():
        calls, first, which = np.unique(timelines[rank].call[rows], return_index=True, return_inverse=True)
        of_call = np.empty(calls.size, dtype=np.int64)
        for number, row in enumerate(rows[first].tolist()):
            call = call_of(timelines[rank], row)
            buffer = _EQUAL_ON_ALL_RANKS.get(call.collective)
            kind = (call.collective, call.dtype, None if buffer is None else getattr(call, buffer))
            of_call[number] = numbers.setdefault(kind, len(numbers))
        kinds[rank] = of_call[which]
    return kinds


def _positions_of(numbers: Mapping[int, NDArray[np.int64]]) -> dict[int, NDArray[np.int64]]:
    """Return positions by sequence number; several kernels with one number keep their order.

    Example: with most = 2, the numbers 7 7 8 get the positions 14 15 16.
    """
    most = max(Counter(of_rank.tolist()).most_common(1)[0][1] for of_rank in numbers.values())
    positions = {}
    for rank, of_rank in numbers.items():
        order = np.argsort(of_rank, kind="stable")
        _, first, counts = np.unique(of_rank[order], return_index=True, return_counts=True)
        positions[rank] = of_rank * most
        # Add each kernel's index among those with its number.
        positions[rank][order] += np.arange(of_rank.size) - np.repeat(first, counts)
    return positions


def _aligned_sets(sequences: Mapping[int, CollectiveSequence], *, is_named: bool) -> list[dict[int, Shift]]:
    """Return sets of ranks that share an order, each rank with its shift against the set's reference.

    If the traces do not name the group, ranks share a set only if they were in the collectives at the same time.
    """
    # The longest goes first and is the reference, so that the others lie within it as far as possible.
    ranks = sorted(sequences, key=lambda rank: -sequences[rank].kinds.size)
    sets: list[dict[int, Shift]] = []
    for rank in ranks:
        for shifts in sets:
            reference = sequences[next(iter(shifts))]
            shift = best_shift(reference, sequences[rank])
            if shift is not None and (is_named or ran_together(reference, sequences[rank], shift.positions)):
                shifts[rank] = shift
                break
        else:
            sets.append({rank: Shift(positions=0)})
    return [dict(sorted(shifts.items())) for shifts in sets]


def _notes(group: ProcessGroup, shifts: Mapping[int, Shift]) -> Iterator[str]:
    """Yield notes on where each trace is assumed to begin."""
    earliest = min(shift.positions for shift in shifts.values())
    for rank, shift in shifts.items():
        if shift.positions == earliest and not shift.ties:
            continue
        later = shift.positions - earliest
        begins = (
            f"group {group.name or 'without a name'}: rank {rank}'s trace begins {later} collectives after the earliest"
        )
        if shift.is_by_steps:
            yield f"{begins}, by the numbers of its steps"
            continue
        shared = "" if shift.shared_ratio == 1 else f", with {shift.shared_ratio:.0%} of the shorter trace in both"
        ties = f"; {shift.ties} other places fit as well" if shift.ties else ""
        yield f"{begins}, as their order fits best{shared}{ties}"
