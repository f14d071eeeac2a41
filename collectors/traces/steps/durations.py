"""What many durations have in common: their number, sum, middle and spread, group by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.table import Cell, Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Of some durations; in whole nanoseconds, half of one rounded up.

    deviation_ns: the median distance from the median. p95_ns: the least that 95 % of them do not exceed.
    """

    count: int
    total_ns: int
    mean_ns: int
    median_ns: int
    deviation_ns: int
    p95_ns: int
    longest_ns: int

    def cells(self) -> tuple[Cell, ...]:
        """The figures in the order of `COLUMNS`."""
        return (
            self.count,
            self.total_ns,
            self.mean_ns,
            self.median_ns,
            self.deviation_ns,
            self.p95_ns,
            self.longest_ns,
        )


COLUMNS = (
    Column(name="count"),
    Column(name="total", unit="ns"),
    Column(name="mean", unit="ns"),
    Column(name="median", unit="ns"),
    Column(name="deviation", unit="ns"),
    Column(name="p95", unit="ns"),
    Column(name="longest", unit="ns"),
)


def durations(values_ns: Times, group: NDArray[np.int64]) -> dict[int, Durations]:
    """Of each group, in order of their numbers. group: per value the number of its group."""
    order = np.lexsort((values_ns, group))
    values_ns, group = values_ns[order], group[order]
    numbers, first, counts = np.unique(group, return_index=True, return_counts=True)
    if not numbers.size:
        return {}
    totals_ns = _totals(values_ns, first)
    medians_ns = _medians(values_ns, first, counts)
    distances_ns = np.abs(values_ns - np.repeat(medians_ns, counts))
    deviations_ns = _medians(distances_ns[np.lexsort((distances_ns, group))], first, counts)
    p95_ns = values_ns[first + (95 * counts + 99) // 100 - 1]
    longest_ns = values_ns[first + counts - 1]
    return {
        int(number): Durations(
            count=int(counts[place]),
            total_ns=totals_ns[place],
            mean_ns=(2 * totals_ns[place] + int(counts[place])) // (2 * int(counts[place])),
            median_ns=int(medians_ns[place]),
            deviation_ns=int(deviations_ns[place]),
            p95_ns=int(p95_ns[place]),
            longest_ns=int(longest_ns[place]),
        )
        for place, number in enumerate(numbers)
    }


def _totals(values_ns: Times, first: NDArray[np.int64]) -> list[int]:
    """Of each run of values the sum, which may take more than 64 bits: so halves of the values are added apart."""
    high, low = np.add.reduceat(values_ns >> 32, first), np.add.reduceat(values_ns & 0xFFFF_FFFF, first)
    return [(upper << 32) + lower for upper, lower in zip(high.tolist(), low.tolist(), strict=True)]


def _medians(sorted_ns: Times, first: NDArray[np.int64], counts: NDArray[np.int64]) -> Times:
    """Of each run of values, which are sorted in it: the middle one, or the mean of the middle two, rounded up."""
    lower_ns, upper_ns = sorted_ns[first + (counts - 1) // 2], sorted_ns[first + counts // 2]
    middle: Times = lower_ns + (upper_ns - lower_ns + 1) // 2
    return middle
