"""Divides the time that ranks spend in collectives into waiting for the last rank and transfer.

wait: from a rank's own arrival to the last rank's. transfer: from the last arrival to the rank's own end.
Each rank's first collective is left out of the figures, since the others wait in it for the rank's profiler to start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from collectors.rank.rank_list import listed
from collectors.traces.cross_rank.clock_sync import Alignment, align
from collectors.traces.cross_rank.collective_times import CollectiveTime, count_impossible, time_of
from collectors.traces.cross_rank.matching import ROOTED, Matching, match
from collectors.traces.table import Table, table_of
from collectors.traces.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFigures:
    """Figures of all collectives of a kind, group and size.

    wait_ns, transfer_ns: the median over collectives of the mean over ranks, since one of two ranks never waits.
    waiting_ratio: sum of waits, divided by the sum of waits and transfers.
    bandwidths: medians over the collectives for which they are known.
    """

    collective: str
    group: str | None
    ranks: int
    size_bytes: int | None
    count: int
    wait_ns: int
    transfer_ns: int
    waiting_ratio: float | None
    algorithm_bandwidth_bytes_per_second: float | None
    bus_bandwidth_bytes_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWaits:
    """The total time that a rank spent in collectives of a kind."""

    rank: int
    collective: str
    count: int
    wait_ns: int
    transfer_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """All collectives of several ranks, on a common clock.

    times: all collectives, including each rank's first, sorted by last arrival.
    figures, ranks, waiting_ratio: without each rank's first.
    waiting_ratio: the share of waiting in the time in collectives, summed over ranks; None if there is no such time.
    waiting_ratio_with_first: the same, including each rank's first.
    """

    matching: Matching
    alignment: Alignment
    times: tuple[CollectiveTime, ...]
    figures: tuple[CollectiveFigures, ...]
    ranks: tuple[RankWaits, ...]
    waiting_ratio: float | None
    waiting_ratio_with_first: float | None
    notes: tuple[str, ...] = ()

    def tables(self) -> tuple[Table, ...]:
        """Return the shares, figures by kind, group and size, sums by rank, and the matching and clocks behind them.

        The notes on matching and clocks are in `notes`.
        """
        return (
            table_of(
                "waiting",
                "Share of the time in collectives spent waiting for the last rank",
                "collectives count waiting_ratio",
                [
                    ("without each rank's first", sum(figure.count for figure in self.figures), self.waiting_ratio),
                    ("all", len(self.times), self.waiting_ratio_with_first),
                ],
            ),
            table_of(
                "collectives",
                "By kind, group and size: medians of means over ranks, without each rank's first",
                "collective group ranks size_bytes count wait_ns transfer_ns waiting_ratio"
                " algorithm_bandwidth_bytes_per_second bus_bandwidth_bytes_per_second",
                self.figures,
                *_why_absent(self.figures),
            ),
            table_of(
                "by_rank",
                "Time that each rank spent in collectives, without its first",
                "rank collective count wait_ns transfer_ns",
                self.ranks,
            ),
            *(replace(table, notes=()) for table in (*self.matching.tables(), *self.alignment.tables())),
        )


def collectives(timelines: Sequence[Timeline]) -> Collectives:
    """Return the collectives of these ranks, on a common clock.

    Raises:
        ValueError: two Timelines belong to the same rank.
    """
    matching = match(timelines)
    alignment = align(timelines, matching)
    by_rank = {timeline.rank: timeline for timeline in timelines}
    times = [time_of(matched, by_rank, alignment.offset_ns) for matched in matching.matched]
    times.sort(key=lambda time: max(time.arrival_ns))
    later = [time for time in times if not time.matched.is_first]
    return Collectives(
        matching=matching,
        alignment=alignment,
        times=tuple(times),
        figures=_figures(later),
        ranks=_waits_by_rank(later),
        waiting_ratio=_waiting_ratio(later),
        waiting_ratio_with_first=_waiting_ratio(times),
        notes=(*_notes(later, timelines, alignment.residual_ns or 0), *matching.notes, *alignment.notes),
    )


def _figures(times: Iterable[CollectiveTime]) -> tuple[CollectiveFigures, ...]:
    """Return the figures of each kind, group and size, in the order of their first collectives."""
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
            waiting_ratio=_waiting_ratio(of_kind),
            algorithm_bandwidth_bytes_per_second=_median_known(time.algorithm_bandwidth for time in of_kind),
            bus_bandwidth_bytes_per_second=_median_known(time.bus_bandwidth for time in of_kind),
        )
        for (collective, group, ranks, missing, size_bytes), of_kind in alike.items()
    )


def _waits_by_rank(times: Iterable[CollectiveTime]) -> tuple[RankWaits, ...]:
    """Return the sums by rank and kind, sorted by rank."""
    waits: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for time in times:
        for rank, wait_ns, transfer_ns in zip(time.matched.ranks, time.wait_ns, time.transfer_ns, strict=True):
            waits[rank, time.matched.collective].append((wait_ns, transfer_ns))
    return tuple(
        RankWaits(
            rank=rank,
            collective=collective,
            count=len(of_rank),
            wait_ns=sum(wait_ns for wait_ns, _ in of_rank),
            transfer_ns=sum(transfer_ns for _, transfer_ns in of_rank),
        )
        for (rank, collective), of_rank in sorted(waits.items())
    )


def _waiting_ratio(times: Sequence[CollectiveTime]) -> float | None:
    """Return the share of waiting in the time in these collectives, summed over ranks; None if there is no time."""
    wait_ns = sum(sum(time.wait_ns) for time in times)
    transfer_ns = sum(sum(time.transfer_ns) for time in times)
    return wait_ns / (wait_ns + transfer_ns) if wait_ns + transfer_ns else None


def _median_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _notes(times: Sequence[CollectiveTime], timelines: Sequence[Timeline], residual_ns: int) -> Iterator[str]:
    if not times:
        yield "no collective was found on two ranks or more, apart from each rank's first"
        return
    if missing := sorted({rank for time in times for rank in time.matched.missing}):
        yield (
            f"the traces of ranks {listed(missing)} are missing, and one of these may come last:"
            " waits may be"
            " longer than shown and transfers shorter, and bandwidths are left out"
        )
    partly_traced = [time.matched for time in times if time.matched.missing_count > len(time.matched.missing)]
    if partial := sorted(
        {(len(matched.ranks), len(matched.ranks) + matched.missing_count) for matched in partly_traced}
    ):
        counts = ", ".join(f"{traced} of {ranks}" for traced, ranks in partial)
        yield (
            f"only some ranks of process groups have a trace ({counts}), and another may come last: waits may be longer"
            " than shown and transfers shorter, and bandwidths are left out"
        )
    world = max((timeline.about.world_size or 0 for timeline in timelines), default=0)
    if world > len(timelines) and any(time.matched.group_size is None for time in times):
        yield (
            f"{len(timelines)} of {world} ranks have a trace, and the traces do not say how many ranks a process"
            " group has:"
            " waits may be longer than shown and transfers shorter, and bandwidths count the traced ranks only"
        )
    if any(time.matched.collective in ROOTED for time in times):
        yield "ranks of a rooted collective need not wait for all others: its wait is computed as if they had to"
    if impossible := count_impossible(times, residual_ns):
        yield (
            f"{impossible} of {len(times)} collectives seem to end on a rank before the last has arrived: clocks or"
            " groups differ from what is assumed"
        )


def _why_absent(figures: Sequence[CollectiveFigures]) -> Iterator[str]:
    if any(figure.size_bytes is None for figure in figures):
        yield "size and bandwidths are absent where the traces lack the number of elements or their dtype"
    if rooted := sorted({figure.collective for figure in figures} & ROOTED):
        yield (
            f"bandwidths of {', '.join(rooted)} are absent: data of a rooted collective moves before the last rank"
            " arrives, and would be timed only from then on"
        )
