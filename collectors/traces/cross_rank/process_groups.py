"""Where one rank's collectives of a process group stand in another's, when their traces do not number them.

By the numbers of the steps they are in, where both traces tell these; else by what each collective is, and of several
places at which the kinds agree, by how evenly the ends then lie apart. Two clocks may differ by any constant.
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

# The median of moments, exact however large they are.


def median_ns(moments_ns: Times, axis: int = 0) -> Times:
    """The median along the axis, half a nanosecond cut off.

    A float holds moments near each other to the nanosecond only after what they have in common is taken off.
    """
    first_ns = np.take(moments_ns, [0], axis=axis)
    apart_ns: NDArray[np.float64] = np.median((moments_ns - first_ns).astype(np.float64), axis=axis)
    middle_ns: Times = np.take(first_ns, 0, axis=axis) + np.floor(apart_ns).astype(np.int64)
    return middle_ns


# Which spans of communication belong to which process group, and which to none that can be matched.

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The collectives of one process group on the ranks whose traces hold some.

    name: None where the traces do not tell groups; it then stands for all collectives of one name.
    ranks: those in the group; empty where the traces do not tell them. size: how many they are; None likewise.
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
    """What the span of communication is, by its name alone where its trace says nothing else."""
    number = int(timeline.call[row])
    return _named(timeline, row) if number == ABSENT else timeline.calls[number]


def groups(timelines: Mapping[int, Timeline]) -> tuple[list[Group], list[Stray]]:
    """All process groups of these ranks, and what belongs to none. timelines: by rank."""
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
    """The rank's communication, by what it says of itself."""
    chosen = np.flatnonzero(timeline.of_kind("communication"))
    called: dict[Call, list[Rows]] = defaultdict(list)
    # Calls and names are few, spans are many.
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
    """By a group's name the ranks in it; of several sets if unlike groups of one name are on unlike ranks."""
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
    """The one set of ranks, of this size where it is told, that this rank is in; empty where there is none, or more."""
    found = [ranks for ranks in told if rank in ranks and size in (None, len(ranks))]
    return found[0] if len(found) == 1 else ()


def _alike(call: Call) -> tuple[str | None, str]:
    """What collectives of one group share; without a group, order within all of one name is all there is to go by."""
    return call.group, call.collective if call.group is None else ""


def _told_sizes(calls: Mapping[int, Mapping[Call, Rows]]) -> dict[tuple[str | None, str], set[int]]:
    """The sizes that are told of a group whose ranks are not; several if unlike groups bear one name."""
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


# In which numbered step of its rank each collective was asked for.

_NUMBER = re.compile(r"#(\d+)$")


def step_numbers(timeline: Timeline, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of these rows the number in the name of the step; `ABSENT` outside of steps, and where steps have no number.

    A device runs behind its host: what it runs belongs to the step in which the host launched it, if that is told.
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
    """Of each marked step, in order, the number in its name; `ABSENT` where it has none."""
    names = timeline.name[timeline.of_kind("step")]
    return np.array([_number(timeline.names[name]) for name in names], dtype=np.int64)


def _number(name: str) -> int:
    found = _NUMBER.search(name)
    return int(found[1]) if found else ABSENT


TOLERANCE_NS = 5_000
"""The ends of one collective may lie so far apart; ends that lie apart so evenly tell no place from another."""

LEAST_SHARED = 3
"""The ends of fewer collectives lie apart evenly at any place."""

LEAST_AGREEMENT = 0.75
"""Of the collectives that two traces share, if they are in order: the share that is of one kind on both."""

MOST_SEPARATE = 0.1
"""Of one group's collectives, the share that one rank may seem to leave before another comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rank's collectives of a group, in order.

    kinds: equal numbers for what is alike on all ranks. steps: the number of the step of each; `ABSENT` where not told.
    """

    kinds: NDArray[np.int64]
    steps: NDArray[np.int64]
    start_ns: Times
    end_ns: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank's collectives stand in another's.

    later: how many collectives of the other rank are before its first, below 0 the other way round.
    is_told: by the numbers of steps. shared_ratio: of the shorter, those that have a counterpart.
    others: at how many other places they fit as well.
    """

    later: int
    is_told: bool = False
    shared_ratio: float = 1.0
    others: int = 0


def place_in(one: Row, other: Row) -> Place | None:
    """The place of the other in the one.

    By order at least half of the shorter must have a counterpart, and of places that are as good the nearest to 0 is
    taken; by the numbers of steps any. None: at no place do they agree, or they have no step in common.
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
    """Whether the trace tells the number of any step in which these collectives are."""
    return bool(_numbers_of_steps(row).size)


def _numbers_of_steps(row: Row) -> NDArray[np.int64]:
    return np.unique(row.steps[row.steps != ABSENT])


def _shift_by_steps(one: Row, other: Row, common: NDArray[np.int64]) -> int | None:
    """The shift at which most of these steps begin together; None where none is that of most, or kinds disagree."""
    mine, theirs = (np.array([np.argmax(row.steps == number) for number in common]) for row in (one, other))
    shifts, counts = np.unique(mine - theirs, return_counts=True)
    shift = int(shifts[counts.argmax()])
    is_most = 2 * counts.max() > common.size
    return shift if is_most and _agreement(one, other, shift) >= LEAST_AGREEMENT else None


def _fitting(one: Row, other: Row) -> list[int]:
    """The shifts at which they agree, the nearest to 0 first.

    Where ends lie apart evenly at 0, no other is looked at.
    """
    shifts = _within_reach(one, other)
    if 0 in shifts and _agreement(one, other, 0) == 1 and _unevenness_ns(one, other, 0) <= TOLERANCE_NS:
        return [0]
    agreements = [_agreement(one, other, shift) for shift in shifts]
    best = max(agreements, default=0.0)
    if best < LEAST_AGREEMENT:
        return []
    good = sorted((shift for shift, agreement in zip(shifts, agreements, strict=True) if agreement == best), key=abs)
    told = [shift for shift in good if _count(one, other, shift) >= LEAST_SHARED]
    if len(told) < 2:
        return told or good
    unevenness = [_unevenness_ns(one, other, shift) for shift in told]
    limit_ns = 2 * min(unevenness) + TOLERANCE_NS
    return [shift for shift, uneven_ns in zip(told, unevenness, strict=True) if uneven_ns <= limit_ns]


def are_together(one: Row, other: Row, shift: int) -> bool:
    """Whether both ranks were in nearly all of these collectives at one time, whatever their clocks show."""
    mine, theirs = _shared(one, other, shift)
    apart_ns = median_ns(one.end_ns[mine] - other.end_ns[theirs])
    start_ns, end_ns = other.start_ns[theirs] + apart_ns, other.end_ns[theirs] + apart_ns
    separate = (one.start_ns[mine] > end_ns + TOLERANCE_NS) | (start_ns > one.end_ns[mine] + TOLERANCE_NS)
    return bool(separate.mean() <= MOST_SEPARATE)


def _within_reach(one: Row, other: Row) -> range:
    """All shifts that leave at least half of the shorter in common."""
    mine, theirs = one.kinds.size, other.kinds.size
    least = max(1, -(-min(mine, theirs) // 2))
    return range(least - theirs, mine - least + 1) if min(mine, theirs) else range(0)


def _count(one: Row, other: Row, shift: int) -> int:
    """How many collectives both have."""
    return min(one.kinds.size - max(shift, 0), other.kinds.size - max(-shift, 0))


def _shared(one: Row, other: Row, shift: int) -> tuple[slice, slice]:
    """Those, of the one and of the other."""
    count = _count(one, other, shift)
    return slice(max(shift, 0), max(shift, 0) + count), slice(max(-shift, 0), max(-shift, 0) + count)


def _shared_ratio(one: Row, other: Row, shift: int) -> float:
    return _count(one, other, shift) / min(one.kinds.size, other.kinds.size)


def _agreement(one: Row, other: Row, shift: int) -> float:
    mine, theirs = _shared(one, other, shift)
    return float((one.kinds[mine] == other.kinds[theirs]).mean())


def _unevenness_ns(one: Row, other: Row, shift: int) -> float:
    """How far the ends lie apart, beyond what they do in the median: the median of that."""
    mine, theirs = _shared(one, other, shift)
    apart_ns = one.end_ns[mine] - other.end_ns[theirs]
    return float(np.median(np.abs(apart_ns - median_ns(apart_ns))))


# The place of each collective in the order of its process group, alike on all ranks of the group.

Places = NDArray[np.int64]

# The buffer that is as large on all ranks of a group; the other may differ, and in all_to_all both.
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

    places: by rank, of each of its rows; equal places are one collective. kinds: by rank, likewise; equal where the
    rows are alike in what must be alike on all ranks. is_numbered: the places are the traces' own numbers.
    notes: what was assumed.
    """

    group: Group
    places: Mapping[int, Places]
    kinds: Mapping[int, NDArray[np.int64]]
    is_numbered: bool
    notes: tuple[str, ...] = ()


def placed(group: Group, timelines: Mapping[int, Timeline]) -> list[Placed]:
    """The group in one common order, or in several, where ranks without a told group prove to be in several.

    A rank that agrees with no other is alone in its own.
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
    """Places by number; of several kernels with one number, in their order."""
    most = max(Counter(numbers.tolist()).most_common(1)[0][1] for numbers in sequences.values())
    places = {}
    for rank, numbers in sequences.items():
        order = np.argsort(numbers, kind="stable")
        _, first, counts = np.unique(numbers[order], return_index=True, return_counts=True)
        places[rank] = numbers * most
        places[rank][order] += np.arange(numbers.size) - np.repeat(first, counts)
    return places


def _sets(rows: Mapping[int, Row], *, is_told: bool) -> list[dict[int, Place]]:
    """Sets of ranks in one order, each with its place in that of the set's first rank.

    Ranks whose group is not told are in one set only where they really were in these collectives together.
    """
    # The longest comes first, so that the others lie within it as far as they can.
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
    """What was assumed of where traces begin."""
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
