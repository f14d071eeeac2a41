"""The dependency graph of all ranks, joined where they wait for each other in collectives, and its steps.

A collective begins to transfer at its last arrival. A rank that left before that, as the root of a broadcast may, did
not wait, and its span counts with its own duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.cross_rank.matching import Matched
from collectors.traces.dependency_graph.graph import Graph, GraphBuilder, Numbers, work_of
from collectors.traces.dependency_graph.rank_graph import Marks, RankMoments, draft_rank
from collectors.traces.intervals import Times
from collectors.traces.steps import LONG_AGO, steps
from collectors.traces.timeline import ABSENT, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedGraph:
    """The graph, each rank's part of it, and per rank the moments of its marks."""

    graph: Graph
    ranks: tuple[RankMoments, ...]
    marks: tuple[Numbers, ...]


def joined_graph(timelines: Sequence[Timeline], matched: Sequence[Matched], marks: Sequence[Marks]) -> JoinedGraph:
    """Return the graph of these ranks, whose clocks are aligned. marks: per rank, host times that must be in it."""
    places = {timeline.rank: place for place, timeline in enumerate(timelines)}
    draft = GraphBuilder()
    # Per rank and span: whether it is a collective that the rank did not leave before the last arrival.
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
    draft: GraphBuilder,
) -> None:
    """Draft the moment at which each collective begins to transfer: after every arrival, before every awaited end."""
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


# Steps that all ranks have whole, and their joint start and end.
#
# A step ends when all work that any rank launched before its end is done on every rank. It starts where the previous
# step ended, but not before it starts on the first rank. So no time is in two steps, and between steps that follow each
# other on the hosts none is lost, however far the devices are behind.


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSteps:
    """Steps in order. marks: per rank the host times at which steps start and end, alternating.

    notes: which steps were left out.
    """

    names: tuple[str, ...]
    marks: tuple[Marks, ...]
    notes: tuple[str, ...]


def common_steps(timelines: Sequence[Timeline]) -> CommonSteps:
    """Return the steps that every rank's trace holds whole.

    Steps match by name; one without a number in its name is numbered by its position in the trace (`step_names`).
    """
    rows = [_rows_of_whole(timeline) for timeline in timelines]
    names = tuple(name for name in rows[0] if all(name in mine for mine in rows)) if rows else ()
    notes = [note for timeline in timelines for note in _cut(timeline)]
    if others := len(set().union(*rows)) - len(names):
        notes.append(f"{others} of the steps are left out: not every rank's trace holds them whole")
    return CommonSteps(
        names=names,
        marks=tuple(
            _marks(timeline, [mine[name] for name in names]) for timeline, mine in zip(timelines, rows, strict=True)
        ),
        notes=tuple(notes),
    )


def bounds_ns(graph: Graph, came_ns: Times, marks: Sequence[Numbers]) -> Times:
    """Return (steps, 2) the start and end of each step if the moments come at these times.

    marks: per rank the moments of its marks.
    """
    reached = np.stack([_reached_ns(graph, came_ns, trace, numbers) for trace, numbers in enumerate(marks)])
    starts_ns, ends_ns = reached[:, ::2].min(axis=0), reached[:, 1::2].max(axis=0)
    # Even columns of reached are starts, odd ones ends. Then no step may overlap the one before.
    ends_ns = np.maximum.accumulate(np.maximum(ends_ns, starts_ns[0]))
    starts_ns[1:] = np.clip(starts_ns[1:], ends_ns[:-1], ends_ns[1:])
    return np.stack((starts_ns, ends_ns), axis=1)


def last_moment(graph: Graph, step: int, end_ns: int, marks: Sequence[Numbers]) -> int:
    """Return the moment at which the step ended: a mark, or the end of work that was launched before it."""
    ending = np.flatnonzero(graph.time_ns == end_ns)
    asked = ending[(graph.mark[ending] != ABSENT) & (graph.mark[ending] <= 2 * step + 1)]
    marked = np.array([numbers[: 2 * step + 2] for numbers in marks], dtype=np.int64).ravel()
    return int(np.concatenate((asked, marked[graph.time_ns[marked] == end_ns]))[0])


def _rows_of_whole(timeline: Timeline) -> dict[str, int]:
    """Return the row of each whole step, by name."""
    rows = np.flatnonzero(timeline.of_kind("step")).tolist()
    return {step.name: row for row, step in zip(rows, steps(timeline), strict=True) if step.part == "step"}


def _cut(timeline: Timeline) -> list[str]:
    """Return a note for each step that is left out because it is not whole."""
    return [
        f"rank {timeline.rank}: {step.name} is left out: {step.why}" for step in steps(timeline) if step.part != "step"
    ]


def _reached_ns(graph: Graph, came_ns: Times, trace: int, marks: Numbers) -> Times:
    """Return when all work that a rank launched before each mark was done, or the mark's own time if later."""
    chosen = np.flatnonzero((graph.trace == trace) & (graph.mark != ABSENT))
    done_ns = np.full(marks.size, LONG_AGO, dtype=np.int64)
    np.maximum.at(done_ns, graph.mark[chosen], came_ns[chosen])
    return np.maximum(np.maximum.accumulate(done_ns), came_ns[marks])


def _marks(timeline: Timeline, rows: Sequence[int]) -> Marks:
    row = np.array(rows, dtype=np.int64)
    times_ns = np.stack((timeline.start_ns[row], timeline.end_ns[row]), axis=1).ravel()
    return Marks(time_ns=times_ns, thread=np.repeat(timeline.stream[row], 2))
