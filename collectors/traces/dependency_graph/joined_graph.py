"""The dependency graph of all ranks, joined where they wait for each other in collectives, and its steps.

A collective begins to transfer at its last arrival. A rank that left before that, as the root of a broadcast may, did
not wait, and its span counts with its own duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectors.traces.cross_rank.matching import MatchedCollective
from collectors.traces.dependency_graph.graph import Graph, GraphBuilder, Numbers, work_of
from collectors.traces.dependency_graph.rank_graph import Marks, RankNodes, add_rank
from collectors.traces.intervals import Times
from collectors.traces.steps import LONG_AGO, steps
from collectors.traces.timeline import ABSENT, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedGraph:
    """The graph, each rank's part of it, and per rank the nodes of its marks."""

    graph: Graph
    ranks: tuple[RankNodes, ...]
    marks: tuple[Numbers, ...]


def joined_graph(
    timelines: Sequence[Timeline], matched: Sequence[MatchedCollective], marks: Sequence[Marks]
) -> JoinedGraph:
    """Return the graph of these ranks, whose clocks are aligned. marks: per rank, host times that must be in it."""
    trace_of = {timeline.rank: trace for trace, timeline in enumerate(timelines)}
    # Of each collective its last arrival, and per rank: the trace, the row, and whether the rank did not leave earlier.
    arrivals_ns: list[int] = []
    members: list[list[tuple[int, int, bool]]] = []
    is_joined = [np.zeros(timeline.kind.size, dtype=np.bool_) for timeline in timelines]
    for collective in matched:
        rows = [(trace_of[rank], row) for rank, row in zip(collective.ranks, collective.rows, strict=True)]
        arrival_ns = max(int(timelines[trace].start_ns[row]) for trace, row in rows)
        for trace, row in rows:
            is_joined[trace][row] = timelines[trace].end_ns[row] >= arrival_ns
        arrivals_ns.append(arrival_ns)
        members.append([(trace, row, bool(is_joined[trace][row])) for trace, row in rows])
    builder = GraphBuilder()
    ranks = tuple(
        add_rank(timeline, builder, trace=trace, marks=marks[trace], is_joined=is_joined[trace])
        for trace, timeline in enumerate(timelines)
    )
    # The start of each transfer: after every arrival, and before the end on every rank that waited for it.
    transfers = builder.add_nodes(np.array(arrivals_ns, dtype=np.int64), trace=0).tolist()
    arrivals: list[tuple[int, int]] = []
    ends: list[tuple[int, int, int, int]] = []
    for transfer, arrival_ns, of_ranks in zip(transfers, arrivals_ns, members, strict=True):
        for trace, row, has_waited in of_ranks:
            arrivals.append((ranks[trace].start[row], transfer))
            if has_waited:
                transfer_ns = int(timelines[trace].end_ns[row]) - arrival_ns
                ends.append((transfer, ranks[trace].end[row], transfer_ns, row))
    source, target = np.array(arrivals, dtype=np.int64).reshape(-1, 2).T
    builder.add_edges(source, target, "arrival")
    source, target, lasting_ns, row_of_edge = np.array(ends, dtype=np.int64).reshape(-1, 4).T
    builder.add_edges(source, target, "work", work_ns=work_of("communication", lasting_ns), row=row_of_edge)
    graph = builder.build()
    return JoinedGraph(graph=graph, ranks=ranks, marks=tuple(graph.number[rank.marks] for rank in ranks))


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
    row_of: list[dict[str, int]] = []
    notes = []
    for timeline in timelines:
        complete = {}
        for row, step in zip(np.flatnonzero(timeline.of_kind("step")).tolist(), steps(timeline), strict=True):
            if step.part == "step":
                complete[step.name] = row
            else:
                notes.append(f"rank {timeline.rank}: {step.name} is left out: {step.why}")
        row_of.append(complete)
    names = tuple(name for name in row_of[0] if all(name in of_rank for of_rank in row_of)) if row_of else ()
    if others := len(set().union(*row_of)) - len(names):
        notes.append(f"{others} of the steps are left out: not every rank's trace holds them whole")
    marks = []
    for timeline, of_rank in zip(timelines, row_of, strict=True):
        rows = np.array([of_rank[name] for name in names], dtype=np.int64)
        times_ns = np.stack((timeline.start_ns[rows], timeline.end_ns[rows]), axis=1).ravel()
        marks.append(Marks(time_ns=times_ns, thread=np.repeat(timeline.stream[rows], 2)))
    return CommonSteps(names=names, marks=tuple(marks), notes=tuple(notes))


def bounds_ns(graph: Graph, came_ns: Times, marks: Sequence[Numbers]) -> Times:
    """Return (steps, 2) the start and end of each step if the nodes come at these times.

    marks: per rank the nodes of its marks.
    """
    # Per rank and mark: when all work that the rank launched before the mark was done, or the mark's own time if later.
    reached_ns = np.full((len(marks), marks[0].size), LONG_AGO, dtype=np.int64)
    launched = np.flatnonzero(graph.mark != ABSENT)
    np.maximum.at(reached_ns, (graph.trace[launched], graph.mark[launched]), came_ns[launched])
    reached_ns = np.maximum(np.maximum.accumulate(reached_ns, axis=1), came_ns[np.stack(marks)])
    # Even columns are starts, odd ones ends. Then no step may overlap the one before.
    starts_ns, ends_ns = reached_ns[:, ::2].min(axis=0), reached_ns[:, 1::2].max(axis=0)
    ends_ns = np.maximum.accumulate(np.maximum(ends_ns, starts_ns[0]))
    starts_ns[1:] = np.clip(starts_ns[1:], ends_ns[:-1], ends_ns[1:])
    return np.stack((starts_ns, ends_ns), axis=1)


def last_node(graph: Graph, step: int, end_ns: int, marks: Sequence[Numbers]) -> int:
    """Return the node at which the step ended: a mark, or the end of work that was launched before it."""
    ending = np.flatnonzero(graph.time_ns == end_ns)
    launched = ending[(graph.mark[ending] != ABSENT) & (graph.mark[ending] <= 2 * step + 1)]
    marked = np.array([numbers[: 2 * step + 2] for numbers in marks], dtype=np.int64).ravel()
    return int(np.concatenate((launched, marked[graph.time_ns[marked] == end_ns]))[0])
