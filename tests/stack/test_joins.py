"""What dashboards join, by Prometheus' own rule tester: no series of another run, and nothing counted twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collectors.metrics.agent import AGENT_BEATS, RESULT_INFO, RUN_INFO, RUN_LAST_COMPLETION, RUN_LAST_PROGRESS
from collectors.metrics.gate import VERDICT, VERDICT_CHANGE
from collectors.metrics.gpu import (
    GPU_MEMORY_FREE_BYTES,
    GPU_MEMORY_USED_BYTES,
    GPU_POWER_WATTS,
    GPU_PROCESS_MEMORY,
    RANK_GPU,
)
from collectors.metrics.metric import STATISTICS
from collectors.metrics.rank import STEP_SECONDS, TOKENS
from collectors.metrics.results import RUN_BUBBLE_RATIO, RUN_STEP_SECONDS
from collectors.metrics.run_counts import STEP_DURATION
from collectors.metrics.suites import SUITE_LAST_START, SUITE_PERIOD
from dashboards import promql
from dashboards.queries import joins
from dashboards.queries.fleets import standing_out
from tests.stack.alerts.rehearsal import Rehearsal, shown
from tests.support.grafana_expressions import with_choices

pytestmark = pytest.mark.stack

MEDIAN = RUN_STEP_SECONDS.statistic("median")
OTHER = "node2:9464"
RUNS = {
    **shown(RUN_INFO, "1x20", run="a", slot="0", strategy="ddp", ranks="1", series="s1"),
    **shown(RUN_INFO, "1x20", run="b", slot="1", strategy="fsdp", ranks="1", series="s2"),
    # The same slot on another node, by another run.
    **shown(RUN_INFO, "1x20", instance=OTHER, run="c", slot="0", strategy="fsdp", ranks="1", series="s2"),
    **shown(STEP_SECONDS, "1x20", slot="0", rank="0"),
    **shown(STEP_SECONDS, "2x20", slot="1", rank="0"),
    **shown(STEP_SECONDS, "3x20", instance=OTHER, slot="0", rank="0"),
}


def test_a_chosen_run_has_its_own_series_only_though_others_have_its_slot(tmp_path: Path) -> None:
    expression = promql.of_chosen_runs(promql.select(STEP_SECONDS), strategy="ddp")
    Rehearsal(series=RUNS, folder=tmp_path).gives(
        f"sum by (run, strategy, rank) ({expression})", {'{run="a", strategy="ddp", rank="0"}': 1.0}, at_minutes=5
    )


def test_a_slot_that_is_used_again_gives_each_run_its_own_time(tmp_path: Path) -> None:
    series = {
        **shown(RUN_INFO, "1 1 1 1 stale", run="a", slot="0", strategy="ddp", ranks="1", series="s1"),
        **shown(RUN_INFO, "_ _ _ _ 1 1 1 1", run="b", slot="0", strategy="ddp", ranks="1", series="s1"),
        **shown(STEP_SECONDS, "1 1 1 1 2 2 2 2", slot="0", rank="0"),
    }
    expression = f"sum by (run) ({promql.of_chosen_runs(promql.select(STEP_SECONDS))})"
    rehearsal = Rehearsal(series=series, folder=tmp_path)
    rehearsal.gives(expression, {'{run="a"}': 1.0}, at_minutes=3)
    rehearsal.gives(expression, {'{run="b"}': 2.0}, at_minutes=6)


def test_a_result_that_two_exporters_show_counts_once(tmp_path: Path) -> None:
    owner = {"strategy": "ddp", "ranks": "2", "device": "cpu", "precision": "fp32", "series": "s1"}
    series = {
        key: value
        for instance, run in (("node1:9464", "a"), (OTHER, "the night before"))
        for one in (
            shown(MEDIAN, "0.5x20", instance=instance, **owner),
            shown(RESULT_INFO, "1x20", instance=instance, run=run, series="s1", name="ddp on 2", strategy="ddp"),
        )
        for key, value in one.items()
    }
    Rehearsal(series=series, folder=tmp_path).gives(
        f"sum by (series, name) ({joins.of_chosen_results(MEDIAN, strategy='ddp')})",
        {'{series="s1", name="ddp on 2"}': 0.5},
        at_minutes=5,
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [("0+60x20", 1.0), ("0 _ _ 180 _ _ 360 _ _ 540", 1.0)],
    ids=["scraped each minute", "scraped each third minute"],
)
def test_a_rate_is_there_however_seldom_prometheus_scrapes(values: str, expected: float, tmp_path: Path) -> None:
    expression = promql.recent_rate(TOKENS).replace("$__rate_interval", "2m")
    Rehearsal(series=shown(TOKENS, values, slot="0", rank="0"), folder=tmp_path).gives(
        f"sum by (rank) ({expression})", {'{rank="0"}': expected}, at_minutes=9
    )


def test_a_rate_ends_with_its_series(tmp_path: Path) -> None:
    series = shown(TOKENS, "0 60 120 180 stale", slot="0", rank="0")
    expression = promql.recent_rate(TOKENS).replace("$__rate_interval", "1m")
    Rehearsal(series=series, folder=tmp_path).gives(expression, {}, at_minutes=5)


def test_of_gpus_that_are_alike_no_more_stand_out_than_were_asked_for(tmp_path: Path) -> None:
    series = {
        key: value
        for number in range(4)
        for one in (
            shown(GPU_POWER_WATTS, "500x10", gpu=str(number)),
            shown(RANK_GPU, "1x10", slot="0", rank=str(number), run="a", gpu=str(number), slice="")
            if number % 2
            else {},
        )
        for key, value in one.items()
    }
    expression = standing_out(1, promql.with_work(promql.select(GPU_POWER_WATTS)))
    Rehearsal(series=series, folder=tmp_path).gives(f"count({expression})", {"{}": 1.0}, at_minutes=5)


def test_the_driver_s_part_of_a_gpus_memory_is_no_room(tmp_path: Path) -> None:
    series = {
        **shown(GPU_MEMORY_USED_BYTES, "60x10", gpu="0"),
        **shown(GPU_MEMORY_FREE_BYTES, "20x10", gpu="0"),
    }
    Rehearsal(series=series, folder=tmp_path).gives(
        f"sum by (gpu) ({joins.memory_in_use(gpu='0')})", {'{gpu="0"}': 0.75}, at_minutes=5
    )


def test_a_change_is_told_with_its_verdict_and_not_where_all_is_the_same(tmp_path: Path) -> None:
    figure = {"suite": "nightly", "ranks": "2", "hardware": "h", "series": "s", "figure": "step"}
    series = {
        **shown(VERDICT, "1x10", **figure, case="ddp", verdict="confirmed"),
        **shown(VERDICT_CHANGE, "0.05x10", **figure, case="ddp"),
        **shown(VERDICT, "1x10", **figure, case="fsdp", verdict="same"),
        **shown(VERDICT_CHANGE, "0.001x10", **figure, case="fsdp"),
    }
    expression = joins.judged_changes(VERDICT_CHANGE, by=("suite", "case", "figure"), but=("same",))
    Rehearsal(series=series, folder=tmp_path).gives(
        expression, {'{suite="nightly", case="ddp", figure="step", verdict="confirmed"}': 0.05}, at_minutes=5
    )


def test_an_alert_tells_for_how_long_it_is_true(tmp_path: Path) -> None:
    series = {
        **shown(AGENT_BEATS, "1 2 3 stale"),
        'up{job="observatory", instance="node1:9464"}': "1 1 1 0x30",
    }
    Rehearsal(series=series, folder=tmp_path).gives_by_rules(
        f"max by (alertname) ({joins.firing_for()})", {'{alertname="NodeAgentGone"}': 17 * 60.0}, at_minutes=20
    )


# Results.

RESULT = {"strategy": "ddp", "ranks": "2", "device": "cpu", "precision": "fp32", "series": "s1"}
ABOUT = {"name": "ddp on 2, tiny", "strategy": "ddp", "series": "s1", "shape": "tiny"}


def _result(median: str, low: str, high: str, **labels: str) -> dict[str, str]:
    values = zip(STATISTICS, (median, low, high), strict=True)
    return {
        key: value
        for which, one in values
        for key, value in shown(RUN_STEP_SECONDS.statistic(which), one, **{**RESULT, **labels}).items()
    }


def test_a_result_of_which_two_exporters_show_different_nights_is_one_series(tmp_path: Path) -> None:
    series = {
        **_result("2x9", "2x9", "2x9"),
        **shown(RESULT_INFO, "1x9", **ABOUT, run="new", commit="b"),
        **_result("2x9", "2x9", "2x9", instance=OTHER),
        **shown(RESULT_INFO, "1x9", **ABOUT, run="old", commit="a", instance=OTHER),
    }
    expression = joins.results(RUN_STEP_SECONDS, "median", by=("series", "name"), shape="tiny")
    rehearsal = Rehearsal(series=series, folder=tmp_path)
    rehearsal.gives(expression, {'{series="s1", name="ddp on 2, tiny"}': 2.0}, at_minutes=5)
    other = joins.results(RUN_STEP_SECONDS, "median", by=("series", "name"), shape="8b")
    rehearsal.gives(other, {}, at_minutes=5)


@pytest.mark.parametrize(("cluster", "expected"), [("west", 2.0), ("east", 3.0)])
def test_a_result_is_of_the_chosen_cluster_though_another_has_one_of_the_same_series(
    cluster: str, expected: float, tmp_path: Path
) -> None:
    owner = {"strategy": "ddp", "ranks": "2", "device": "cpu", "precision": "fp32", "series": "s1"}
    series = {
        **_result("2x9", "2x9", "2x9", cluster="west"),
        **shown(RESULT_INFO, "1x9", **ABOUT, cluster="west"),
        **shown(RUN_LAST_COMPLETION, "2x9", **owner, cluster="west"),
        **_result("3x9", "3x9", "3x9", cluster="east", instance=OTHER),
        **shown(RESULT_INFO, "1x9", **ABOUT, cluster="east", instance=OTHER),
        **shown(RUN_LAST_COMPLETION, "3x9", **owner, cluster="east", instance=OTHER),
    }
    rehearsal = Rehearsal(series=series, folder=tmp_path)
    for expression in (
        joins.results(RUN_STEP_SECONDS, "median", by=("series",), cluster=cluster),
        f"sum by (series) ({joins.of_chosen_results(MEDIAN, cluster=cluster)})",
        joins.info_of_results(RUN_LAST_COMPLETION, by=("series",), cluster=cluster),
    ):
        rehearsal.gives(expression, {'{series="s1"}': expected}, at_minutes=5)


def test_a_result_without_a_cluster_is_there_where_none_is_chosen(tmp_path: Path) -> None:
    series = {**_result("2x9", "2x9", "2x9"), **shown(RESULT_INFO, "1x9", **ABOUT)}
    expression = joins.results(RUN_STEP_SECONDS, "median", by=("series",), cluster="$cluster")
    Rehearsal(series=series, folder=tmp_path).gives(
        with_choices(expression, cluster=""), {'{series="s1"}': 2.0}, at_minutes=5
    )


def test_a_change_is_of_the_chosen_cluster_though_another_has_the_same_figure(tmp_path: Path) -> None:
    figure = {"suite": "nightly", "ranks": "2", "hardware": "h", "series": "s", "figure": "step", "case": "ddp"}
    series = {
        **shown(VERDICT, "1x10", **figure, verdict="same", cluster="west"),
        **shown(VERDICT_CHANGE, "0.001x10", **figure, cluster="west"),
        **shown(VERDICT, "1x10", **figure, verdict="confirmed", cluster="east", instance=OTHER),
        **shown(VERDICT_CHANGE, "0.05x10", **figure, cluster="east", instance=OTHER),
    }
    Rehearsal(series=series, folder=tmp_path).gives(
        joins.judged_changes(VERDICT_CHANGE, by=("case",), cluster="west"),
        {'{case="ddp", verdict="same"}': 0.001},
        at_minutes=5,
    )


def test_half_the_width_of_an_interval_is_told_as_a_share_of_the_median(tmp_path: Path) -> None:
    series = {**_result("4x9", "3.5x9", "4.5x9"), **shown(RESULT_INFO, "1x9", **ABOUT)}
    Rehearsal(series=series, folder=tmp_path).gives(
        joins.interval_share(RUN_STEP_SECONDS, by=("series",)), {'{series="s1"}': 0.125}, at_minutes=5
    )


def test_an_account_that_a_metrics_name_tells_is_asked_for_by_that_name(tmp_path: Path) -> None:
    series = {
        **shown(RESULT_INFO, "1x9", **ABOUT),
        **shown(RUN_BUBBLE_RATIO.alone(account="measured").statistic("median"), "0.34x9", **RESULT),
        **shown(RUN_BUBBLE_RATIO.alone(account="expected").statistic("median"), "0.27x9", **RESULT),
    }
    for account, ratio in (("measured", 0.34), ("expected", 0.27)):
        Rehearsal(series=series, folder=tmp_path).gives(
            joins.results(RUN_BUBBLE_RATIO, "median", by=("series",), account=account),
            {'{series="s1"}': ratio},
            at_minutes=5,
        )


def test_a_level_belongs_to_the_series_of_its_kind(tmp_path: Path) -> None:
    level = {'accepted{strategy="ddp"}': "0.8x9"}
    series = {**shown(MEDIAN, "2x9", **RESULT), **level}
    expression = joins.level_of(f"max by (series, strategy) ({MEDIAN.name})", "accepted", on=("strategy",))
    Rehearsal(series=series, folder=tmp_path).gives(expression, {'{series="s1", strategy="ddp"}': 0.8}, at_minutes=5)


def test_a_bandwidth_by_the_line_is_that_of_the_expected_time(tmp_path: Path) -> None:
    Rehearsal(series={"one": "1x9"}, folder=tmp_path).gives(
        joins.by_the_line("vector(100)", "vector(3)", "vector(2)"), {"{}": 150.0}, at_minutes=5
    )


def test_a_suite_is_late_by_its_period(tmp_path: Path) -> None:
    series = {**shown(SUITE_LAST_START, "60x9", suite="nightly"), **shown(SUITE_PERIOD, "480x9", suite="nightly")}
    Rehearsal(series=series, folder=tmp_path).gives(joins.lateness(), {'{suite="nightly"}': 0.5}, at_minutes=5)


# Steps and GPUs of a run.


def test_a_quantile_of_a_run_is_over_all_its_nodes_and_no_other_run(tmp_path: Path) -> None:
    def buckets(instance: str, slot: str, per_minute: tuple[int, int, int]) -> dict[str, str]:
        where = f'job="observatory",instance="{instance}",slot="{slot}"'
        edges = zip(("1", "2", "+Inf"), per_minute, strict=True)
        return {f'{STEP_DURATION.name}_bucket{{{where},le="{le}"}}': f"0+{each}x20" for le, each in edges}

    about = {"strategy": "ddp", "ranks": "2", "series": "s1"}
    series = {
        **shown(RUN_INFO, "1x20", run="a", slot="0", **about),
        **shown(RUN_INFO, "1x20", run="a", slot="3", instance=OTHER, **about),
        **shown(RUN_INFO, "1x20", run="b", slot="0", instance=OTHER, **about),
        **buckets("node1:9464", "0", (60, 60, 60)),  # All steps take less than 1 s,
        **buckets(OTHER, "3", (0, 60, 60)),  # all take 1 to 2 s,
        **buckets(OTHER, "0", (0, 0, 60)),  # and all of the other run take longer.
    }
    rehearsal = Rehearsal(series=series, folder=tmp_path)
    for quantile, expected in ((0.25, 0.5), (0.5, 1.0), (0.75, 1.5)):
        expression = joins.quantile_in_run(STEP_DURATION, quantile, run="a").replace("$__rate_interval", "2m")
        rehearsal.gives(expression, {"{}": expected}, at_minutes=10)


def test_a_gpu_that_two_ranks_share_is_shown_for_each(tmp_path: Path) -> None:
    series = {
        **shown(RANK_GPU, "1x9", run="a", rank="0", slot="0", gpu="0", slice=""),
        **shown(RANK_GPU, "1x9", run="a", rank="1", slot="0", gpu="0", slice=""),
        **shown(RANK_GPU, "1x9", run="b", rank="2", slot="1", gpu="0", slice=""),
        **shown(GPU_POWER_WATTS, "300x9", gpu="0"),
        **shown(GPU_POWER_WATTS, "500x9", gpu="1"),
    }
    expression = f"max by (rank, gpu) ({joins.of_gpus_of_run(promql.select(GPU_POWER_WATTS), run='a')})"
    Rehearsal(series=series, folder=tmp_path).gives(
        expression, {'{rank="0", gpu="0"}': 300.0, '{rank="1", gpu="0"}': 300.0}, at_minutes=5
    )


def test_a_run_is_told_by_its_case_in_the_suite_and_else_by_strategy_and_ranks(tmp_path: Path) -> None:
    series = {
        **shown(RUN_INFO, "1x9", run="a", slot="0", strategy="ddp", ranks="2", suite="nightly", case="wide"),
        **shown(RUN_INFO, "1x9", run="b", slot="1", strategy="fsdp", ranks="4"),
        **shown(RUN_LAST_PROGRESS, "60x9", run="a", slot="0"),
        **shown(RUN_LAST_PROGRESS, "60x9", run="b", slot="1"),
    }
    told = with_choices(joins.case_of_run(RUN_LAST_PROGRESS, by=("run", "case", "strategy", "ranks")))
    Rehearsal(series=series, folder=tmp_path).gives(
        f"max by (run, about) ({told})",
        {'{run="a", about="wide"}': 60.0, '{run="b", about="fsdp on 4"}': 60.0},
        at_minutes=5,
    )


def _series(name: str, **labels: str) -> str:
    listed = ", ".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{listed}}}"


def test_a_pod_gets_its_name_from_kube_state_metrics_as_the_page_says(tmp_path: Path) -> None:
    uid = "57e67067-89e4-4001-bdd4-8632d39ea02b"
    agent = {"pod": "observatory-x", "namespace": "monitoring", "instance": "node1:9464", "gpu": "0"}  # By the scrape.
    trainer = {"pod": "trainer-0", "namespace": "team-a", "node": "node1", "uid": uid}
    series = {
        _series(GPU_PROCESS_MEMORY.name, **agent, pid="71", pod_uid=uid): "5x10",
        _series(GPU_PROCESS_MEMORY.name, **agent, pid="72", pod_uid=uid): "7x10",
        _series(GPU_PROCESS_MEMORY.name, **agent, pid="73"): "9x10",
        # Two instances of kube-state-metrics show the same pod.
        _series("kube_pod_info", **trainer, instance="a"): "1x10",
        _series("kube_pod_info", **trainer, instance="b"): "1x10",
    }
    page = (Path(__file__).parents[2] / "docs/exporter.md").read_text()
    (query,) = re.findall(r"^ {6}(sum by \(node, gpu, namespace, pod\).*?^ {6}\))$", page, re.DOTALL | re.MULTILINE)
    expected = {'{gpu="0", namespace="team-a", node="node1", pod="trainer-0"}': 12.0}
    Rehearsal(series=series, folder=tmp_path).gives(query, expected, at_minutes=5)
