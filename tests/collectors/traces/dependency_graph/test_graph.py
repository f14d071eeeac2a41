"""Nodes come when all that they depend on has come, and by that rule the recorded times follow exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.dependency_graph.graph import Graph, GraphBuilder, Numbers, replay, work_of


def _numbers(*values: int) -> Numbers:
    return np.array(values, dtype=np.int64)


def _graph() -> tuple[Graph, Numbers]:
    """Two pieces of work from one node, of 10 and 30, and a third node 5 after both."""
    builder = GraphBuilder()
    nodes = builder.add_nodes(_numbers(0, 10, 30, 35), trace=0)
    begin, short, long, both = nodes.tolist()
    builder.add_edges(_numbers(begin), _numbers(short), "work", work_ns=work_of("host", _numbers(10)))
    builder.add_edges(_numbers(begin), _numbers(long), "work", work_ns=work_of("compute", _numbers(30)))
    builder.add_edges(_numbers(short, long), _numbers(both, both), "arrival")
    graph = builder.build()
    return graph, graph.number[nodes]


def test_recorded_times_follow_from_the_graph() -> None:
    graph, _ = _graph()
    assert replay(graph).tolist() == graph.time_ns.tolist()


def test_free_work_lets_what_it_hid_decide_and_delays_stay() -> None:
    graph, numbers = _graph()
    assert replay(graph, "compute")[numbers].tolist() == [0, 10, 0, 15]


def test_free_delays_leave_the_work() -> None:
    graph, numbers = _graph()
    assert replay(graph, "delay")[numbers].tolist() == [0, 10, 30, 30]


def test_an_edge_against_time_is_left_out() -> None:
    builder = GraphBuilder()
    early, late = builder.add_nodes(_numbers(0, 10), trace=0).tolist()
    builder.add_edges(_numbers(late, early), _numbers(early, late), "arrival")
    assert builder.build().source.size == 1


def test_of_nodes_of_one_time_those_come_first_that_others_depend_on() -> None:
    builder = GraphBuilder()
    nodes = builder.add_nodes(_numbers(5, 5, 5), trace=0)
    builder.add_edges(nodes[[2, 1]], nodes[[1, 0]], "stream order")
    graph = builder.build()
    assert graph.number[nodes].tolist() == [2, 1, 0]
    assert (graph.source < graph.target).all()


def test_nodes_of_one_time_that_depend_on_each_other_are_put_in_some_order() -> None:
    builder = GraphBuilder()
    nodes = builder.add_nodes(_numbers(5, 5), trace=0)
    builder.add_edges(nodes, nodes[::-1], "arrival")
    graph = builder.build()
    assert (graph.source < graph.target).all()
    assert replay(graph).tolist() == [5, 5]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 20)), max_size=30), st.integers(0, 2**31)
)
def test_any_graph_replays_as_it_was_recorded_and_never_later_without_work(
    edges: list[tuple[int, int, int]], seed: int
) -> None:
    builder = GraphBuilder()
    nodes = builder.add_nodes(np.random.default_rng(seed).integers(0, 60, 10), trace=0)
    source, target, work_ns = (_numbers(*column) for column in zip(*edges, strict=True)) if edges else [_numbers()] * 3
    builder.add_edges(nodes[source], nodes[target], "work", work_ns=work_of("compute", work_ns))
    graph = builder.build()
    assert (graph.delay_ns >= 0).all()
    assert (replay(graph) == graph.time_ns).all()
    assert (replay(graph, "compute") <= graph.time_ns).all()
