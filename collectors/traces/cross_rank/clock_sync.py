"""One clock for all ranks, from the ends of their collectives.

Ranks of one host have one clock, so that what their ends lie apart is no error of clocks. Others' clocks are compared:
a rank leaves a collective when all have come and its data is there, so that ranks leave within microseconds of each
other, however long each waited, and the median difference of two ranks' ends is the difference of their clocks.
A clock that runs faster than another is not looked for; over a trace of seconds that is microseconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collectors.traces.cross_rank.matching import ROOTED, Matching, Unmatched, match
from collectors.traces.cross_rank.process_groups import median_ns
from collectors.traces.intervals import Times
from collectors.traces.table import Column, Table
from collectors.traces.timeline import Timeline

# The ends of each process group's collectives, and the clock offsets that bring them together.


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


# Which ranks have one clock because they are on one host.

MOST_IMPOSSIBLE = 0.05
"""Of the collectives within one host, the share that a rank may seem to leave before another comes.

Clocks of one host agree within microseconds, so that none should; a few may be matched wrongly.
"""


def clocks_of_hosts(timelines: Sequence[Timeline], matching: Matching) -> tuple[dict[int, int], tuple[str, ...]]:
    """By rank the owner of its clock, which is the lowest rank of its host; and what was assumed.

    A rank whose trace names no host has a clock of its own; so have ranks of one name that cannot be one host's, as
    machines may all be called localhost.
    """
    owner = {timeline.rank: timeline.rank for timeline in timelines}
    hosts: dict[str, list[int]] = defaultdict(list)
    for timeline in sorted(timelines, key=lambda one: one.rank):
        if timeline.about.host:
            hosts[timeline.about.host].append(timeline.rank)
    doubted = _doubted({rank: host for host, ranks in hosts.items() for rank in ranks}, timelines, matching)
    notes = []
    for host, ranks in hosts.items():
        if len(ranks) == 1:
            continue
        listed = ", ".join(map(str, ranks))
        if host in doubted:
            notes.append(
                f"ranks {listed} say that they are on host {host}, but by its clock leave collectives before all have"
                " come: each is taken to have a clock of its own"
            )
        else:
            owner |= dict.fromkeys(ranks, ranks[0])
            notes.append(f"ranks {listed} are on host {host}: they have one clock")
    return owner, tuple(notes)


def _doubted(host_of: Mapping[int, str], timelines: Sequence[Timeline], matching: Matching) -> set[str]:
    """The hosts within which too many collectives would end on a rank before another comes."""
    by_rank = {timeline.rank: timeline for timeline in timelines}
    looked_at, impossible = Counter[str](), Counter[str]()
    for one in matching.matched:
        if one.collective in ROOTED or one.is_first:
            continue
        rows: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for rank, row in zip(one.ranks, one.rows, strict=True):
            if rank in host_of:
                rows[host_of[rank]].append((int(by_rank[rank].start_ns[row]), int(by_rank[rank].end_ns[row])))
        for host, times_ns in rows.items():
            looked_at[host] += 1
            impossible[host] += min(end_ns for _, end_ns in times_ns) < max(start_ns for start_ns, _ in times_ns)
    return {host for host, count in looked_at.items() if impossible[host] > MOST_IMPOSSIBLE * count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How well the ends of one process group's collectives agree on the common clock.

    group: its name; None where the traces do not tell groups. collectives: how many were looked at.
    residual_ns: from the first to the last clock's end of one collective, in the median. widest_ns: at most. Ranks of
    one host have one clock, so that both are 0 of a group within a host. Both None of a single collective of several
    clocks, whose ends agree by whatever offsets.
    """

    group: str | None
    ranks: tuple[int, ...]
    collectives: int
    residual_ns: int | None
    widest_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What brings the clocks of these ranks together.

    timelines: as they were given. offset_ns: by rank, what its clock must show more; 0 for ranks left as they are.
    agreements: of each group whose ends were compared.
    connected: sets of ranks that are on one host or whose ends were compared, directly or through others; clocks of
    two sets stay apart.
    notes: what was assumed, and what could not be aligned.
    """

    timelines: tuple[Timeline, ...]
    offset_ns: Mapping[int, int]
    agreements: tuple[Agreement, ...]
    connected: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def residual_ns(self) -> int | None:
        """How far times of different ranks may be off, by the worst group's median; None where none is known."""
        known = [one.residual_ns for one in self.agreements if one.residual_ns is not None]
        return max(known, default=None)

    def applied(self) -> tuple[Timeline, ...]:
        """The Timelines on the common clock, in the order in which they were given."""
        return tuple(timeline.moved(self.offset_ns[timeline.rank]) for timeline in self.timelines)

    def tables(self) -> tuple[Table, ...]:
        """The offset of each rank, and how well the ends of each group agree."""
        columns = (Column(name="group"), Column(name="ranks"), Column(name="collectives"))
        return (
            Table(
                name="clocks",
                title="What each rank's clock must show more",
                columns=(Column(name="rank"), Column(name="offset", unit="ns")),
                rows=tuple(sorted(self.offset_ns.items())),
                notes=self.notes,
            ),
            Table(
                name="residuals",
                title="How far the ends of one collective still lie apart on different clocks",
                columns=(*columns, Column(name="median", unit="ns"), Column(name="widest", unit="ns")),
                rows=tuple(
                    (one.group, len(one.ranks), one.collectives, one.residual_ns, one.widest_ns)
                    for one in self.agreements
                ),
            ),
        )


def align(timelines: Sequence[Timeline], matching: Matching | None = None) -> Alignment:
    """The offsets of these ranks' clocks, from the median difference of their collectives' ends.

    Ranks of one host have one offset. Left out are rooted collectives and messages, whose ends need not
    agree, and the first collective of each rank. Where several groups connect clocks, the offsets are those that fit
    all groups best, by least squares. Of each set of connected ranks the lowest keeps its clock; where no two clocks
    are further apart than the ends of a collective, they are one clock, and all keep theirs.

    matching: of these Timelines, where it is known already.

    Raises:
        ValueError: two Timelines are of one rank.
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
        found = offsets(clocks, of_set)
        limit_ns = max((_agreement(ends, found).residual_ns or 0 for ends in of_set), default=0)
        is_one = max(found.values()) - min(found.values()) <= limit_ns
        offset_ns |= {rank: 0 if is_one else found[clock_of[rank]] for rank in ranks}
        if is_one and len(clocks) > 1:
            notes.append(
                f"the clocks of ranks {_listed(ranks)} agree within the {limit_ns / 1e3:g} us by which the ends of one"
                " collective lie apart: they are taken as one clock"
            )
    if len(connected) > 1:
        sets = "; ".join(_listed(ranks) for ranks in connected)
        notes.append(f"no collective connects these sets of ranks, whose clocks are not compared: {sets}")
    return Alignment(
        timelines=tuple(timelines),
        offset_ns=offset_ns,
        agreements=tuple(_agreement(ends, {clock: offset_ns[clock] for clock in ends.clocks}) for ends in compared),
        connected=tuple(connected),
        notes=tuple(notes),
    )


def _compared(timelines: Sequence[Timeline], matching: Matching, clock_of: Mapping[int, int]) -> list[Ends]:
    """The ends of all collectives that are told to agree, by group."""
    end_ns = {timeline.rank: timeline.end_ns for timeline in timelines}
    rows: dict[tuple[str | None, tuple[int, ...]], list[tuple[int, ...]]] = defaultdict(list)
    for one in matching.matched:
        if one.collective not in ROOTED and not one.is_first:
            rows[one.group, one.ranks].append(one.rows)
    found = []
    for (group, ranks), of_group in rows.items():
        columns = [
            end_ns[rank][list(of_rank)] for rank, of_rank in zip(ranks, zip(*of_group, strict=True), strict=True)
        ]
        found.append(ends_of(group, ranks, np.stack(columns, axis=1), clock_of))
    return found


def _agreement(ends: Ends, offset_ns: Mapping[int, int]) -> Agreement:
    spread_ns = ends.spread_ns(offset_ns)
    is_known = spread_ns.size > 1 or len(ends.clocks) == 1
    return Agreement(
        group=ends.group,
        ranks=ends.ranks,
        collectives=spread_ns.size,
        residual_ns=int(np.median(spread_ns)) if is_known else None,
        widest_ns=int(spread_ns.max()) if is_known else None,
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


# The ranks that a critical path can go through: those whose clocks are compared with each other.
#
# Between others a difference of times is one of clocks, and says nothing of what was waited for.


def ranks_on_one_clock(alignment: Alignment, present: Collection[int]) -> frozenset[int]:
    """Of the ranks that are present the most whose clocks are compared; of sets as large the one of the lowest."""
    sets = [frozenset(present) & frozenset(ranks) for ranks in alignment.connected]
    return max(sets, key=len)


def of_ranks(alignment: Alignment, ranks: Set[int]) -> Alignment:
    """The same of these ranks alone, which are one of its sets."""
    return replace(
        alignment,
        timelines=tuple(timeline for timeline in alignment.timelines if timeline.rank in ranks),
        offset_ns={rank: offset_ns for rank, offset_ns in alignment.offset_ns.items() if rank in ranks},
        agreements=tuple(one for one in alignment.agreements if ranks >= set(one.ranks)),
    )


def matched_within(matching: Matching, ranks: Set[int]) -> Matching:
    """The collectives of these ranks alone; what ranks of theirs and others have in common is unmatched."""
    reason = "it is with ranks whose clocks are not compared"
    apart = [
        Unmatched(rank=rank, row=row, reason=reason)
        for one in matching.matched
        if not ranks >= set(one.ranks)
        for rank, row in zip(one.ranks, one.rows, strict=True)
        if rank in ranks
    ]
    return replace(
        matching,
        matched=tuple(one for one in matching.matched if ranks >= set(one.ranks)),
        unmatched=(*matching.unmatched, *apart),
    )


def left_out(ranks: Set[int], present: Collection[int]) -> list[str]:
    """Which ranks the path does not go through, and why."""
    others = sorted(set(present) - ranks)
    if not others:
        return []
    return [f"the path leaves out {_named(others)}: clocks are not compared with those of {_named(sorted(ranks))}"]


def _named(ranks: Collection[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
