"""Links by level: which sweeps of a history give which, and what is absent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.results.estimate import estimate
from bench.store.history import History
from bench.store.links import MeasuredLinks, bandwidth_spread, find_links, placement_words, sweep_runs
from bench.store.summary import Summary
from collectors.metrics.probes import RUN_LINK_BANDWIDTH, RUN_LINK_LATENCY_SECONDS
from tests.bench.made.examples import make_case, make_machine, make_probe, make_summary
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import COLLECTIVES, CommunicationBackend, Link, collective_time_s
from workloads.cost_models.interconnect import MeshAxis, NetworkLevel, axis_time_s
from workloads.cost_models.terms import Collective
from workloads.spec import OptionValue

INSIDE = [4.0e9, 4.1e9, 4.2e9]
ACROSS = [0.9e9, 1.0e9, 1.1e9]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """An empty one."""
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as empty:
        yield empty


def sweep(
    history: History,
    run: str,
    bandwidths: list[float],
    *,
    ranks: int,
    nodes: int = 1,
    latencies_s: list[float] | None = None,
    collective: str = "all_reduce",
    started_ns: int = 1,
    backend: CommunicationBackend = "gloo",
) -> None:
    fitted = (
        estimate(RUN_LINK_LATENCY_SECONDS, latencies_s or [1e-5, 1.1e-5, 1.2e-5], collective=collective),
        estimate(RUN_LINK_BANDWIDTH, bandwidths, collective=collective),
    )
    case = replace(make_probe("collectives", ranks, nodes=nodes), backend=backend)
    summary = make_summary(run, case=case, estimates=fitted, scaling=(), started_ns=started_ns)
    history.add(summary, make_machine())


def trained(ranks: int = 8, nodes: int = 2) -> Summary:
    return make_summary("run-trained", case=make_case(ranks=ranks, nodes=nodes))


def levels_of(found: MeasuredLinks | Absent) -> tuple[NetworkLevel, ...]:
    assert isinstance(found, MeasuredLinks)
    return found.interconnect.levels


def bandwidth_of(level: NetworkLevel) -> float:
    assert isinstance(level.link, Link)
    return level.link.bandwidth_bytes_per_second


def test_a_sweep_on_one_node_gives_the_inner_level_and_one_over_nodes_the_outer(history: History) -> None:
    sweep(history, "in", INSIDE, ranks=4)
    sweep(history, "out", ACROSS, ranks=8, nodes=2)
    found = find_links(trained(), history)
    node, cluster = levels_of(found)
    assert (node.name, node.ranks, bandwidth_of(node)) == ("node", 4, 4.1e9)
    assert (cluster.name, cluster.ranks, bandwidth_of(cluster)) == ("cluster", 8, 1.0e9)
    assert isinstance(found, MeasuredLinks)
    assert found.basis == (
        "4.1 GB/s inside a node, all 4 ranks at once (in), and 1 GB/s across 2 nodes, all 4 ranks of each at once (out)"
    )


def test_the_latency_between_nodes_is_what_the_ring_pays_beyond_its_hops_inside(history: History) -> None:
    sweep(history, "in", INSIDE, ranks=4, latencies_s=[1e-5])
    sweep(history, "out", ACROSS, ranks=8, nodes=2, latencies_s=[4e-5])
    _, cluster = levels_of(find_links(trained(), history))
    assert isinstance(cluster.link, Link)
    # Of 8 hops, 6 of 10 us are inside nodes, and 2 of 130 us between them: 320 us in all.
    assert cluster.link.latency_s == pytest.approx(1.3e-4)


def test_a_level_that_no_sweep_measured_is_absent_with_the_command(history: History) -> None:
    sweep(history, "in", INSIDE, ranks=4)
    node, cluster = levels_of(find_links(trained(), history))
    assert bandwidth_of(node) == 4.1e9
    assert isinstance(cluster.link, Absent)
    assert "no sweep of all_reduce on 4 ranks of each across nodes" in cluster.link.reason
    assert "`observatory run collectives --ranks 8 --nodes 2 --option collectives=all_reduce`" in cluster.link.reason


def test_a_sweep_over_nodes_alone_is_no_link_inside_one(history: History) -> None:
    sweep(history, "out", ACROSS, ranks=8, nodes=2)
    node, cluster = levels_of(find_links(trained(), history))
    assert isinstance(node.link, Absent)
    assert "no sweep of all_reduce on 4 ranks inside a node" in node.link.reason
    assert "`observatory run collectives --ranks 4 --option collectives=all_reduce`" in node.link.reason
    assert bandwidth_of(cluster) == 1.0e9


def test_one_rank_of_each_node_sees_a_share_of_its_link_and_does_not_count(history: History) -> None:
    sweep(history, "in", INSIDE, ranks=4)
    sweep(history, "rail", ACROSS, ranks=2, nodes=2)
    _, cluster = levels_of(find_links(trained(), history))
    assert isinstance(cluster.link, Absent)
    assert "(only with 1, a share of a node's link)" in cluster.link.reason
    # For a run that also has one rank on each node, it is the link of a node.
    (alone,) = levels_of(find_links(trained(ranks=2), history))
    assert bandwidth_of(alone) == 1.0e9


def test_as_many_nodes_as_the_run_has_come_first_and_then_the_most(history: History) -> None:
    sweep(history, "in", INSIDE, ranks=4)
    sweep(history, "two", [1e9], ranks=8, nodes=2, started_ns=3)
    sweep(history, "four", [0.8e9], ranks=16, nodes=4, started_ns=2)
    for nodes, expected in ((2, 1e9), (4, 0.8e9), (8, 0.8e9)):
        _, cluster = levels_of(find_links(trained(ranks=4 * nodes, nodes=nodes), history))
        assert bandwidth_of(cluster) == expected
        assert cluster.ranks == 4 * nodes


def test_levels_that_measure_alike_within_their_intervals_have_one_link(history: History) -> None:
    sweep(history, "in", [1.0e9, 1.1e9, 1.2e9], ranks=4)
    sweep(history, "out", ACROSS, ranks=8, nodes=2)
    found = find_links(trained(), history)
    assert [(level.ranks, bandwidth_of(level)) for level in levels_of(found)] == [(4, 1.0e9), (8, 1.0e9)]
    assert isinstance(found, MeasuredLinks)
    assert found.basis.endswith("alike within their intervals, so one link for both levels")
    # Four groups, one through each rank of a node, leave it over its one link.
    strided, over_all = MeshAxis(size=2, stride=4), MeshAxis(size=8)
    times_s = [axis_time_s("all_reduce", 10**9, axis, found.interconnect, "nccl") for axis in (strided, over_all)]
    assert times_s[0] / times_s[1] == pytest.approx(4 * (1 / 2) / (7 / 8), rel=0.01)


@pytest.mark.parametrize("latencies_s", [[1e-3, 1.1e-3, 1.2e-3]])
def test_equal_bandwidths_with_other_latencies_are_two_levels(history: History, latencies_s: list[float]) -> None:
    sweep(history, "in", ACROSS, ranks=4)
    sweep(history, "out", ACROSS, ranks=8, nodes=2, latencies_s=latencies_s)
    assert len(levels_of(find_links(trained(), history))) == 2


# Links of single collectives.


def trained_by(strategy: str, ranks: int = 8, nodes: int = 2, **options: OptionValue) -> Summary:
    case = make_case(strategy, ranks=ranks, nodes=nodes)
    return make_summary("run-trained", case=replace(case, options={**case.options, **options}))


def test_each_collective_that_was_swept_has_a_link_of_its_own(history: History) -> None:
    sweep(history, "in", INSIDE, ranks=4, started_ns=2)
    sweep(history, "gathered", [2.5e9], ranks=4, collective="all_gather", latencies_s=[3e-5])
    sweep(history, "out", ACROSS, ranks=8, nodes=2)
    found = find_links(trained_by("hsdp", shard_ranks=4), history)
    node, cluster = levels_of(found)
    assert node.link_of("all_gather") == Link(bandwidth_bytes_per_second=2.5e9, latency_s=3e-5)
    assert node.link_of("reduce_scatter") == node.link
    assert cluster.by_collective == ()
    assert isinstance(found, MeasuredLinks)
    assert found.basis == (
        "4.1 GB/s (all_gather 2.5 GB/s in gathered; reduce_scatter as all_reduce, not fitted) inside a node, all 4"
        " ranks at once (in), and 1 GB/s across 2 nodes, all 4 ranks of each at once (out)"
    )
    assert [run.run for run in found.sweeps] == ["gathered", "in", "out"]


def test_the_newest_sweep_of_a_collective_gives_its_link(history: History) -> None:
    for started_ns, bandwidth in enumerate((2e9, 3e9)):
        sweep(history, f"in{started_ns}", [bandwidth], ranks=4, collective="all_gather", started_ns=started_ns)
    (node,) = levels_of(find_links(trained(ranks=4, nodes=1), history))
    assert isinstance(node.link, Absent)
    assert node.link_of("all_gather") == Link(bandwidth_bytes_per_second=3e9, latency_s=1.1e-5)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_links_of_a_sweep_over_nodes_give_back_the_times_of_the_sweep(
    history: History, collective: Collective, backend: CommunicationBackend
) -> None:
    """A node passes another share of the bytes in each collective, and its latency is that of other hops."""
    measured = Link(bandwidth_bytes_per_second=1e9, latency_s=5e-5)
    sweep(history, "in", [4e9], ranks=4, latencies_s=[1e-5], backend=backend)
    sweep(history, "out", [1e9], ranks=8, nodes=2, latencies_s=[5e-5], collective=collective, backend=backend)
    run = trained()
    found = find_links(replace(run, case=replace(run.case, backend=backend)), history)
    assert isinstance(found, MeasuredLinks)
    for size_bytes in (0, 10**9):
        predicted_s = axis_time_s(collective, size_bytes, MeshAxis(size=8), found.interconnect, backend)
        assert predicted_s == pytest.approx(collective_time_s(collective, size_bytes, 8, measured, backend))


def test_commands_that_measure_name_the_collectives_of_the_run(history: History) -> None:
    found = find_links(trained_by("hsdp", shard_ranks=4), history)
    assert isinstance(found, Absent)
    assert "--option collectives=all_reduce`" in found.reason
    found = find_links(trained_by("fsdp", ranks=4, nodes=1), history)
    assert isinstance(found, Absent)
    assert "--option collectives=all_reduce,all_gather,reduce_scatter`" in found.reason


def test_links_scatter_as_those_of_what_is_sent(history: History) -> None:
    sweep(history, "gathered", [0.5e9, 1e9, 2e9], ranks=4, collective="all_gather")
    sweep(history, "reduced", [1e9, 1e9], ranks=4, started_ns=2)
    spread = bandwidth_spread(trained_by("fsdp", ranks=4, nodes=1), history)
    assert spread is not None
    assert [spread.low, spread.high] == pytest.approx([0.5, 2.0])
    assert (spread.runs, spread.trials) == (2, 5)


def test_links_scatter_as_those_of_all_reduce_or_else_of_what_was_swept(history: History) -> None:
    sweep(history, "gathered", [2e9, 4e9], ranks=4, collective="all_gather")
    spread = bandwidth_spread(trained(), history)
    assert spread is not None
    assert [spread.low, spread.high] == pytest.approx([2 / 3, 4 / 3])
    sweep(history, "in", [4e9, 4e9], ranks=4)
    spread = bandwidth_spread(trained(), history)
    assert spread is not None
    assert (spread.low, spread.high) == (1.0, 1.0)


def test_an_empty_history_has_no_links(history: History) -> None:
    found = find_links(trained(), history)
    assert isinstance(found, Absent)
    assert "across nodes" in found.reason


def test_each_setting_keeps_its_newest_sweep(history: History) -> None:
    sweep(history, "old", INSIDE, ranks=4, started_ns=1)
    sweep(history, "new", INSIDE, ranks=4, started_ns=2)
    sweep(history, "out", ACROSS, ranks=4, nodes=2, started_ns=1)
    assert sorted(sweep_runs(history)) == ["new", "out"]


def test_a_placement_is_said_in_words() -> None:
    words = [
        placement_words(replace(make_probe(ranks=ranks), nodes=nodes)) for ranks, nodes in ((8, 1), (16, 2), (2, 2))
    ]
    assert words == [
        "inside a node, all 8 ranks at once",
        "across 2 nodes, all 8 ranks of each at once",
        "across 2 nodes, 1 rank of each at once",
    ]


def test_single_trials_are_alike_only_if_they_are_equal(history: History) -> None:
    for number, across in enumerate((1.0e9, 1.01e9, 0.99e9)):
        for run, ranks, nodes, bandwidth in (("in", 4, 1, 1.0e9), ("out", 8, 2, across)):
            sweep(history, run, [bandwidth], ranks=ranks, nodes=nodes, latencies_s=[1e-5], started_ns=number)
        found = find_links(trained(), history)
        assert isinstance(found, MeasuredLinks)
        assert ("alike within their intervals" in found.basis) == (across == 1.0e9)


def test_fewer_nodes_stand_in_for_more_and_all_reduce_gives_the_link_beside_another_collective(
    history: History,
) -> None:
    sweep(history, "in", INSIDE, ranks=4)
    sweep(history, "out", ACROSS, ranks=16, nodes=4)
    sweep(history, "gathered", [0.5e9], ranks=8, nodes=2, collective="all_gather", started_ns=5)
    found = find_links(trained(ranks=16, nodes=4), history)
    _, cluster = levels_of(found)
    assert bandwidth_of(cluster) == 1.0e9
    assert [collective for collective, _ in cluster.by_collective] == ["all_gather"]
    assert isinstance(found, MeasuredLinks)
    assert found.basis.endswith("and 1 GB/s across 4 nodes, all 4 ranks of each at once (out)")


def test_a_collective_between_nodes_is_freed_of_its_own_latency_inside(history: History) -> None:
    measured = Link(bandwidth_bytes_per_second=1e9, latency_s=5e-5)
    sweep(history, "in", [4e9], ranks=4, latencies_s=[1e-5])
    for run, ranks, nodes, bandwidth, latency_s in (("gathered", 4, 1, 4e9, 2e-5), ("out", 8, 2, 1e9, 5e-5)):
        sweep(history, run, [bandwidth], ranks=ranks, nodes=nodes, latencies_s=[latency_s], collective="all_gather")
    found = find_links(trained(), history)
    assert isinstance(found, MeasuredLinks)
    predicted_s = axis_time_s("all_gather", 0, MeshAxis(size=8), found.interconnect, "gloo")
    assert predicted_s == pytest.approx(collective_time_s("all_gather", 0, 8, measured, "gloo"))


def test_sweeps_scatter_only_against_others_of_their_setting(history: History) -> None:
    sweep(history, "in", [4e9, 4e9], ranks=4)
    sweep(history, "out", [1e9, 1e9], ranks=8, nodes=2)
    spread = bandwidth_spread(trained(), history)
    assert spread is not None
    assert (spread.low, spread.high, spread.runs, spread.trials) == (1.0, 1.0, 2, 4)
