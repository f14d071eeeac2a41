"""Clock synchronisation: offsets that put all ranks on a common clock, from the ends of their collectives.

Ranks of one host share a clock, so their ends differ for other reasons. The clocks of different hosts are compared: a
rank leaves a collective when all ranks have arrived and its data is there, so ranks leave within microseconds of each
other, however long each has waited, and the median difference between two ranks' ends is that between their clocks.
Clock drift is not corrected; over a trace of seconds it amounts to microseconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collectors.rank.rank_list import listed
from collectors.traces.cross_rank.collective_order import median_ns
from collectors.traces.cross_rank.matching import ROOTED, Matching, Unmatched, match
from collectors.traces.intervals import Times
from collectors.traces.table import Table, table_of
from collectors.traces.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The ends of a group's collectives on each of its ranks' clocks. A clock is identified by its owner, a rank.

    Ranks that share a clock are represented by their median.
    ranks: of the group, those with a trace. clocks: owners, ascending.
    end_ns: one row per collective, one column per clock.
    """

    group: str | None
    ranks: tuple[int, ...]
    clocks: tuple[int, ...]
    end_ns: Times

    def moved_ns(self, offset_ns: Mapping[int, int]) -> Times:
        """Return the ends with each clock shifted by its offset."""
        return self.end_ns + np.array([offset_ns[clock] for clock in self.clocks], dtype=np.int64)


def connected_sets(clock_of: Mapping[int, int], groups: Sequence[Ends]) -> list[tuple[int, ...]]:
    """Return the sets of ranks that clocks or groups connect, directly or through others; sorted by lowest rank.

    clock_of: by rank, the owner of its clock.
    """
    set_of = {rank: {rank} for rank in clock_of}
    for connected in (*((rank, clock) for rank, clock in clock_of.items()), *(ends.ranks for ends in groups)):
        together = set().union(*(set_of[rank] for rank in connected))
        set_of |= dict.fromkeys(together, together)
    return sorted({tuple(sorted(together)) for together in set_of.values()})


def offsets(clocks: Sequence[int], groups: Sequence[Ends]) -> dict[int, int]:
    """Return the offset to add to each clock so that it agrees with the first. The groups must connect all clocks.

    In each group, offset + ahead should be the same for all clocks. The offsets fulfil this best by least squares, with
    each group weighted by its number of collectives.
    """
    # Solve for the difference to a guess: clocks may be years apart, which a float cannot represent to the nanosecond.
    guess_ns = _guessed(clocks[0], groups)
    column = {clock: number for number, clock in enumerate(clocks)}
    # One equation for each group and clock: weight * (offset[clock] - moment[group]) = -weight * ahead.
    # The unknowns are an offset per clock, then a moment per group.
    size = sum(len(ends.clocks) for ends in groups)
    terms, ahead_ns = np.zeros((size, len(clocks) + len(groups))), np.zeros(size)
    row = 0
    for number, ends in enumerate(groups):
        weight = np.sqrt(len(ends.end_ns))
        for clock, ahead in zip(ends.clocks, _ahead_ns(ends.moved_ns(guess_ns)), strict=True):
            terms[row, column[clock]] = weight
            terms[row, len(clocks) + number] = -weight
            ahead_ns[row] = -weight * ahead
            row += 1
    solution = np.linalg.lstsq(terms, ahead_ns, rcond=None)[0] if size else np.zeros(len(clocks))
    # The equations determine offsets up to a constant; the first clock's becomes 0.
    return {clock: guess_ns[clock] + round(solution[column[clock]] - solution[column[clocks[0]]]) for clock in clocks}


def _ahead_ns(end_ns: Times) -> NDArray[np.float64]:
    """Return how far each clock is ahead of the first: the median over the collectives.

    The first guess compares with the first clock's ends, the correction with each collective's median end, which is
    less noisy.
    """
    apart_ns = (end_ns - end_ns[:, :1]).astype(np.float64)
    guess_ns = np.median(apart_ns, axis=0)
    left_ns = apart_ns - guess_ns
    ahead_ns: NDArray[np.float64] = guess_ns + np.median(left_ns - np.median(left_ns, axis=1, keepdims=True), axis=0)
    return ahead_ns


def _guessed(first: int, groups: Sequence[Ends]) -> dict[int, int]:
    """Return rough offsets from the first collective of each group, proceeding from group to group."""
    guess_ns = {first: 0}
    remaining = list(groups)
    while remaining:
        ends = next(ends for ends in remaining if any(clock in guess_ns for clock in ends.clocks))
        remaining.remove(ends)
        known = next(column for column, clock in enumerate(ends.clocks) if clock in guess_ns)
        apart_ns = guess_ns[ends.clocks[known]] + ends.end_ns[0, known] - ends.end_ns[0]
        clock_ns = dict(zip(ends.clocks, apart_ns.tolist(), strict=True))
        guess_ns = clock_ns | guess_ns
    return guess_ns


# Ranks of one host, which share a clock.

MOST_IMPOSSIBLE = 0.05
"""Maximum share of a host's collectives that a rank may appear to leave before another arrives.

A host's clocks agree within microseconds, so there should be none; but a few collectives may be matched wrongly.
"""


def clocks_of_hosts(timelines: Sequence[Timeline], matching: Matching) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the owner of each rank's clock, which is the lowest rank of its host; and notes on assumptions.

    A rank has a clock of its own if its trace names no host, if its device and its host have different clocks, or if
    the ranks with its host name cannot be on one machine: several machines may be called localhost.
    """
    owner = {timeline.rank: timeline.rank for timeline in timelines}
    hosts: dict[str, list[int]] = defaultdict(list)
    for timeline in sorted(timelines, key=lambda timeline: timeline.rank):
        if timeline.about.host and not timeline.about.clocks_differ:
            hosts[timeline.about.host].append(timeline.rank)
    doubted = _doubted({rank: host for host, ranks in hosts.items() for rank in ranks}, timelines, matching)
    notes = []
    for host, ranks in hosts.items():
        if len(ranks) == 1:
            continue
        if host in doubted:
            notes.append(
                f"ranks {listed(ranks)} report host {host}, but on a single clock would leave collectives before all"
                " have arrived: each is assumed to have its own clock"
            )
        else:
            owner |= dict.fromkeys(ranks, ranks[0])
            notes.append(f"ranks {listed(ranks)} are on host {host}: they share a clock")
    return owner, tuple(notes)


def _doubted(host_of: Mapping[int, str], timelines: Sequence[Timeline], matching: Matching) -> set[str]:
    """Return the hosts with too many collectives that, on a single clock, end on a rank before another arrives."""
    by_rank = {timeline.rank: timeline for timeline in timelines}
    examined, impossible = Counter[str](), Counter[str]()
    for collective in matching.matched:
        if collective.collective in ROOTED or collective.is_first:
            continue
        rows: dict[str, list[tuple[int, int]]] = defaultdict(list)  # By host, (start, end) on each of its ranks.
        for rank, row in zip(collective.ranks, collective.rows, strict=True):
            if rank in host_of:
                rows[host_of[rank]].append((int(by_rank[rank].start_ns[row]), int(by_rank[rank].end_ns[row])))
        for host, times_ns in rows.items():
            examined[host] += 1
            impossible[host] += min(end_ns for _, end_ns in times_ns) < max(start_ns for start_ns, _ in times_ns)
    return {host for host, count in examined.items() if impossible[host] > MOST_IMPOSSIBLE * count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How well the ends of a process group's collectives agree on the common clock.

    group: its name; None if the traces do not name groups. collectives: the number compared.
    residual_ns, widest_ns: the time from the first to the last clock's end of a collective: median and maximum. Both
    are 0 for a group within one host, whose ranks share a clock; None for a single collective on several clocks, whose
    ends can always be made to agree.
    """

    group: str | None
    ranks: tuple[int, ...]
    collectives: int
    residual_ns: int | None
    widest_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The offsets that put these ranks on a common clock.

    timelines: as given. offset_ns: by rank, the offset to add to its clock; 0 for unchanged ranks.
    agreements: of each group whose ends were compared.
    connected: sets of ranks on one host, or whose ends were compared, directly or through others. Clocks of different
    sets are not comparable.
    notes: assumptions, and what could not be aligned.
    """

    timelines: tuple[Timeline, ...]
    offset_ns: Mapping[int, int]
    agreements: tuple[Agreement, ...]
    connected: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def residual_ns(self) -> int | None:
        """Uncertainty when times of different ranks are compared: the largest median of a group; None if unknown."""
        known = [agreement.residual_ns for agreement in self.agreements if agreement.residual_ns is not None]
        return max(known, default=None)

    def applied(self) -> tuple[Timeline, ...]:
        """Return the Timelines on the common clock, in the given order."""
        return tuple(timeline.moved(self.offset_ns[timeline.rank]) for timeline in self.timelines)

    def tables(self) -> tuple[Table, ...]:
        """Return tables of each rank's offset and each group's agreement."""
        return (
            table_of(
                "clocks",
                "Correction added to each rank's clock",
                "rank offset_ns",
                sorted(self.offset_ns.items()),
                *self.notes,
            ),
            table_of(
                "residuals",
                "Remaining difference between the ends of a collective on different clocks",
                "group ranks collectives median_ns widest_ns",
                [
                    (
                        agreement.group,
                        len(agreement.ranks),
                        agreement.collectives,
                        agreement.residual_ns,
                        agreement.widest_ns,
                    )
                    for agreement in self.agreements
                ],
            ),
        )


def align(timelines: Sequence[Timeline], matching: Matching | None = None) -> Alignment:
    """Find the offsets of these ranks' clocks, from the median differences between their collectives' ends.

    Ranks of one host have the same offset. Rooted collectives and messages are left out, since their ends need not
    agree; so is the first collective of each rank. If several groups connect clocks, the offsets are a least-squares
    fit to all groups. In each set of connected ranks the lowest keeps its clock. If the clocks differ by no more than
    the ends of a collective, they are treated as the same clock, and no rank's times are shifted.

    matching: of these Timelines, if already known.

    Raises:
        ValueError: two Timelines belong to the same rank.
    """
    matching = match(timelines) if matching is None else matching
    clock_of, of_hosts = clocks_of_hosts(timelines, matching)
    compared = _compared(timelines, matching, clock_of)
    connected = connected_sets(clock_of, compared)
    offset_ns: dict[int, int] = {}
    notes = list(of_hosts)
    for ranks in connected:
        of_set = [ends for ends in compared if ends.ranks[0] in ranks]
        clocks = sorted({clock_of[rank] for rank in ranks})
        shift_ns = offsets(clocks, of_set)
        limit_ns = max((_agreement(ends, shift_ns).residual_ns or 0 for ends in of_set), default=0)
        is_same_clock = max(shift_ns.values()) - min(shift_ns.values()) <= limit_ns
        offset_ns |= {rank: 0 if is_same_clock else shift_ns[clock_of[rank]] for rank in ranks}
        if is_same_clock and len(clocks) > 1:
            notes.append(
                f"the clocks of ranks {listed(ranks)} agree to {limit_ns / 1e3:g} us, as closely as a collective ends"
                " on all ranks, so they are treated as the same clock"
            )
    if len(connected) > 1:
        sets = "; ".join(listed(ranks) for ranks in connected)
        notes.append(f"no collective connects these sets of ranks, whose clocks are not compared: {sets}")
    return Alignment(
        timelines=tuple(timelines),
        offset_ns=offset_ns,
        agreements=tuple(_agreement(ends, {clock: offset_ns[clock] for clock in ends.clocks}) for ends in compared),
        connected=tuple(connected),
        notes=tuple(notes),
    )


def _compared(timelines: Sequence[Timeline], matching: Matching, clock_of: Mapping[int, int]) -> list[Ends]:
    """Return the ends of all collectives whose ends should agree, by group."""
    end_ns = {timeline.rank: timeline.end_ns for timeline in timelines}
    rows: dict[tuple[str | None, tuple[int, ...]], list[tuple[int, ...]]] = defaultdict(list)
    for collective in matching.matched:
        if collective.collective not in ROOTED and not collective.is_first:
            rows[collective.group, collective.ranks].append(collective.rows)
    ends = []
    for (group, ranks), of_group in rows.items():
        # (collectives, ranks), then (collectives, clocks).
        by_rank_ns = np.stack(
            [end_ns[rank][row] for rank, row in zip(ranks, np.array(of_group).T, strict=True)], axis=1
        )
        clocks = tuple(sorted({clock_of[rank] for rank in ranks}))
        by_clock_ns = [
            median_ns(by_rank_ns[:, [clock_of[rank] == clock for rank in ranks]], axis=1) for clock in clocks
        ]
        ends.append(Ends(group=group, ranks=ranks, clocks=clocks, end_ns=np.stack(by_clock_ns, axis=1)))
    return ends


def _agreement(ends: Ends, offset_ns: Mapping[int, int]) -> Agreement:
    # For each collective, the time from its first to its last end over the clocks.
    moved_ns = ends.moved_ns(offset_ns)
    spread_ns = moved_ns.max(axis=1) - moved_ns.min(axis=1)
    is_known = spread_ns.size > 1 or len(ends.clocks) == 1
    return Agreement(
        group=ends.group,
        ranks=ends.ranks,
        collectives=spread_ns.size,
        residual_ns=int(np.median(spread_ns)) if is_known else None,
        widest_ns=int(spread_ns.max()) if is_known else None,
    )


# A critical path can only go through ranks with comparable clocks: between others, a difference in time is a difference
# between clocks and says nothing about waiting.


def ranks_on_one_clock(alignment: Alignment, present: Collection[int]) -> frozenset[int]:
    """Return the largest set of present ranks with comparable clocks; of equal sets, the one with the lowest rank."""
    sets = [frozenset(present) & frozenset(ranks) for ranks in alignment.connected]
    return max(sets, key=len)


def on_one_clock(
    alignment: Alignment, matching: Matching, present: Collection[int]
) -> tuple[Alignment, Matching, list[str]]:
    """Return alignment and matching restricted to `ranks_on_one_clock`, and a note on ranks left out.

    Collectives shared with other ranks become unmatched.
    """
    ranks = ranks_on_one_clock(alignment, present)
    reason = "ranks take part whose clocks are not compared"
    apart = [
        Unmatched(rank=rank, row=row, reason=reason)
        for collective in matching.matched
        if not ranks >= set(collective.ranks)
        for rank, row in zip(collective.ranks, collective.rows, strict=True)
        if rank in ranks
    ]
    notes = []
    if others := sorted(set(present) - ranks):
        left_out, compared = (f"rank{'s' * (len(some) > 1)} {listed(some)}" for some in (others, sorted(ranks)))
        notes.append(f"the path leaves out {left_out}: clocks are not compared with those of {compared}")
    return (
        replace(
            alignment,
            timelines=tuple(timeline for timeline in alignment.timelines if timeline.rank in ranks),
            offset_ns={rank: offset_ns for rank, offset_ns in alignment.offset_ns.items() if rank in ranks},
            agreements=tuple(agreement for agreement in alignment.agreements if ranks >= set(agreement.ranks)),
        ),
        replace(
            matching,
            matched=tuple(collective for collective in matching.matched if ranks >= set(collective.ranks)),
            unmatched=(*matching.unmatched, *apart),
        ),
        notes,
    )
