"""Lost collectives: matches one rank's collectives with another's if traces lost some in between.

A profiler may lose any collective, which in a trace without sequence numbers moves all later ones by one place.
Collectives that both traces certainly share are anchors; a collective between two anchors has a place if both have the
same shift, otherwise none. Undecidable matches are reported as unsure, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.cross_rank.collective_order import (
    LEAST_SHARED,
    TOLERANCE_NS,
    CollectiveSequence,
    Shift,
    agreement,
    count_shared,
    ran_together,
    uneven_by_ns,
)
from collectors.traces.intervals import Times
from collectors.traces.timeline import ABSENT

MOST_LOST = 4
"""Clocks are compared with collectives that are at most this many places away from the shift."""

LEAST_EVEN = 0.75
"""Minimum share of the shorter sequence whose ends must lie evenly apart to determine the distance of the clocks."""

LEAST_SPACING = 8
"""The tolerance for ends is at most the time between two collectives divided by this; more would fit by chance."""

LEAST_LEAD = 2
"""The distance of two clocks must fit this many more collectives than any other, since one end may fit by chance."""

NO_PLACE = -(2**40)
"""Place of a sequence's first collective if it has none; later ones count up from it, so that all places differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCalls:
    """The place of each of a sequence's collectives in the reference.

    positions: `NO_PLACE` plus an index, far below all places, if the reference has none or the match is ambiguous.
    is_unsure: whether the match is ambiguous. begins: the shift of the first certain match; None if there is none.
    lost: minimum number of the reference's collectives that are missing in between.
    lost_by_reference: minimum number that the reference lacks.
    """

    positions: NDArray[np.int64]
    is_unsure: NDArray[np.bool_]
    begins: int | None = None
    lost: int = 0
    lost_by_reference: int = 0


def places_of(reference: CollectiveSequence, other: CollectiveSequence, shift: Shift) -> PlacedCalls:
    """Return the places of the other's collectives. shift: of the majority, see `best_shift`.

    Places follow from step numbers and ends. Example, in us: the reference ends at 0 30 40 90, the other, which lost
    the second, at 500 540 590. If its clock is 500 ahead, its collectives are the first, third and fourth.
    """
    size = other.kinds.size
    along = np.arange(size) + shift.positions
    as_shifted = PlacedCalls(positions=along, is_unsure=np.zeros(size, dtype=np.bool_))
    if min(reference.kinds.size, size) < 2 * LEAST_SHARED:
        return as_shifted
    clocks = _clocks_apart(reference, other, shift.positions)
    anchors = _anchors(reference, other, clocks)
    is_anchored = anchors != ABSENT
    if not is_anchored.any():
        is_whole = reference.kinds.size == size and shift.positions == 0
        fits = uneven_by_ns(reference, other, 0) <= TOLERANCE_NS or ran_together(reference, other, 0)
        if (is_whole and fits) or _is_only_shift_of_kinds(reference, other, shift.positions):
            return as_shifted
        return PlacedCalls(positions=NO_PLACE + np.arange(size), is_unsure=np.ones(size, dtype=np.bool_))
    known = np.flatnonzero(is_anchored)
    shifts = anchors[known] - known
    # Between anchors with the same shift, all have it if they ran together; outside there is only one candidate.
    following = np.minimum(np.searchsorted(known, np.arange(size)), known.size - 1)
    positions = np.arange(size) + shifts[following]
    is_unsure = np.zeros(size, dtype=np.bool_)
    if clocks is not None:
        # Only for kinds that mostly end together: in a broadcast, a rank may end before another begins.
        counts, anchored = np.bincount(other.kinds), np.bincount(other.kinds[known], minlength=other.kinds.max() + 1)
        ends_evenly = (2 * anchored >= counts)[other.kinds]
        is_unsure = ends_evenly & ~is_anchored & ~_is_together(reference, other, positions, clocks)
    has_place = ~is_unsure
    # Where the shift changes, a trace lost some, so the collectives in between have no place.
    jumps = np.diff(shifts)
    for gap in np.flatnonzero(jumps).tolist():
        between = slice(known[gap] + 1, known[gap + 1])
        has_place[between] = False
        # If the reference has nothing in between, it lost these.
        is_unsure[between] = anchors[known[gap + 1]] - anchors[known[gap]] > 1
    return PlacedCalls(
        positions=np.where(has_place, positions, NO_PLACE + np.arange(size)),
        is_unsure=is_unsure,
        begins=int(shifts[0]),
        lost=int(jumps[jumps > 0].sum()),
        lost_by_reference=int(-jumps[jumps < 0].sum()),
    )


def _is_only_shift_of_kinds(reference: CollectiveSequence, other: CollectiveSequence, shift: int) -> bool:
    """Return whether all kinds agree at this shift and at no other nearby."""
    near = [shift + step for step in range(-MOST_LOST, MOST_LOST + 1)]
    agreeing = [
        shift
        for shift in near
        if count_shared(reference, other, shift) >= LEAST_SHARED and agreement(reference, other, shift) == 1
    ]
    return agreeing == [shift]


# The distance between the clocks of two ranks.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clocks:
    """apart_ns: how far the other's clock is ahead of the reference's. within_ns: tolerance of the ends."""

    apart_ns: int
    within_ns: int


def _clocks_apart(reference: CollectiveSequence, other: CollectiveSequence, shift: int) -> _Clocks | None:
    """Return the distance at which most ends agree; None if no single distance stands out.

    Traces that lost some agree at no single shift, so `shift` may be wrong, and shifts around 0 are also tried.
    """
    near = np.arange(-MOST_LOST, MOST_LOST + 1)
    places = np.arange(other.kinds.size)[:, None] + np.unique(np.concatenate((near, near + shift)))
    is_held = (places >= 0) & (places < reference.kinds.size)
    within = np.where(is_held, places, 0)
    is_held &= reference.kinds[within] == other.kinds[:, None]
    apart_ns = np.sort((other.end_ns[:, None] - reference.end_ns[within])[is_held])
    if not apart_ns.size:
        return None
    most_ns = max(1, int(np.median(np.diff(np.sort(reference.end_ns)))) // LEAST_SPACING)
    within_ns = min(TOLERANCE_NS, most_ns)
    while True:
        # The number of distances within the window that begins at each.
        counts = np.searchsorted(apart_ns, apart_ns + 2 * within_ns, side="right") - np.arange(apart_ns.size)
        best = int(counts.argmax())
        if counts[best] >= LEAST_EVEN * min(reference.kinds.size, other.kinds.size):
            rivals = counts[np.abs(apart_ns - apart_ns[best]) > 4 * within_ns]
            if rivals.size and counts[best] < rivals.max() + LEAST_LEAD:
                return None
            return _Clocks(apart_ns=int(apart_ns[best + counts[best] // 2]), within_ns=within_ns)
        if within_ns == most_ns:
            return None
        within_ns = min(2 * within_ns, most_ns)


_LOOSE = LEAST_SPACING // 2
"""Factor by which a collective's ends may exceed the usual tolerance: half of the time to the next."""


def _is_together(
    reference: CollectiveSequence, other: CollectiveSequence, places: NDArray[np.int64], clocks: _Clocks
) -> NDArray[np.bool_]:
    """Return for each collective whether both ranks were in it at the same time; True outside the reference."""
    clipped, apart_ns = np.clip(places, 0, reference.kinds.size - 1), _LOOSE * clocks.within_ns
    start_ns, end_ns = (moments_ns - clocks.apart_ns for moments_ns in (other.start_ns, other.end_ns))
    is_apart = (reference.end_ns[clipped] + apart_ns < start_ns) | (end_ns + apart_ns < reference.start_ns[clipped])
    is_together: NDArray[np.bool_] = ~is_apart | (clipped != places)
    return is_together


# Anchors: collectives that are certainly the same in both traces.


def _anchors(reference: CollectiveSequence, other: CollectiveSequence, clocks: _Clocks | None) -> NDArray[np.int64]:
    """Return the place of each of the other's collectives if it is certain, else `ABSENT`."""
    anchors = np.full(other.kinds.size, ABSENT, dtype=np.int64)
    if clocks is not None:
        anchors = _in_order(_by_ends(reference, other, clocks))
    for number in np.intersect1d(reference.steps, other.steps).tolist():
        if number == ABSENT:
            continue
        mine, theirs = np.flatnonzero(reference.steps == number), np.flatnonzero(other.steps == number)
        by_ends = anchors[theirs]
        is_alike = mine.size == theirs.size and bool((reference.kinds[mine] == other.kinds[theirs]).all())
        # A step with equally many collectives on both ranks lost none, unless ends show that each lost a different one.
        if is_alike and int(((by_ends != ABSENT) & (by_ends != mine)).sum()) < LEAST_LEAD:
            anchors[theirs] = mine
        else:
            anchors[theirs] = np.where(np.isin(by_ends, mine), by_ends, ABSENT)
    return _in_order(anchors)


def _by_ends(reference: CollectiveSequence, other: CollectiveSequence, clocks: _Clocks) -> NDArray[np.int64]:
    """Return the place of each collective whose end and one of the reference's are nearest to each other and match."""
    ends_ns = other.end_ns - clocks.apart_ns
    place = _nearest(reference.end_ns, ends_ns)
    is_same = (
        (_nearest(ends_ns, reference.end_ns)[place] == np.arange(place.size))
        & (np.abs(reference.end_ns[place] - ends_ns) <= clocks.within_ns)
        & (reference.kinds[place] == other.kinds)
    )
    return np.where(is_same, place, ABSENT)


def _nearest(of_ns: Times, to_ns: Times) -> NDArray[np.int64]:
    """Return for each moment in `to_ns` the index of the nearest in `of_ns`, which must have at least two."""
    order = np.argsort(of_ns, kind="stable")
    ordered_ns = of_ns[order]
    right = np.clip(np.searchsorted(ordered_ns, to_ns), 1, of_ns.size - 1)
    is_left = to_ns - ordered_ns[right - 1] <= ordered_ns[right] - to_ns
    return order[np.where(is_left, right - 1, right)]


def _in_order(anchors: NDArray[np.int64]) -> NDArray[np.int64]:
    """Remove anchors that cross another, and lone anchors whose two neighbours share a different shift."""
    rising = anchors.copy()
    known = np.flatnonzero(rising != ABSENT)
    places = rising[known]
    if not known.size:
        return rising
    most = np.iinfo(np.int64).max
    highest_before = np.concatenate(([ABSENT], np.maximum.accumulate(places)[:-1]))
    lowest_behind = np.concatenate((np.minimum.accumulate(places[::-1])[::-1][1:], [most]))
    is_crossed = (places <= highest_before) | (places >= lowest_behind)
    rising[known[is_crossed]] = ABSENT
    known = known[~is_crossed]
    shifts = rising[known] - known
    is_lone = np.zeros(known.size, dtype=np.bool_)
    is_lone[1:-1] = (shifts[:-2] == shifts[2:]) & (shifts[1:-1] != shifts[2:])
    rising[known[is_lone]] = ABSENT
    return rising
