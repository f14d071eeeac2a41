"""The graph of moments of all ranks: each rank's own part, and the collectives in which they wait for each other.

A collective transfers from its last arrival on. A rank that left before that, as the root of a broadcast may, did not
wait, and its own duration stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.path.moments import Draft, Graph, Numbers, work_of
from collectors.traces.path.rank_moments import Marks, RankMoments, draft_rank
from collectors.traces.ranks.matching import Matched
from collectors.traces.spans import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedGraph:
    """The graph, what is known of each rank in it, and the moments of each rank's marks."""

    graph: Graph
    ranks: tuple[RankMoments, ...]
    marks: tuple[Numbers, ...]


def joined_graph(timelines: Sequence[Timeline], matched: Sequence[Matched], marks: Sequence[Marks]) -> JoinedGraph:
    """The graph of these ranks, whose clocks are one. marks: of each, moments of its host that are to be in it."""
    places = {timeline.rank: place for place, timeline in enumerate(timelines)}
    draft = Draft()
    awaited = [np.zeros(timeline.kind.size, dtype=np.bool_) for timeline in timelines]
    for one in matched:
        arrival_ns = _last_arrival_ns(timelines, places, one)
        for rank, row in zip(one.ranks, one.rows, strict=True):
            awaited[places[rank]][row] = timelines[places[rank]].end_ns[row] >= arrival_ns
    ranks = tuple(
        draft_rank(timeline, draft, trace=trace, marks=mine, joined=joined)
        for trace, (timeline, mine, joined) in enumerate(zip(timelines, marks, awaited, strict=True))
    )
    _join(timelines, places, matched, ranks, awaited, draft)
    graph = draft.graph()
    return JoinedGraph(graph=graph, ranks=ranks, marks=tuple(graph.number[rank.marks] for rank in ranks))


def _last_arrival_ns(timelines: Sequence[Timeline], places: dict[int, int], one: Matched) -> int:
    return max(int(timelines[places[rank]].start_ns[row]) for rank, row in zip(one.ranks, one.rows, strict=True))


def _join(
    timelines: Sequence[Timeline],
    places: dict[int, int],
    matched: Sequence[Matched],
    ranks: Sequence[RankMoments],
    awaited: Sequence[NDArray[np.bool_]],
    draft: Draft,
) -> None:
    """Draft the moment at which each collective begins to transfer: after each arrival, and before each end."""
    arrivals_ns = np.array([_last_arrival_ns(timelines, places, one) for one in matched], dtype=np.int64)
    moments = draft.moments(arrivals_ns, trace=0).tolist()
    arrived, gathered, left, ended, lasted_ns, rows = [], [], [], [], [], []
    for one, moment, arrival_ns in zip(matched, moments, arrivals_ns.tolist(), strict=True):
        for rank, row in zip(one.ranks, one.rows, strict=True):
            place = places[rank]
            arrived.append(ranks[place].start[row])
            gathered.append(moment)
            if awaited[place][row]:
                left.append(moment)
                ended.append(ranks[place].end[row])
                lasted_ns.append(int(timelines[place].end_ns[row]) - arrival_ns)
                rows.append(row)
    draft.edges(_column(arrived), _column(gathered), "arrival")
    draft.edges(
        _column(left),
        _column(ended),
        "work",
        work_ns=work_of("communication", _column(lasted_ns)),
        row=_column(rows),
    )


def _column(values: Sequence[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)
