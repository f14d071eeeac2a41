"""Where one rank's collectives of a process group stand in another's, when their traces do not number them.

By the numbers of the steps they are in, where both traces tell these; else by what each collective is, and of several
places at which the kinds agree, by how evenly the ends then lie apart. Two clocks may differ by any constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.ranks.exact_medians import median_ns
from collectors.traces.spans import ABSENT

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
        common = np.intersect1d(_numbered(one), _numbered(other))
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
    return bool(_numbered(row).size)


def _numbered(row: Row) -> NDArray[np.int64]:
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
