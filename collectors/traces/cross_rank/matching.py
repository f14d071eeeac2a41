"""Matching: finds which events of several ranks belong to the same collective.

Events match by process group and sequence number if every trace has both, else by group and order. Clocks may differ
between ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from collectors.traces.cross_rank.process_groups import (
    AlignedGroup,
    ProcessGroup,
    UnmatchedSpans,
    aligned_groups,
    call_of,
    process_groups,
)
from collectors.traces.table import Table, table_of
from collectors.traces.timeline import Timeline

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Collectives that some ranks may leave before the last has arrived, so that their ends need not agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedCollective:
    """A collective on its ranks.

    group: the process group's name; None if the traces do not name groups.
    sequence: its number in the group; None if it was matched by order.
    ranks: whose traces contain it, ascending. rows: per rank, the index of its span in that rank's Timeline.
    missing: ranks of the group without a trace, if the traces list its ranks.
    group_size: the number of ranks in the group; None if the traces do not have it.
    is_first: whether it is the first match of at least one of its ranks, which had barely begun to trace then.
    """

    collective: str
    group: str | None
    sequence: int | None
    ranks: tuple[int, ...]
    rows: tuple[int, ...]
    missing: tuple[int, ...] = ()
    is_first: bool = False
    group_size: int | None = None

    @property
    def missing_count(self) -> int:
        """The number of the group's ranks without a trace, as far as its ranks or its size are known."""
        return max(len(self.missing), (self.group_size or 0) - len(self.ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """A span of communication without a counterpart on every other rank of its group, and why."""

    rank: int
    row: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """All collectives that exist on every traced rank of their groups; by group, and in order within each.

    notes: assumptions.
    """

    matched: tuple[MatchedCollective, ...]
    unmatched: tuple[Unmatched, ...]
    notes: tuple[str, ...] = ()

    def tables(self) -> tuple[Table, ...]:
        """Return tables of the number of matches of each kind, and of reasons why others did not match."""
        matched = Counter(
            (
                collective.collective,
                collective.group,
                len(collective.ranks),
                len(collective.ranks) + collective.missing_count,
            )
            for collective in self.matched
        )
        unmatched = Counter((spans.rank, spans.reason) for spans in self.unmatched)
        return (
            table_of(
                "matched",
                "Collectives that were found on all traced ranks of their groups",
                "collective group traced_ranks ranks count",
                [(*kind, count) for kind, count in matched.items()],
                *self.notes,
            ),
            table_of(
                "unmatched",
                "Communication events without a counterpart on other ranks",
                "rank reason count",
                [(*event, count) for event, count in sorted(unmatched.items())],
            ),
        )


def match(timelines: Sequence[Timeline]) -> Matching:
    """Match the collectives of these ranks.

    Raises:
        ValueError: two Timelines belong to the same rank.
    """
    by_rank = {timeline.rank: timeline for timeline in timelines}
    if len(by_rank) < len(timelines):
        often = Counter(timeline.rank for timeline in timelines).most_common(1)[0][0]
        raise ValueError(f"rank {often} has more than one trace; give one of each rank")
    groups, left_over = process_groups(by_rank)
    matched: list[MatchedCollective] = []
    notes: list[str] = []
    is_guessed = False
    for group in groups:
        for aligned in aligned_groups(group, by_rank):
            of_group, rest = _matched(group, aligned, by_rank)
            matched += of_group
            left_over += rest
            notes += aligned.notes
            is_guessed |= bool(of_group) and group.name is None and not group.ranks
    if is_guessed:
        notes.append(
            "the traces name no process groups: ranks that were in collectives of one name together are one group"
        )
    # A rank's first match is the one with its lowest row.
    first: dict[int, int] = {}
    for collective in matched:
        for rank, row in zip(collective.ranks, collective.rows, strict=True):
            first[rank] = min(first.get(rank, row), row)
    return Matching(
        matched=tuple(
            replace(
                collective,
                is_first=any(first[rank] == row for rank, row in zip(collective.ranks, collective.rows, strict=True)),
            )
            for collective in matched
        ),
        unmatched=tuple(
            Unmatched(rank=spans.rank, row=row, reason=spans.reason)
            for spans in left_over
            for row in spans.rows.tolist()
        ),
        notes=tuple(notes),
    )


def _matched(
    group: ProcessGroup, aligned: AlignedGroup, timelines: Mapping[int, Timeline]
) -> tuple[list[MatchedCollective], list[UnmatchedSpans]]:
    """Return the collectives that all traced ranks of the group have, and the remaining events."""
    positions = aligned.positions
    traced = tuple(sorted(set(group.ranks) & set(timelines))) or tuple(positions)
    if reason := _why_none(group, aligned, traced):
        return [], [UnmatchedSpans(rank=rank, rows=group.rows[rank], reason=reason) for rank in positions]
    # Positions that every rank has; `kinds` and `rows` have one row per rank and one column per common position.
    # Example: with positions 0 1 2 3 on one rank and 1 2 3 4 on another, 1 2 3 are common, in columns 1 2 3 and 0 1 2.
    common = reduce(np.intersect1d, positions.values())
    columns = {}
    for rank in traced:
        order = np.argsort(positions[rank], kind="stable")
        columns[rank] = order[np.searchsorted(positions[rank], common, sorter=order)]
    kinds = np.stack([aligned.kinds[rank][columns[rank]] for rank in traced])
    rows = np.stack([group.rows[rank][columns[rank]] for rank in traced])
    is_alike = (kinds == kinds[0]).all(axis=0)
    left_over = []
    for rank, of_rank in zip(traced, rows, strict=True):
        unlike = f"other ranks have a different collective at its place in {_title(group)}"
        left_over.append(UnmatchedSpans(rank=rank, rows=of_rank[~is_alike], reason=unlike))
        unsure = group.rows[rank][aligned.is_unsure.get(rank, np.zeros(group.rows[rank].size, dtype=np.bool_))]
        lost = f"a trace of {_title(group)} lost some, so it could be any of several collectives of another rank"
        left_over.append(UnmatchedSpans(rank=rank, rows=unsure, reason=lost))
        outside = f"not in every rank's trace of {_title(group)}"
        rest = np.setdiff1d(group.rows[rank], np.concatenate((of_rank, unsure)))
        left_over.append(UnmatchedSpans(rank=rank, rows=rest, reason=outside))
    # Ranks agree on common collectives, so the first rank describes them for all.
    first = timelines[traced[0]]
    matched = [
        MatchedCollective(
            collective=call_of(first, of_ranks[0]).collective,
            group=group.name,
            sequence=int(first.sequence[of_ranks[0]]) if aligned.is_numbered else None,
            ranks=traced,
            rows=tuple(of_ranks),
            missing=tuple(rank for rank in group.ranks if rank not in timelines),
            group_size=group.size,
        )
        for of_ranks in rows[:, is_alike].T.tolist()
    ]
    return matched, left_over


def _why_none(group: ProcessGroup, aligned: AlignedGroup, traced: Sequence[int]) -> str | None:
    """Return why no collective in this order can be matched; None if they can be."""
    if absent := [rank for rank in traced if rank not in group.rows]:
        return f"rank {absent[0]}'s trace holds nothing of {_title(group)}"
    if not aligned.positions.keys() >= set(traced) or (
        group.name is not None and len(aligned.positions) < len(group.rows)
    ):
        return f"ranks do not have the collectives of {_title(group)} in one order"
    if group.size is not None and len(traced) > group.size:
        return f"{_title(group)} has {group.size} ranks and {len(traced)} traces hold it: which are together is unknown"
    if len(traced) == 1:
        return f"no other rank's trace holds the same of {_title(group)}"
    return None


def _title(group: ProcessGroup) -> str:
    if group.name is not None:
        return f"process group {group.name}"
    return "a process group without a name" if group.ranks else "an unknown process group"
