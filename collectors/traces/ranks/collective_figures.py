"""Collectives that are alike, put together: by kind, group and size, and by rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median

from collectors.traces.ranks.collective_times import CollectiveTime


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFigures:
    """Collectives alike in kind, group and size.

    wait_ns, transfer_ns: the medians over them of the mean over ranks, since one of two ranks waits for nobody.
    waiting_ratio: wait as a share of both, of sums.
    algorithm_bandwidth, bus_bandwidth: the medians over those of which they are known.
    """

    collective: str
    group: str | None
    ranks: int
    size_bytes: int | None
    count: int
    wait_ns: int
    transfer_ns: int
    waiting_ratio: float | None
    algorithm_bandwidth: float | None
    bus_bandwidth: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWaits:
    """What one rank spent in collectives of one kind: sums."""

    rank: int
    collective: str
    count: int
    wait_ns: int
    transfer_ns: int


def figures(times: Iterable[CollectiveTime]) -> tuple[CollectiveFigures, ...]:
    """One for each kind, group and size, in the order in which they come first."""
    alike = defaultdict(list)
    for time in times:
        matched = time.matched
        alike[matched.collective, matched.group, matched.ranks, matched.missing_count, time.size_bytes].append(time)
    return tuple(
        CollectiveFigures(
            collective=collective,
            group=group,
            ranks=len(ranks) + missing,
            size_bytes=size_bytes,
            count=len(of_kind),
            wait_ns=round(median(fmean(time.wait_ns) for time in of_kind)),
            transfer_ns=round(median(fmean(time.transfer_ns) for time in of_kind)),
            waiting_ratio=waiting_ratio(of_kind),
            algorithm_bandwidth=_median_known(time.algorithm_bandwidth for time in of_kind),
            bus_bandwidth=_median_known(time.bus_bandwidth for time in of_kind),
        )
        for (collective, group, ranks, missing, size_bytes), of_kind in alike.items()
    )


def waits_by_rank(times: Iterable[CollectiveTime]) -> tuple[RankWaits, ...]:
    """One for each rank and kind, by rank."""
    sums: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for time in times:
        for rank, wait_ns, transfer_ns in zip(time.matched.ranks, time.wait_ns, time.transfer_ns, strict=True):
            of_rank = sums[rank, time.matched.collective]
            of_rank[0] += 1
            of_rank[1] += wait_ns
            of_rank[2] += transfer_ns
    return tuple(
        RankWaits(rank=rank, collective=collective, count=count, wait_ns=wait_ns, transfer_ns=transfer_ns)
        for (rank, collective), (count, wait_ns, transfer_ns) in sorted(sums.items())
    )


def waiting_ratio(times: Iterable[CollectiveTime]) -> float | None:
    """Of the time in these, summed over ranks, the share that was spent waiting; None where there is no time."""
    times = list(times)
    wait_ns = sum(sum(time.wait_ns) for time in times)
    transfer_ns = sum(sum(time.transfer_ns) for time in times)
    return wait_ns / (wait_ns + transfer_ns) if wait_ns + transfer_ns else None


def _median_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
