"""The ends of each process group's collectives, and the clock offsets that bring them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.ranks.exact_medians import median_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """When the collectives of one group ended on each of the clocks that its ranks have.

    ranks: all of the group whose traces are here. clocks: the owner of each, ascending.
    end_ns: one row a collective, one column a clock.
    """

    group: str | None
    ranks: tuple[int, ...]
    clocks: tuple[int, ...]
    end_ns: Times

    def ahead_ns(self) -> NDArray[np.float64]:
        """By how much each clock is ahead of the first: the median over the collectives.

        The first guess is by the first clock's ends, the next by the median end of each collective, which is quieter.
        """
        apart_ns = (self.end_ns - self.end_ns[:, :1]).astype(np.float64)
        guess_ns = np.median(apart_ns, axis=0)
        left_ns = apart_ns - guess_ns
        ahead_ns: NDArray[np.float64] = guess_ns + np.median(
            left_ns - np.median(left_ns, axis=1, keepdims=True), axis=0
        )
        return ahead_ns

    def moved(self, offset_ns: Mapping[int, int]) -> Ends:
        """The same, with clocks that show this much more."""
        end_ns = self.end_ns + np.array([offset_ns[clock] for clock in self.clocks], dtype=np.int64)
        return Ends(group=self.group, ranks=self.ranks, clocks=self.clocks, end_ns=end_ns)

    def spread_ns(self, offset_ns: Mapping[int, int]) -> Times:
        """Of each collective, how long after its end on the first clock that on the last one is, with these offsets."""
        end_ns = self.moved(offset_ns).end_ns
        spread_ns: Times = end_ns.max(axis=1) - end_ns.min(axis=1)
        return spread_ns


def ends_of(group: str | None, ranks: tuple[int, ...], end_ns: Times, clock_of: Mapping[int, int]) -> Ends:
    """The ends by clock; of several ranks that have one clock, the median of theirs.

    end_ns: one row a collective, one column a rank. clock_of: by rank, the owner of its clock.
    """
    clocks = tuple(sorted({clock_of[rank] for rank in ranks}))
    columns = [[place for place, rank in enumerate(ranks) if clock_of[rank] == clock] for clock in clocks]
    by_clock = [median_ns(end_ns[:, places], axis=1) for places in columns]
    return Ends(group=group, ranks=ranks, clocks=clocks, end_ns=np.stack(by_clock, axis=1))


def connected_sets(clock_of: Mapping[int, int], groups: Sequence[Ends]) -> list[tuple[int, ...]]:
    """The sets of ranks that a clock or groups connect, directly or through others; by their lowest rank.

    clock_of: by rank, the owner of its clock.
    """
    set_of = {rank: {rank} for rank in clock_of}
    for connected in (*((rank, clock) for rank, clock in clock_of.items()), *(ends.ranks for ends in groups)):
        together = set().union(*(set_of[rank] for rank in connected))
        set_of |= dict.fromkeys(together, together)
    return sorted({tuple(sorted(together)) for together in set_of.values()})


def offsets(clocks: Sequence[int], groups: Sequence[Ends]) -> dict[int, int]:
    """What each clock must show more to agree with the first; clocks that the groups connect.

    In each group, offset + ahead is one unknown moment for all clocks: those offsets for which these are nearest to
    that, by least squares, a group counting as often as it has collectives.
    """
    # What is left of a difference of years fits into a float.
    guess_ns = _guessed(clocks[0], groups)
    column = {clock: number for number, clock in enumerate(clocks)}
    size = sum(len(ends.clocks) for ends in groups)
    terms, ahead_ns = np.zeros((size, len(clocks) + len(groups))), np.zeros(size)
    row = 0
    for number, ends in enumerate(groups):
        weight = np.sqrt(len(ends.end_ns))
        for clock, ahead in zip(ends.clocks, ends.moved(guess_ns).ahead_ns(), strict=True):
            terms[row, column[clock]] = weight
            terms[row, len(clocks) + number] = -weight
            ahead_ns[row] = -weight * ahead
            row += 1
    solution = np.linalg.lstsq(terms, ahead_ns, rcond=None)[0] if size else np.zeros(len(clocks))
    return {clock: guess_ns[clock] + round(solution[column[clock]] - solution[column[clocks[0]]]) for clock in clocks}


def _guessed(first: int, groups: Sequence[Ends]) -> dict[int, int]:
    """Offsets by one collective of a group, from group to group."""
    guess_ns = {first: 0}
    left = list(groups)
    while left:
        ends = next(ends for ends in left if any(clock in guess_ns for clock in ends.clocks))
        left.remove(ends)
        known = next(place for place, clock in enumerate(ends.clocks) if clock in guess_ns)
        apart_ns = guess_ns[ends.clocks[known]] + ends.end_ns[0, known] - ends.end_ns[0]
        found = dict(zip(ends.clocks, apart_ns.tolist(), strict=True))
        guess_ns = found | guess_ns
    return guess_ns
