"""The dependency graph for finding a critical path.

A node is a point in time on a rank:

- the start or the end of a span on the device,
- a point on a host thread at which it launches, waits, is waited for, or a step begins or ends,
- the start of a collective's transfer, at its last arrival.

An edge means that its target depends on its source and on the work between them. The time of a node is when its last
dependency is done, plus its own delay. This rule reproduces the recorded times exactly, and gives the times that would
result if some work were left out (`replay`).
Source: Kelley and Walker 1959, Critical-Path Planning and Scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.timeline import ABSENT

PathKind = Literal["compute", "communication", "copy", "launch", "host", "delay"]
PATH_KINDS: tuple[PathKind, ...] = get_args(PathKind)
"""launch: calls of the driver. host: operators, and the host's time between them.

delay: unexplained time from a node's last dependency to the node.
"""

Dependency = Literal[
    "work", "stream order", "launch", "stream wait", "synchronisation", "waking", "enqueuing", "arrival"
]
DEPENDENCIES: tuple[Dependency, ...] = get_args(Dependency)
"""The rule behind an edge: see `dependencies`; arrival: a transfer starts when a rank has arrived."""

TIED_AT_ONCE = 1000
"""Maximum length of a chain of dependent nodes with the same time; a longer chain counts as a cycle."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Nodes in topological order, and the edges between them, sorted by target.

    time_ns, trace, mark, delay_ns: per node. trace: index of the rank's Timeline. mark: for the end of a device's span,
    the rank's first mark after the span was launched; else `ABSENT`. delay_ns: time since its last dependency.
    source, target, dependency, row, thread, work_ns: per edge. row: the span whose work it is; `ABSENT` if it is the
    thread's work, or there is none. work_ns: (edges, kinds) in the order of `PATH_KINDS`.
    first: (nodes + 1,) the edges to node n are first[n] to first[n + 1] - 1.
    number: for each node in the order of addition, its index in this order.
    """

    time_ns: Times
    trace: Numbers
    mark: Numbers
    source: Numbers
    target: Numbers
    dependency: NDArray[np.int8]
    row: Numbers
    thread: Numbers
    work_ns: Times
    first: Numbers
    delay_ns: Times
    number: Numbers


class GraphBuilder:
    """Collects nodes and edges, and builds the Graph."""

    def __init__(self) -> None:
        self._count = 0
        self._nodes: list[tuple[Times, Numbers, Numbers]] = []
        self._edges: list[tuple[Numbers, Numbers, NDArray[np.int8], Numbers, Numbers, Times]] = []

    def add_nodes(self, time_ns: Times, *, trace: int, mark: Numbers | None = None) -> Numbers:
        """Add nodes; return their numbers, for use in edges."""
        size = time_ns.size
        marks = np.full(size, ABSENT, dtype=np.int64) if mark is None else mark
        self._nodes.append((time_ns, np.full(size, trace, dtype=np.int64), marks))
        self._count += size
        return np.arange(self._count - size, self._count, dtype=np.int64)

    def add_edges(
        self,
        source: Numbers,
        target: Numbers,
        dependency: Dependency,
        *,
        work_ns: Times | None = None,
        row: Numbers | None = None,
        thread: Numbers | None = None,
    ) -> None:
        """Add edges between nodes. By default, row and thread are `ABSENT`, and work is 0."""
        absent = np.full(source.size, ABSENT, dtype=np.int64)
        self._edges.append(
            (
                source,
                target,
                np.full(source.size, DEPENDENCIES.index(dependency), dtype=np.int8),
                absent if row is None else row,
                absent if thread is None else thread,
                np.zeros((source.size, len(PATH_KINDS)), dtype=np.int64) if work_ns is None else work_ns,
            )
        )

    def build(self) -> Graph:
        """Return the Graph, without edges that run against time, which a wrong clock may produce."""
        time_ns, trace, mark = (np.concatenate(column) for column in zip(*self._nodes, strict=True))
        source, target, dependency, row, thread, work_ns = map(np.concatenate, zip(*self._edges, strict=True))
        possible = time_ns[source] + work_ns.sum(axis=1) <= time_ns[target]
        order, number = _ordered(time_ns, source[possible], target[possible])
        # Edges in a cycle of nodes with the same time fail the second condition.
        edges = np.flatnonzero(possible & (number[source] < number[target]))
        edges = edges[np.argsort(number[target[edges]], kind="stable")]
        time_ns, source, target, work_ns = time_ns[order], number[source[edges]], number[target[edges]], work_ns[edges]
        # When the last dependency of each node is done; the smallest integer if it has none.
        ready_ns = np.full(time_ns.size, np.iinfo(np.int64).min, dtype=np.int64)
        np.maximum.at(ready_ns, target, time_ns[source] + work_ns.sum(axis=1))
        bound = ready_ns > np.iinfo(np.int64).min
        return Graph(
            time_ns=time_ns,
            trace=trace[order],
            mark=mark[order],
            source=source,
            target=target,
            dependency=dependency[edges],
            row=row[edges],
            thread=thread[edges],
            work_ns=work_ns,
            first=np.searchsorted(target, np.arange(time_ns.size + 1)),
            delay_ns=np.where(bound, time_ns - ready_ns, 0),
            number=number,
        )


def work_of(kind: PathKind, work_ns: Times) -> Times:
    """Return work of one kind as the (edges, kinds) table that `GraphBuilder.add_edges` takes."""
    table = np.zeros((work_ns.size, len(PATH_KINDS)), dtype=np.int64)
    table[:, PATH_KINDS.index(kind)] = work_ns
    return table


def replay(graph: Graph, free: PathKind | None = None) -> Times:
    """Return the time of each node if work of a kind takes no time.

    A node without dependencies keeps its recorded time. Delays stay as recorded, unless `free` is "delay".
    Source: Zhu et al. 2020, Daydream (replays a dependency graph with some work changed).
    """
    path_kinds = [number for number, kind in enumerate(PATH_KINDS) if kind != free]
    work_ns = graph.work_ns[:, path_kinds].sum(axis=1).tolist()
    delay_ns = [0] * graph.time_ns.size if free == "delay" else graph.delay_ns.tolist()
    came_ns: list[int] = graph.time_ns.tolist()
    source, first = graph.source.tolist(), graph.first.tolist()
    edge = 0
    for node, after in enumerate(first[1:]):
        if edge == after:
            continue
        ready_ns = came_ns[source[edge]] + work_ns[edge]
        for other in range(edge + 1, after):
            done_ns = came_ns[source[other]] + work_ns[other]
            if done_ns > ready_ns:
                ready_ns = done_ns
        came_ns[node] = ready_ns + delay_ns[node]
        edge = after
    return np.array(came_ns, dtype=np.int64)


def _ordered(time_ns: Times, source: Numbers, target: Numbers) -> tuple[Numbers, Numbers]:
    """Return the nodes in topological order, and the index of each in this order.

    Nodes are sorted by time, and those with the same time by their depth in the graph (`level`).
    """
    tied = time_ns[source] == time_ns[target]
    source, target = source[tied], target[tied]
    level = np.zeros(time_ns.size, dtype=np.int64)
    for _ in range(TIED_AT_ONCE):
        early = level[target] <= level[source]
        if not early.any():
            break
        np.maximum.at(level, target[early], level[source[early]] + 1)
    order = np.lexsort((level, time_ns))
    number = np.empty_like(order)
    number[order] = np.arange(order.size)
    return order, number
