"""Process groups of the traced ranks, and one common order for the collectives of each group.

The order is by sequence numbers if the traces tell them. Else one rank's collectives are aligned with another's, by a
shift: by the numbers of the steps that they are in, if both traces tell these; else by the kinds of collectives. If the
kinds agree at several shifts, those count whose ends lie apart most evenly; two clocks may differ by any constant.

Example: rank 0's trace holds A B C D E and rank 1's B C D E. At shift 1 all four of rank 1's agree with rank 0's, so
rank 1's trace begins one collective later.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

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
class Group:
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
class Stray:
    """Spans of one rank that cannot be matched, and why."""

    rank: int
    rows: Rows
    reason: str


def call_of(timeline: Timeline, row: int) -> Call:
    """Return what a span of communication is, from its name alone if the trace tells nothing else."""
    number = int(timeline.call[row])
    return _named(timeline, row) if number == ABSENT else timeline.calls[number]


def groups(timelines: Mapping[int, Timeline]) -> tuple[list[Group], list[Stray]]:
    """Return all process groups of these ranks, and the spans that cannot be matched. timelines: by rank."""
    calls = {rank: _calls(timeline) for rank, timeline in sorted(timelines.items())}
    told = _told_ranks(timelines, calls)
    sizes = _told_sizes(calls)
    rows: dict[tuple[str | None, tuple[int, ...], int | None, str], dict[int, list[Rows]]] = defaultdict(dict)
    strays = []
    for rank, called in calls.items():
        for call, found in called.items():
            if reason := _why_stray(call):
                strays.append(Stray(rank=rank, rows=found, reason=reason))
                continue
            members = call.ranks or _only(told.get(call.group, set()), rank, call.group_size)
            size = len(members) or call.group_size or _only_size(sizes[_alike(call)])
            rows[call.group, members, size, _alike(call)[1]].setdefault(rank, []).append(found)
    found_groups = [
        Group(
            name=name,
            ranks=ranks,
            rows={rank: np.sort(np.concatenate(parts)) for rank, parts in of_rank.items()},
            size=size,
        )
        for (name, ranks, size, _), of_rank in rows.items()
    ]
    return found_groups, strays


def _calls(timeline: Timeline) -> dict[Call, Rows]:
    """Return the rank's communication: its rows by Call."""
    chosen = np.flatnonzero(timeline.of_kind("communication"))
    called: dict[Call, list[Rows]] = defaultdict(list)
    # One number for each pair of call and name, so that `call_of` is asked once per pair and not once per span.
    kinds = timeline.call[chosen].astype(np.int64) * len(timeline.names) + timeline.name[chosen]
    order = np.argsort(kinds, kind="stable")
    _, firsts = np.unique(kinds[order], return_index=True)
    for rows in np.split(chosen[order], firsts[1:]):
        if rows.size:
            called[call_of(timeline, int(rows[0]))].append(rows)
    return {call: np.sort(np.concatenate(parts)) for call, parts in called.items()}


def _named(timeline: Timeline, row: int) -> Call:
    return Call(collective=collective_of(timeline.names[timeline.name[row]]))


def _told_ranks(
    timelines: Mapping[int, Timeline], calls: Mapping[int, Mapping[Call, Rows]]
) -> dict[str | None, set[tuple[int, ...]]]:
    """Return the ranks of a group by its name; several sets if different groups share the name."""
    told: dict[str | None, set[tuple[int, ...]]] = defaultdict(set)
    for timeline in timelines.values():
        for name, ranks in timeline.about.groups.items():
            told[name].add(tuple(ranks))
    for called in calls.values():
        for call in called:
            if call.group is not None and call.ranks:
                told[call.group].add(call.ranks)
    return told


def _only(told: set[tuple[int, ...]], rank: int, size: int | None) -> tuple[int, ...]:
    """Return the one set that holds this rank, and has this size if it is known; empty if none or several do."""
    found = [ranks for ranks in told if rank in ranks and size in (None, len(ranks))]
    return found[0] if len(found) == 1 else ()


def _alike(call: Call) -> tuple[str | None, str]:
    """Return what collectives of one group share: the group's name, or without one the collective's."""
    return call.group, call.collective if call.group is None else ""


def _told_sizes(calls: Mapping[int, Mapping[Call, Rows]]) -> dict[tuple[str | None, str], set[int]]:
    """Return the sizes of groups whose ranks are not told; several if different groups share a name."""
    told: dict[tuple[str | None, str], set[int]] = defaultdict(set)
    for called in calls.values():
        for call in called:
            if call.group_size is not None and not call.ranks:
                told[_alike(call)].add(call.group_size)
    return told


def _only_size(told: set[int]) -> int | None:
    return next(iter(told)) if len(told) == 1 else None


def _why_stray(call: Call) -> str | None:
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


def step_numbers(timeline: Timeline, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each row the number in the name of its step; `ABSENT` outside of steps, or if they have no numbers.

    A device runs behind its host: its work belongs to the step in which the host launched it, if the launch is known.
    """
    marked = np.flatnonzero(timeline.of_kind("step"))
    numbers = numbers_of_marks(timeline)
    absent = np.full(rows.size, ABSENT, dtype=np.int64)
    if not (numbers != ABSENT).any():
        return absent
    launch = launch_of(timeline)[rows]
    asked_ns = timeline.start_ns[np.where(launch == ABSENT, rows, launch)]
    place = np.searchsorted(timeline.start_ns[marked], asked_ns, side="right") - 1
    is_inside = (place >= 0) & (asked_ns <= timeline.end_ns[marked][place])
    found: NDArray[np.int64] = np.where(is_inside, numbers[place], absent)
    return found


def numbers_of_marks(timeline: Timeline) -> NDArray[np.int64]:
    """Return for each marked step, in order, the number in its name; `ABSENT` if it has none."""
    names = timeline.name[timeline.of_kind("step")]
    return np.array([_number(timeline.names[name]) for name in names], dtype=np.int64)


def _number(name: str) -> int:
    found = _NUMBER.search(name)
    return int(found[1]) if found else ABSENT


# Alignment of two ranks' collectives. A shift s means: collective i of the other rank is collective i + s of the one.

TOLERANCE_NS = 5_000
"""How far apart the ends of one collective may lie; shifts whose unevenness differs by less cannot be told apart."""

LEAST_SHARED = 3
"""The ends of fewer collectives lie apart evenly at any shift."""

LEAST_AGREEMENT = 0.75
"""The smallest share of the collectives in both traces that must be of one kind if the shift is right."""

MOST_SEPARATE = 0.1
"""The largest share of a group's collectives that one rank may seem to leave before another comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rank's collectives of a group, in order.

    kinds: numbers, equal for what is alike on all ranks. steps: the number of each one's step; `ABSENT` if not known.
    """

    kinds: NDArray[np.int64]
    steps: NDArray[np.int64]
    start_ns: Times
    end_ns: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank's collectives stand in another's.

    later: the shift: how many collectives the other rank has before this one's first; negative if this one has some
    before the other's.
    is_told: whether the numbers of steps tell it. shared_ratio: the share of the shorter that has a counterpart.
    others: at how many other shifts they fit as well.
    """

    later: int
    is_told: bool = False
    shared_ratio: float = 1.0
    others: int = 0


def place_in(one: Row, other: Row) -> Place | None:
    """Return the place of the other in the one; None if they agree at no shift, or have no step in common.

    Numbers of steps may tell any shift. Without them, at least half of the shorter must have a counterpart, and of
    equally good shifts the one nearest to 0 is taken.
    """
    if _has_numbers(one) and _has_numbers(other):
        common = np.intersect1d(_numbers_of_steps(one), _numbers_of_steps(other))
        if not common.size:
            return None
        shift = _shift_by_steps(one, other, common)
        if shift is not None:
            return Place(later=shift, is_told=True, shared_ratio=_shared_ratio(one, other, shift))
    fitting = _fitting(one, other)
    if not fitting:
        return None
    return Place(later=fitting[0], shared_ratio=_shared_ratio(one, other, fitting[0]), others=len(fitting) - 1)


def _has_numbers(row: Row) -> bool:
    """Return whether the trace tells the number of any step of these collectives."""
    return bool(_numbers_of_steps(row).size)


def _numbers_of_steps(row: Row) -> NDArray[np.int64]:
    return np.unique(row.steps[row.steps != ABSENT])


def _shift_by_steps(one: Row, other: Row, common: NDArray[np.int64]) -> int | None:
    """Return the shift at which most of the common steps begin together; None if none has most, or kinds disagree."""
    # The first collective of each common step, on either rank.
    mine, theirs = (np.array([np.argmax(row.steps == number) for number in common]) for row in (one, other))
    shifts, counts = np.unique(mine - theirs, return_counts=True)
    shift = int(shifts[counts.argmax()])
    is_most = 2 * counts.max() > common.size
    return shift if is_most and _agreement(one, other, shift) >= LEAST_AGREEMENT else None


def _fitting(one: Row, other: Row) -> list[int]:
    """Return the shifts at which they agree best, the nearest to 0 first.

    If all kinds agree at 0 and the ends lie apart evenly there, no other shift is tried.
    """
    shifts = _within_reach(one, other)
    if 0 in shifts and _agreement(one, other, 0) == 1 and _unevenness_ns(one, other, 0) <= TOLERANCE_NS:
        return [0]
    # The shifts with the best agreement of kinds, if that is good enough.
    agreements = [_agreement(one, other, shift) for shift in shifts]
    best = max(agreements, default=0.0)
    if best < LEAST_AGREEMENT:
        return []
    good = sorted((shift for shift, agreement in zip(shifts, agreements, strict=True) if agreement == best), key=abs)
    # Of these, the shifts whose ends lie apart about as evenly as at the best one.
    told = [shift for shift in good if _count(one, other, shift) >= LEAST_SHARED]
    if len(told) < 2:
        return told or good
    unevenness = [_unevenness_ns(one, other, shift) for shift in told]
    limit_ns = 2 * min(unevenness) + TOLERANCE_NS
    return [shift for shift, uneven_ns in zip(told, unevenness, strict=True) if uneven_ns <= limit_ns]


def are_together(one: Row, other: Row, shift: int) -> bool:
    """Return whether both ranks were in nearly all shared collectives at the same time, whatever their clocks show."""
    mine, theirs = _shared(one, other, shift)
    # Move the other's times by the median difference of the ends, which is that of the clocks.
    apart_ns = median_ns(one.end_ns[mine] - other.end_ns[theirs])
    start_ns, end_ns = other.start_ns[theirs] + apart_ns, other.end_ns[theirs] + apart_ns
    separate = (one.start_ns[mine] > end_ns + TOLERANCE_NS) | (start_ns > one.end_ns[mine] + TOLERANCE_NS)
    return bool(separate.mean() <= MOST_SEPARATE)


def _within_reach(one: Row, other: Row) -> range:
    """Return all shifts at which at least half of the shorter has a counterpart."""
    mine, theirs = one.kinds.size, other.kinds.size
    least = max(1, -(-min(mine, theirs) // 2))
    return range(least - theirs, mine - least + 1) if min(mine, theirs) else range(0)


def _count(one: Row, other: Row, shift: int) -> int:
    """Return how many collectives both have at this shift."""
    return min(one.kinds.size - max(shift, 0), other.kinds.size - max(-shift, 0))


def _shared(one: Row, other: Row, shift: int) -> tuple[slice, slice]:
    """Return the collectives that both have, as a slice of the one and of the other."""
    count = _count(one, other, shift)
    return slice(max(shift, 0), max(shift, 0) + count), slice(max(-shift, 0), max(-shift, 0) + count)


def _shared_ratio(one: Row, other: Row, shift: int) -> float:
    return _count(one, other, shift) / min(one.kinds.size, other.kinds.size)


def _agreement(one: Row, other: Row, shift: int) -> float:
    mine, theirs = _shared(one, other, shift)
    return float((one.kinds[mine] == other.kinds[theirs]).mean())


def _unevenness_ns(one: Row, other: Row, shift: int) -> float:
    """Return the median absolute deviation of the differences between ends."""
    mine, theirs = _shared(one, other, shift)
    apart_ns = one.end_ns[mine] - other.end_ns[theirs]
    return float(np.median(np.abs(apart_ns - median_ns(apart_ns))))


# Places: the common order of a group's collectives, equal on all of its ranks.

Places = NDArray[np.int64]

# The buffer whose size is equal on all ranks of a group; the other may differ, and in all_to_all both may.
_ALIKE = {
    "all_reduce": "given_elements",
    "broadcast": "given_elements",
    "reduce": "given_elements",
    "all_gather": "filled_elements",
    "reduce_scatter": "given_elements",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Ranks of one group whose collectives have a common order.

    places: by rank, one per row; rows with equal places are one collective. kinds: by rank, one per row; equal if the
    rows are alike in all that must be alike on all ranks. is_numbered: whether sequence numbers tell the places.
    notes: what was assumed.
    """

    group: Group
    places: Mapping[int, Places]
    kinds: Mapping[int, NDArray[np.int64]]
    is_numbered: bool
    notes: tuple[str, ...] = ()


def placed(group: Group, timelines: Mapping[int, Timeline]) -> list[Placed]:
    """Return the group in one common order, or in several if ranks of an unknown group prove to be in several.

    A rank that agrees with no other is alone in its order.
    """
    kinds = _kinds(group, timelines)
    sequences = {rank: timelines[rank].sequence[rows] for rank, rows in group.rows.items()}
    if all((numbers != ABSENT).all() for numbers in sequences.values()):
        return [Placed(group=group, places=_places_by_number(sequences), kinds=kinds, is_numbered=True)]
    rows = {
        rank: Row(
            kinds=kinds[rank],
            steps=step_numbers(timelines[rank], found),
            start_ns=timelines[rank].start_ns[found],
            end_ns=timelines[rank].end_ns[found],
        )
        for rank, found in group.rows.items()
    }
    return [_ordered(group, found, kinds) for found in _sets(rows, is_told=group.name is not None)]


def _kinds(group: Group, timelines: Mapping[int, Timeline]) -> dict[int, NDArray[np.int64]]:
    # One number for each (collective, dtype, elements of the buffer that must be equal), over all ranks.
    numbers: dict[tuple[str, str | None, int | None], int] = {}
    kinds = {}
    for rank, rows in group.rows.items():
        timeline = timelines[rank]
        of_call = {}
        for number, first in zip(*np.unique(timeline.call[rows], return_index=True), strict=True):
            call = call_of(timeline, int(rows[first]))
            elements = getattr(call, _ALIKE[call.collective]) if call.collective in _ALIKE else None
            of_call[int(number)] = numbers.setdefault((call.collective, call.dtype, elements), len(numbers))
        kinds[rank] = np.array([of_call[int(number)] for number in timeline.call[rows]], dtype=np.int64)
    return kinds


def _places_by_number(sequences: Mapping[int, NDArray[np.int64]]) -> dict[int, Places]:
    """Return places by sequence number; several kernels with one number keep their order.

    Example: with most = 2, the numbers 7 7 8 get the places 14 15 16.
    """
    most = max(Counter(numbers.tolist()).most_common(1)[0][1] for numbers in sequences.values())
    places = {}
    for rank, numbers in sequences.items():
        order = np.argsort(numbers, kind="stable")
        _, first, counts = np.unique(numbers[order], return_index=True, return_counts=True)
        places[rank] = numbers * most
        # Add each kernel's index among those with its number.
        places[rank][order] += np.arange(numbers.size) - np.repeat(first, counts)
    return places


def _sets(rows: Mapping[int, Row], *, is_told: bool) -> list[dict[int, Place]]:
    """Return sets of ranks that share an order, each rank with its place in the set's first rank.

    If the group is not told, ranks share a set only if they were in the collectives at the same time.
    """
    # The longest goes first, so that the others lie within it as far as possible.
    ranks = sorted(rows, key=lambda rank: -rows[rank].kinds.size)
    sets: list[dict[int, Place]] = []
    for rank in ranks:
        for one in sets:
            first = rows[next(iter(one))]
            place = place_in(first, rows[rank])
            if place is not None and (is_told or are_together(first, rows[rank], place.later)):
                one[rank] = place
                break
        else:
            sets.append({rank: Place(later=0)})
    return sets


def _ordered(group: Group, found: Mapping[int, Place], kinds: Mapping[int, NDArray[np.int64]]) -> Placed:
    ranks = sorted(found)
    part = replace(group, rows={rank: group.rows[rank] for rank in ranks})
    return Placed(
        group=part,
        places={rank: np.arange(group.rows[rank].size) + found[rank].later for rank in ranks},
        kinds={rank: kinds[rank] for rank in ranks},
        is_numbered=False,
        notes=tuple(_notes(group, found)),
    )


def _notes(group: Group, found: Mapping[int, Place]) -> Iterator[str]:
    """Yield notes on where each trace is assumed to begin."""
    earliest = min(place.later for place in found.values())
    for rank, place in sorted(found.items()):
        if place.later == earliest and not place.others:
            continue
        begins = f"group {group.name or 'not told'}: rank {rank}'s trace begins {place.later - earliest} collectives"
        if place.is_told:
            yield f"{begins} after the earliest, by the numbers of its steps"
            continue
        shared = "" if place.shared_ratio == 1 else f", with {place.shared_ratio:.0%} of the shorter trace in both"
        others = f"; {place.others} other places fit as well" if place.others else ""
        yield f"{begins} after the earliest, as their order fits best{shared}{others}"
