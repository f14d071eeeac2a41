"""The ranks that a critical path can go through: those whose clocks are compared with each other.

Between others a difference of times is one of clocks, and says nothing of what was waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import replace

from collectors.traces.ranks.clocks import Alignment
from collectors.traces.ranks.matching import Matching, Unmatched


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
    return [f"the path leaves out {_listed(others)}: clocks are not compared with those of {_listed(sorted(ranks))}"]


def _listed(ranks: Collection[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
