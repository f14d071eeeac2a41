"""The order of a group's collectives on two ranks: the shift between the ranks' sequences.

The shift follows from step numbers, or else from the kinds of the collectives and when they end. `lost_collectives`
then looks for collectives that a trace lost in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.timeline import ABSENT


def median_ns(moments_ns: Times, axis: int = 0) -> Times:
    """Return the median along the axis, rounded down to whole nanoseconds.

    Only differences to the first moment become floats, which cannot represent Unix time to the nanosecond.
    """
    first_ns = np.take(moments_ns, [0], axis=axis)
    apart_ns: NDArray[np.float64] = np.median((moments_ns - first_ns).astype(np.float64), axis=axis)
    middle_ns: Times = np.take(first_ns, 0, axis=axis) + np.floor(apart_ns).astype(np.int64)
    return middle_ns


TOLERANCE_NS = 5_000
"""Maximum difference between a collective's ends; shifts whose unevenness differs by less are indistinguishable."""

LEAST_SHARED = 3
"""Minimum number of shared collectives; with fewer, the differences between ends are even at any shift."""

LEAST_AGREEMENT = 0.75
"""Minimum share of the collectives in both traces whose kinds must agree at the right shift."""

MOST_SEPARATE = 0.1
"""Maximum share of a group's collectives that a rank may appear to leave before another arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSequence:
    """A rank's collectives of a group, in order.

    kinds: numbers, equal if everything is equal that must be on all ranks. steps: the number of each collective's step;
    `ABSENT` if unknown.
    """

    kinds: NDArray[np.int64]
    steps: NDArray[np.int64]
    start_ns: Times
    end_ns: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A rank's shift against the reference: its collective i is the reference's collective i + positions.

    positions: negative if this rank has collectives before the reference's first.
    is_by_steps: whether step numbers determine it. shared_ratio: share of the shorter sequence with a counterpart.
    ties: number of other shifts that fit equally well.
    """

    positions: int
    is_by_steps: bool = False
    shared_ratio: float = 1.0
    ties: int = 0


def best_shift(reference: CollectiveSequence, other: CollectiveSequence) -> Shift | None:
    """Return the shift of the other; None if they agree at no shift, or have no step in common.

    Step numbers may give any shift. Without them, at least half of the shorter sequence must have a counterpart, and
    of equally good shifts the one nearest to 0 wins.
    """
    steps, other_steps = (np.unique(calls.steps[calls.steps != ABSENT]) for calls in (reference, other))
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
    shared_ratio = count_shared(reference, other, positions) / min(reference.kinds.size, other.kinds.size)
    return Shift(positions=positions, is_by_steps=is_by_steps, shared_ratio=shared_ratio, ties=ties)


def _shift_by_steps(reference: CollectiveSequence, other: CollectiveSequence, common: NDArray[np.int64]) -> int | None:
    """Return the shift that the majority of common steps give; None if there is no majority, or kinds disagree.

    Example: steps 4 4 5 5 6 6 in the reference and 5 5 6 6 in the other. Step 5 begins at 2 and at 0, step 6 at 4 and
    at 2: both give the shift 2.
    """
    begins, other_begins = (
        np.array([np.argmax(calls.steps == number) for number in common]) for calls in (reference, other)
    )
    shifts, counts = np.unique(begins - other_begins, return_counts=True)
    shift = int(shifts[counts.argmax()])
    is_most = 2 * counts.max() > common.size
    return shift if is_most and agreement(reference, other, shift) >= LEAST_AGREEMENT else None


def _shifts_by_kinds_and_ends(reference: CollectiveSequence, other: CollectiveSequence) -> list[int]:
    """Return the shifts at which the sequences agree best, nearest to 0 first.

    If all kinds agree at shift 0 and the ends lie evenly apart, no other shift is tried.

    Example, in us: kinds A A A A in the reference and A A A in the other agree at shifts 0 and 1. The ends decide:

        reference ends at     0  30  40  90
        other ends at           530 540 590    its clock is 500 ahead
        apart at shift 0    530 510 550        uneven by 20: not the same collectives
        apart at shift 1        500 500 500    even: these are
    """
    size, other_size = reference.kinds.size, other.kinds.size
    if not min(size, other_size):
        return []
    # All shifts at which at least half of the shorter sequence, rounded up, has a counterpart.
    half = (min(size, other_size) + 1) // 2
    shifts = range(half - other_size, size - half + 1)
    if 0 in shifts and agreement(reference, other, 0) == 1 and uneven_by_ns(reference, other, 0) <= TOLERANCE_NS:
        return [0]
    # The shifts at which kinds agree best, if well enough.
    agreements = {shift: agreement(reference, other, shift) for shift in sorted(shifts, key=abs)}
    best = max(agreements.values())
    if best < LEAST_AGREEMENT:
        return []
    agreeing = [shift for shift, agreement in agreements.items() if agreement == best]
    # Of these, the shifts at which ends lie about as evenly apart as at the best shift.
    comparable = [shift for shift in agreeing if count_shared(reference, other, shift) >= LEAST_SHARED]
    if len(comparable) < 2:
        return comparable or agreeing
    unevenness_ns = {shift: uneven_by_ns(reference, other, shift) for shift in comparable}
    limit_ns = 2 * min(unevenness_ns.values()) + TOLERANCE_NS
    return [shift for shift in comparable if unevenness_ns[shift] <= limit_ns]


def ran_together(reference: CollectiveSequence, other: CollectiveSequence, shift: int) -> bool:
    """Return whether both ranks were in nearly all shared collectives at the same time, despite different clocks."""
    mine, theirs = _shared(reference, other, shift)
    # Shift the other's times by the median difference of the ends, which is the difference of the clocks.
    apart_ns = median_ns(reference.end_ns[mine] - other.end_ns[theirs])
    start_ns, end_ns = other.start_ns[theirs] + apart_ns, other.end_ns[theirs] + apart_ns
    is_before = reference.end_ns[mine] + TOLERANCE_NS < start_ns
    is_after = reference.start_ns[mine] > end_ns + TOLERANCE_NS
    return bool((is_before | is_after).mean() <= MOST_SEPARATE)


def count_shared(reference: CollectiveSequence, other: CollectiveSequence, shift: int) -> int:
    """Return how many collectives the two share at this shift."""
    return min(reference.kinds.size - max(shift, 0), other.kinds.size - max(-shift, 0))


def _shared(reference: CollectiveSequence, other: CollectiveSequence, shift: int) -> tuple[slice, slice]:
    """Return the shared collectives, as slices of the reference and of the other.

    Example: of 5 and 4 collectives at shift 1 these are 1 to 4 and 0 to 3; at shift -1, 0 to 2 and 1 to 3.
    """
    count = count_shared(reference, other, shift)
    return slice(max(shift, 0), max(shift, 0) + count), slice(max(-shift, 0), max(-shift, 0) + count)


def agreement(reference: CollectiveSequence, other: CollectiveSequence, shift: int) -> float:
    """Return the share of the shared collectives whose kinds agree."""
    mine, theirs = _shared(reference, other, shift)
    return float((reference.kinds[mine] == other.kinds[theirs]).mean())


def uneven_by_ns(reference: CollectiveSequence, other: CollectiveSequence, shift: int) -> float:
    """Return the median absolute deviation of the differences between ends."""
    mine, theirs = _shared(reference, other, shift)
    apart_ns = reference.end_ns[mine] - other.end_ns[theirs]
    return float(np.median(np.abs(apart_ns - median_ns(apart_ns))))
