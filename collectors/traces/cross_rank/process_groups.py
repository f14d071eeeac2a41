"""Process groups of the traced ranks, and the alignment of each group's collectives.

The ranks of a group call the same collectives in the same order, but their traces may begin at different ones. If all
traces have sequence numbers, these give the common positions. Otherwise each rank's sequence of collectives is aligned
with that of the longest trace, the reference, by a shift:

    position    0 1 2 3 4
    reference   A B C D E
    rank 1        B C D E     shift 1: its collective i is the reference's collective i + 1

The shift follows from the numbers of the collectives' steps, if both ranks have them; otherwise from the collectives'
kinds. If the kinds agree at several shifts, the shift wins at which the ends of the two ranks lie most evenly apart;
two clocks may differ by any constant.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from collectors.traces.cross_rank.collective_order import (
    CollectiveSequence,
    Shift,
    best_shift,
    ran_together,
)
from collectors.traces.cross_rank.lost_collectives import PlacedCalls, places_of
from collectors.traces.event_names import OTHER, collective_of
from collectors.traces.steps import launch_of
from collectors.traces.timeline import ABSENT, Call, Timeline

# Spans of communication by process group.

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """The collectives of a process group on the ranks whose traces contain some.

    name: None if the traces do not name groups; the group then has all collectives with the same name.
    ranks: of the group; empty if the traces do not list them. size: their number; None if unknown.
    rows: by rank, ascending, the indices of its spans, in order.
    """

    name: str | None
    ranks: tuple[int, ...]
    rows: Mapping[int, Rows]
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmatchedSpans:
    """Spans of a rank that cannot be matched, and why."""

    rank: int
    rows: Rows
    reason: str


def call_of(timeline: Timeline, row: int) -> Call:
    """Return the call of a span of communication; derived from its name if the trace has nothing else."""
    number = int(timeline.call[row])
    if number == ABSENT:
        return Call(collective=collective_of(timeline.names[timeline.name[row]]))
    return timeline.calls[number]


def process_groups(timelines: Mapping[int, Timeline]) -> tuple[list[ProcessGroup], list[UnmatchedSpans]]:
    """Return all process groups of these ranks, and the spans that cannot be matched. timelines: by rank."""
    calls = {rank: _rows_by_call(timeline) for rank, timeline in sorted(timelines.items())}
    # A group's ranks and size in one rank's trace hold for all ranks. Several entries for a name mean that different
    # groups share it.
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
        for call, spans in of_rank.items():
            if reason := _why_unmatched(call):
                unmatched.append(UnmatchedSpans(rank=rank, rows=spans, reason=reason))
                continue
            fitting = [
                ranks for ranks in ranks_of[call.group] if rank in ranks and call.group_size in (None, len(ranks))
            ]
            members = call.ranks or (fitting[0] if len(fitting) == 1 else ())
            sizes = sizes_of[_shared_by_group(call)]
            size = len(members) or call.group_size or (min(sizes) if len(sizes) == 1 else None)
            name, collective = _shared_by_group(call)
            rows[name, members, size, collective].setdefault(rank, []).append(spans)
    groups = [
        ProcessGroup(
            name=name,
            ranks=ranks,
            rows={rank: np.sort(np.concatenate(spans)) for rank, spans in of_group.items()},
            size=size,
        )
        for (name, ranks, size, _), of_group in rows.items()
    ]
    return groups, unmatched


def _rows_by_call(timeline: Timeline) -> dict[Call, Rows]:
    """Return the rows of the rank's communication, in order, by Call."""
    chosen = np.flatnonzero(timeline.of_kind("communication"))
    by_call: dict[Call, list[Rows]] = defaultdict(list)
    # A number for each pair of call and name, so that `call_of` runs once per pair and not once per span.
    pairs = timeline.call[chosen].astype(np.int64) * len(timeline.names) + timeline.name[chosen]
    order = np.argsort(pairs, kind="stable")
    _, firsts = np.unique(pairs[order], return_index=True)
    for rows in np.split(chosen[order], firsts[1:]):
        if rows.size:
            by_call[call_of(timeline, int(rows[0]))].append(rows)
    return {call: np.sort(np.concatenate(rows)) for call, rows in by_call.items()}


def _shared_by_group(call: Call) -> tuple[str | None, str]:
    """Return the key that a group's collectives share: the group's name, or without one the collective's name."""
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
    """Return for each row the number in the name of its step; `ABSENT` outside steps, or if steps have no numbers.

    A device lags behind its host: its work belongs to the step in which the host launched it, if the launch is known.
    """
    numbers = numbers_of_marks(timeline)
    if not (numbers != ABSENT).any():
        return np.full(rows.size, ABSENT, dtype=np.int64)
    launch = launch_of(timeline)[rows]
    launched_ns = timeline.start_ns[np.where(launch == ABSENT, rows, launch)]
    # The last step that began before the launch, unless it had ended by then.
    marked = np.flatnonzero(timeline.of_kind("step"))
    step = np.searchsorted(timeline.start_ns[marked], launched_ns, side="right") - 1
    is_inside = (step >= 0) & (launched_ns <= timeline.end_ns[marked][step])
    if timeline.about.clocks_differ:
        is_inside &= launch != ABSENT
    return np.where(is_inside, numbers[step], ABSENT)


def numbers_of_marks(timeline: Timeline) -> NDArray[np.int64]:
    """Return for each marked step, in order, the number in its name; `ABSENT` if it has none."""
    matches = [_NUMBER.search(timeline.names[name]) for name in timeline.name[timeline.of_kind("step")]]
    return np.array([ABSENT if number is None else int(number[1]) for number in matches], dtype=np.int64)


# The common positions of a group's collectives, equal on all of its ranks.

_EQUAL_ON_ALL_RANKS = {
    "all_reduce": "given_elements",
    "broadcast": "given_elements",
    "reduce": "given_elements",
    "all_gather": "filled_elements",
    "reduce_scatter": "given_elements",
}
"""The buffer whose size is equal on all ranks of a group; the other may differ. In all_to_all both may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedGroup:
    """Ranks of a group whose collectives have a common order.

    positions: by rank, one per row; rows with equal positions are the same collective. kinds: by rank, one per row;
    equal if everything is equal that must be on all ranks. is_numbered: whether positions are from sequence numbers.
    is_unsure: by rank, the rows that could be any of several collectives, since a trace lost some.
    notes: assumptions.
    """

    positions: Mapping[int, NDArray[np.int64]]
    kinds: Mapping[int, NDArray[np.int64]]
    is_numbered: bool
    is_unsure: Mapping[int, NDArray[np.bool_]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def aligned_groups(group: ProcessGroup, timelines: Mapping[int, Timeline]) -> list[AlignedGroup]:
    """Return the group in a common order; in several orders if the group is unknown and its ranks prove to be several.

    A rank that agrees with no other has an order of its own.
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
    groups = []
    for shifts in _aligned_sets(sequences, is_named=group.name is not None):
        reference = next(rank for rank in _longest_first(sequences) if rank in shifts)
        places = {
            rank: places_of(sequences[reference], sequences[rank], shift)
            for rank, shift in shifts.items()
            if rank != reference
        }
        shifts |= {
            rank: replace(shifts[rank], positions=calls.begins, ties=0)
            for rank, calls in places.items()
            if calls.begins is not None
        }
        own = np.arange(sequences[reference].kinds.size)
        groups.append(
            AlignedGroup(
                positions={rank: places[rank].positions if rank in places else own for rank in shifts},
                kinds={rank: kinds[rank] for rank in shifts},
                is_numbered=False,
                is_unsure={rank: calls.is_unsure for rank, calls in places.items()},
                notes=(*_notes(group, shifts), *_lost(group, places, reference)),
            )
        )
    return groups


def _longest_first(sequences: Mapping[int, CollectiveSequence]) -> list[int]:
    return sorted(sequences, key=lambda rank: -sequences[rank].kinds.size)


def _lost(group: ProcessGroup, places: Mapping[int, PlacedCalls], reference: int) -> Iterator[str]:
    """Yield a note on each trace that lost collectives, and on collectives that are ambiguous for that reason."""
    name = group.name or "without a name"
    for rank, calls in places.items():
        for lost, owner, loser in ((calls.lost, reference, rank), (calls.lost_by_reference, rank, reference)):
            if lost:
                yield (
                    f"group {name}: {lost} collective{'s' * (lost > 1)} of rank {owner} {'are' if lost > 1 else 'is'}"
                    f" missing from the trace of rank {loser}: the next are matched by their steps and ends"
                )
        if unsure := int(calls.is_unsure.sum()):
            yield (
                f"group {name}: {unsure} collective{'s' * (unsure > 1)} of rank {rank} could be any of several of rank"
                f" {reference}, since a trace lost some; left out of all figures"
            )


def _kinds(group: ProcessGroup, timelines: Mapping[int, Timeline]) -> dict[int, NDArray[np.int64]]:
    """Return by rank and row a number for its (collective, dtype, elements of the buffer that must be equal)."""
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
    """Return positions by sequence number; several kernels with the same number keep their order.

    Example: with most = 2, the numbers 7 7 8 get the positions 14 15 16.
    """
    most = max(Counter(of_rank.tolist()).most_common(1)[0][1] for of_rank in numbers.values())
    positions = {}
    for rank, of_rank in numbers.items():
        order = np.argsort(of_rank, kind="stable")
        _, first, counts = np.unique(of_rank[order], return_index=True, return_counts=True)
        positions[rank] = of_rank * most
        # Add each kernel's index among those with the same number.
        positions[rank][order] += np.arange(of_rank.size) - np.repeat(first, counts)
    return positions


def _aligned_sets(sequences: Mapping[int, CollectiveSequence], *, is_named: bool) -> list[dict[int, Shift]]:
    """Return sets of ranks with a common order, each rank with its shift against the set's reference.

    If the traces do not name the group, ranks share a set only if they were in the collectives at the same time.
    """
    # The longest sequence is the reference, so that it contains the others as far as possible.
    ranks = _longest_first(sequences)
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
    """Yield notes on the assumed start of each trace."""
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
        shared = (
            "" if shift.shared_ratio == 1 else f", with {100 * shift.shared_ratio:.0f} % of the shorter trace in both"
        )
        ties = f"; {shift.ties} other places fit as well" if shift.ties else ""
        yield f"{begins}, as their order fits best{shared}{ties}"
