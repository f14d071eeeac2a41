"""One clock for all ranks, from the ends of their collectives.

Ranks of one host have one clock, so that what their ends lie apart is no error of clocks. Others' clocks are compared:
a rank leaves a collective when all have come and its data is there, so that ranks leave within microseconds of each
other, however long each waited, and the median difference of two ranks' ends is the difference of their clocks.
A clock that runs faster than another is not looked for; over a trace of seconds that is microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.traces.ranks.clock_groups import Ends, connected_sets, ends_of, offsets
from collectors.traces.ranks.hosts import clocks_of_hosts
from collectors.traces.ranks.matching import ROOTED, Matching, match
from collectors.traces.spans import Timeline
from collectors.traces.table import Column, Table


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
