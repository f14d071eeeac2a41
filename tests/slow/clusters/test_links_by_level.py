"""In a box of nodes of two ranks each, links by level predict what each mesh axis passes, and how long it takes alone.

Ranks reach their node's other rank over the loopback, and other nodes over a slow link. Inside, gloo's copies and sums
take as long as sending, and the machine's load decides, so that what is said of time there is said of links that were
measured in turn with what they predict. docs/measured/links_by_level.md has the figures of all axes and of whole steps.
"""

from __future__ import annotations

import statistics

import pytest

from tests.slow.ranks.levels_in_box import GLOO_HEADER_BYTES, InBox, Setting, measure
from workloads.cost_models.communication import Link

pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]

STRATEGIES = ("three_d", "hsdp")
SETTINGS = (Setting(nodes=2, rate_mbit=200), Setting(nodes=4, rate_mbit=100))
TOLERANCE_RATIO = 0.15
LEAST_SHARE = 0.85  # Headers take 5 % of the link, and its latency a part of the sweep.
HEADERS_RATIO = 0.01


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda each: f"{each.nodes} nodes, {each.rate_mbit:g} mbit")
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Setting, list[InBox]]:
    """Both strategies in one box."""
    setting: Setting = request.param
    cases = [setting.case(strategy) for strategy in STRATEGIES]
    return setting, measure(setting, cases, tmp_path_factory.mktemp("box"), steps=1, replays=5, turns=6)


def test_the_history_gives_each_level_its_link(measured: tuple[Setting, list[InBox]]) -> None:
    setting, cases = measured
    for case in cases:
        node, cluster = (level.link for level in case.links.interconnect.levels)
        assert isinstance(node, Link)
        assert isinstance(cluster, Link)
        cap = setting.rate_mbit * 1e6 / 8
        assert LEAST_SHARE * cap <= cluster.bandwidth_bytes_per_second <= cap
        assert node.bandwidth_bytes_per_second > 5 * cap


def test_ranks_record_the_bytes_that_are_predicted_for_each_level(measured: tuple[Setting, list[InBox]]) -> None:
    _, cases = measured
    for case in cases:
        assert case.counted_bytes() == case.predicted_bytes()


def test_the_busiest_link_of_each_level_passes_the_predicted_bytes(measured: tuple[Setting, list[InBox]]) -> None:
    """What the kernel counts besides is whole headers of gloo's messages, those of barriers among them."""
    _, cases = measured
    for case in cases:
        for axis in case.replayed:
            expected, counted = case.predicted_wire_bytes(axis), case.counted_wire_bytes(axis)
            for expected_bytes, counted_bytes in zip(expected, counted, strict=True):
                added_bytes = counted_bytes - expected_bytes
                assert added_bytes % GLOO_HEADER_BYTES == 0
                assert 0 <= added_bytes <= HEADERS_RATIO * sum(expected)


def test_an_axis_that_crosses_nodes_takes_as_long_alone_as_is_predicted(measured: tuple[Setting, list[InBox]]) -> None:
    _, cases = measured
    across = [(case, axis) for case in cases for axis in case.replayed if case.is_across(axis)]
    assert {axis for _, axis in across} >= {"stage", "replicate"}
    for case, axis in across:
        replay_s = statistics.median(case.replays_s(axis))
        assert replay_s == pytest.approx(case.predicted_replay_s(axis), rel=TOLERANCE_RATIO), (case.case.strategy, axis)


def test_an_axis_inside_nodes_takes_as_long_alone_as_sweeps_in_turn_predict(
    measured: tuple[Setting, list[InBox]],
) -> None:
    """Messages of megabytes: smaller ones, as those of `three_d`, mostly wait for threads to wake up."""
    _, cases = measured
    (case,) = [case for case in cases if case.case.strategy == "hsdp"]
    assert not case.is_across("shard")
    replay_s = statistics.median(case.replays_s("shard"))
    assert replay_s == pytest.approx(case.replay_by_turns_s("shard"), rel=TOLERANCE_RATIO)
