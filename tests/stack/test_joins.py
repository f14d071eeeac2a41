"""What dashboards join, by Prometheus' own rule tester: no series of another run, and nothing counted twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collectors.metrics.agent import AGENT_BEATS, RESULT_INFO, RUN_INFO, RUN_LAST_PROGRESS
from collectors.metrics.gate import VERDICT, VERDICT_CHANGE
from collectors.metrics.gpu import GPU_POWER_WATTS, GPU_PROCESS_MEMORY, GPU_UTILIZATION, RANK_GPU
from collectors.metrics.host import HOST_PRESSURE_SECONDS
from collectors.metrics.metric import STATISTICS
from collectors.metrics.rank import STEP_SECONDS
from collectors.metrics.results import RUN_BUBBLE_RATIO, RUN_SCALING_EFFICIENCY, RUN_STEP_SECONDS
from collectors.metrics.run_counts import STEP_DURATION
from collectors.metrics.suites import SUITE_LAST_START, SUITE_PERIOD
from tests.dashboards.boards import board
from tests.stack.alerts.rehearsal import Rehearsal, shown
from tests.support.grafana_expressions import with_choices

pytestmark = pytest.mark.stack

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


def _asked(name: str, title: str, legend: str | None = None, **chosen: str) -> str:
    """What a panel asks, or one column or line of it, with these choices."""
    queries = board(name).panel(title).queries
    (query, *_) = queries if legend is None else [query for query in queries if query.legend == legend]
    return with_choices(query.expression, **chosen)


STEPS_OF_RUN = "Step: slowest, median and fastest rank"


@pytest.mark.parametrize(("run", "step_s"), [("a", 1.0), ("b", 2.0), ("c", 3.0)])
def test_a_chosen_run_has_its_own_series_only_though_others_have_its_slot(
    run: str, step_s: float, tmp_path: Path
) -> None:
    expression = _asked("one-run", STEPS_OF_RUN, run=run)
    Rehearsal(series=RUNS, folder=tmp_path).gives(expression, {"{}": step_s}, at_minutes=5)


def test_a_slot_that_is_used_again_gives_each_run_its_own_time(tmp_path: Path) -> None:
    series = {
        **shown(RUN_INFO, "1 1 1 1 stale", run="a", slot="0", strategy="ddp", ranks="1", series="s1"),
        **shown(RUN_INFO, "_ _ _ _ 1 1 1 1", run="b", slot="0", strategy="ddp", ranks="1", series="s1"),
        **shown(STEP_SECONDS, "1 1 1 1 2 2 2 2", slot="0", rank="0"),
    }
    rehearsal = Rehearsal(series=series, folder=tmp_path)
    for run, minutes, step_s in (("a", 3, {"{}": 1.0}), ("a", 6, {}), ("b", 3, {}), ("b", 6, {"{}": 2.0})):
        rehearsal.gives(_asked("one-run", STEPS_OF_RUN, run=run), step_s, at_minutes=minutes)


PRESSURE = HOST_PRESSURE_SECONDS.alone(stalled="some")


def _pressure(window: str) -> str:
    panel = board("one-host").panel("Share of time in which some or all tasks wait for a resource")
    expression = next(query.expression for query in panel.queries if query.legend == "{{resource}} some")
    return with_choices(expression.replace("$__rate_interval", window))


@pytest.mark.parametrize(
    ("values", "expected"),
    [("0+60x20", 1.0), ("0 _ _ 180 _ _ 360 _ _ 540", 1.0)],
    ids=["scraped each minute", "scraped each third minute"],
)
def test_a_rate_is_there_however_seldom_prometheus_scrapes(values: str, expected: float, tmp_path: Path) -> None:
    Rehearsal(series=shown(PRESSURE, values, resource="io"), folder=tmp_path).gives(
        f"sum by (resource) ({_pressure('2m')})", {'{resource="io"}': expected}, at_minutes=9
    )


def test_a_rate_ends_with_its_series(tmp_path: Path) -> None:
    series = shown(PRESSURE, "0 60 120 180 stale", resource="io")
    Rehearsal(series=series, folder=tmp_path).gives(_pressure("1m"), {}, at_minutes=5)


def test_of_gpus_that_are_alike_no_more_stand_out_than_were_asked_for(tmp_path: Path) -> None:
    series = {name: values for gpu in range(12) for name, values in shown(GPU_UTILIZATION, "1x9", gpu=str(gpu)).items()}
    expression = f"count({_asked('fleet', 'Busiest GPUs')})"
    Rehearsal(series=series, folder=tmp_path).gives(expression, {"{}": 10.0}, at_minutes=5)


FIGURE = {"suite": "nightly", "ranks": "2", "hardware": "h", "series": "s", "figure": "step"}


def test_a_change_is_told_with_its_verdict_and_not_where_all_is_the_same(tmp_path: Path) -> None:
    series = {
        **shown(VERDICT, "1x10", **FIGURE, case="ddp", verdict="confirmed"),
        **shown(VERDICT_CHANGE, "0.05x10", **FIGURE, case="ddp"),
        **shown(VERDICT, "1x10", **FIGURE, case="fsdp", verdict="same"),
        **shown(VERDICT_CHANGE, "0.001x10", **FIGURE, case="fsdp"),
    }
    told = _asked("what-needs-me-now", "Figures that changed, by the gate's verdict")
    Rehearsal(series=series, folder=tmp_path).gives(
        f"max by (case, verdict) ({told})", {'{case="ddp", verdict="confirmed"}': 0.05}, at_minutes=5
    )


def test_a_change_is_of_the_chosen_cluster_though_another_has_the_same_figure(tmp_path: Path) -> None:
    series = {
        **shown(VERDICT, "1x10", **FIGURE, case="ddp", verdict="same", cluster="west"),
        **shown(VERDICT_CHANGE, "0.001x10", **FIGURE, case="ddp", cluster="west"),
        **shown(VERDICT, "1x10", **FIGURE, case="ddp", verdict="confirmed", cluster="east", instance=OTHER),
        **shown(VERDICT_CHANGE, "0.05x10", **FIGURE, case="ddp", cluster="east", instance=OTHER),
    }
    told = _asked("nightly", "Verdicts of the gate", "Change", cluster="west")
    Rehearsal(series=series, folder=tmp_path).gives(
        f"max by (case, verdict) ({told})", {'{case="ddp", verdict="same"}': 0.001}, at_minutes=5
    )


def test_an_alert_tells_for_how_long_it_is_true(tmp_path: Path) -> None:
    series = {
        **shown(AGENT_BEATS, "1 2 3 stale"),
        'up{job="observatory", instance="node1:9464"}': "1 1 1 0x30",
    }
    Rehearsal(series=series, folder=tmp_path).gives_by_rules(
        f"max by (alertname) ({_asked('what-needs-me-now', 'Firing alerts')})",
        {'{alertname="NodeAgentGone"}': 17 * 60.0},
        at_minutes=20,
    )


# Results.

RESULT = {"strategy": "ddp", "ranks": "2", "device": "cpu", "precision": "fp32", "series": "s1"}
ABOUT = {"name": "ddp on 2, tiny", "strategy": "ddp", "ranks": "2", "series": "s1", "shape": "tiny"}
NIGHTS, SIDE_BY_SIDE = (
    "Series: newest result, and median of the 14 nights before it",
    "Side by side: speed and cost",
)


def _result(median: str, low: str, high: str, **labels: str) -> dict[str, str]:
    values = zip(STATISTICS, (median, low, high), strict=True)
    return {
        key: value
        for which, one in values
        for key, value in shown(RUN_STEP_SECONDS.statistic(which), one, **{**RESULT, **labels}).items()
    }


def _by_series(expression: str) -> str:
    return f"sum by (series) ({expression})"


def test_a_result_of_which_two_exporters_show_different_nights_is_one_series(tmp_path: Path) -> None:
    series = {
        **_result("2x9", "2x9", "2x9"),
        **shown(RESULT_INFO, "1x9", **ABOUT, run="new", commit="b"),
        **_result("2x9", "2x9", "2x9", instance=OTHER),
        **shown(RESULT_INFO, "1x9", **ABOUT, run="old", commit="a", instance=OTHER),
    }
    rehearsal = Rehearsal(series=series, folder=tmp_path)
    for shape, step_s in (("tiny", {'{series="s1", name="ddp on 2, tiny"}': 2.0}), ("8b", {})):
        told = _asked("which-strategy-pays", SIDE_BY_SIDE, "Step", shape=shape)
        rehearsal.gives(f"sum by (series, name) ({told})", step_s, at_minutes=5)


@pytest.mark.parametrize(("cluster", "expected"), [("west", 2.0), ("east", 3.0)])
def test_a_result_is_of_the_chosen_cluster_though_another_has_one_of_the_same_series(
    cluster: str, expected: float, tmp_path: Path
) -> None:
    series = {
        **_result("2x9", "2x9", "2x9", cluster="west"),
        **shown(RESULT_INFO, "1x9", **ABOUT, cluster="west"),
        **_result("3x9", "3x9", "3x9", cluster="east", instance=OTHER),
        **shown(RESULT_INFO, "1x9", **ABOUT, cluster="east", instance=OTHER),
    }
    for page, title, legend in (
        ("nightly", NIGHTS, "Step"),
        ("which-strategy-pays", SIDE_BY_SIDE, "Step"),
        ("nightly", "Step of the selected series, with its interval", "median"),
    ):
        Rehearsal(series=series, folder=tmp_path).gives(
            _by_series(_asked(page, title, legend, cluster=cluster)), {'{series="s1"}': expected}, at_minutes=5
        )


def test_a_result_without_a_cluster_is_there_where_none_is_chosen(tmp_path: Path) -> None:
    series = {**_result("2x9", "2x9", "2x9"), **shown(RESULT_INFO, "1x9", **ABOUT)}
    Rehearsal(series=series, folder=tmp_path).gives(
        _by_series(_asked("nightly", NIGHTS, "Step", cluster="")), {'{series="s1"}': 2.0}, at_minutes=5
    )


def test_half_the_width_of_an_interval_is_told_as_a_share_of_the_median(tmp_path: Path) -> None:
    series = {**_result("4x9", "3.5x9", "4.5x9"), **shown(RESULT_INFO, "1x9", **ABOUT)}
    Rehearsal(series=series, folder=tmp_path).gives(
        _by_series(_asked("nightly", NIGHTS, "+-")), {'{series="s1"}': 0.125}, at_minutes=5
    )


def test_a_bubble_as_measured_and_as_predicted_have_columns_of_their_own(tmp_path: Path) -> None:
    series = {
        **shown(RESULT_INFO, "1x9", **ABOUT),
        **shown(RUN_BUBBLE_RATIO.alone(account="measured").statistic("median"), "0.34x9", **RESULT),
        **shown(RUN_BUBBLE_RATIO.alone(account="expected").statistic("median"), "0.27x9", **RESULT),
    }
    for legend, ratio in (("Bubble", 0.34), ("Bubble predicted", 0.27)):
        Rehearsal(series=series, folder=tmp_path).gives(
            _by_series(_asked("does-it-scale", "Losses of a step", legend)), {'{series="s1"}': ratio}, at_minutes=5
        )


@pytest.mark.parametrize(("ranks", "level"), [("2", 0.7), ("4", 0.8)])
def test_an_accepted_level_is_that_of_the_ranks_or_else_of_the_strategy(
    ranks: str, level: float, tmp_path: Path
) -> None:
    owner = {**RESULT, "ranks": ranks}
    accepted = f"series:{RUN_SCALING_EFFICIENCY.name}:accepted"
    of = 'strategy="ddp",device="cpu",scaling="weak"'
    series = {
        **shown(RESULT_INFO, "1x9", **{**ABOUT, "ranks": ranks}),
        **shown(RUN_SCALING_EFFICIENCY.statistic("median"), "0.9x9", **owner, scaling="weak", baseline="single"),
        f"{accepted}{{{of}}}": "0.8x9",
        f'{accepted}_of_ranks{{{of},ranks="2"}}': "0.7x9",
    }
    table = "Efficiency by world size, compared with the accepted and the usual level"
    Rehearsal(series=series, folder=tmp_path).gives(
        _by_series(_asked("does-it-scale", table, "Accepted")), {'{series="s1"}': level}, at_minutes=5
    )


def test_a_suite_is_late_by_its_period(tmp_path: Path) -> None:
    series = {**shown(SUITE_LAST_START, "60x9", suite="nightly"), **shown(SUITE_PERIOD, "480x9", suite="nightly")}
    Rehearsal(series=series, folder=tmp_path).gives(_asked("nightly", "Most overdue suite"), {"{}": 0.5}, at_minutes=5)


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
    for legend, expected in (("p50", 1.0), ("p90", 1.8), ("p99", 1.98)):
        quantile = _asked("one-run", "Step of all ranks: p50, p90, p99", legend, run="a").replace("[1m]", "[2m]")
        Rehearsal(series=series, folder=tmp_path).gives(quantile, {"{}": expected}, at_minutes=10)


def test_a_gpu_that_two_ranks_share_is_shown_for_each(tmp_path: Path) -> None:
    series = {
        **shown(RANK_GPU, "1x9", run="a", rank="0", slot="0", gpu="0", slice=""),
        **shown(RANK_GPU, "1x9", run="a", rank="1", slot="0", gpu="0", slice=""),
        **shown(RANK_GPU, "1x9", run="b", rank="2", slot="1", gpu="0", slice=""),
        **shown(GPU_POWER_WATTS, "300x9", gpu="0"),
        **shown(GPU_POWER_WATTS, "500x9", gpu="1"),
    }
    expression = f"max by (rank, gpu) ({_asked('one-run', 'Power: the 8 GPUs that draw most', run='a')})"
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
    Rehearsal(series=series, folder=tmp_path).gives(
        f"max by (run, about) ({_asked('one-run', 'The run', 'Last step ended')})",
        {'{run="a", about="wide"}': 240.0, '{run="b", about="fsdp on 4"}': 240.0},
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
    page = (Path(__file__).parents[2] / "docs/monitoring/exporter.md").read_text()
    (query,) = re.findall(r"^ {6}(sum by \(node, gpu, namespace, pod\).*?^ {6}\))$", page, re.DOTALL | re.MULTILINE)
    expected = {'{gpu="0", namespace="team-a", node="node1", pod="trainer-0"}': 12.0}
    Rehearsal(series=series, folder=tmp_path).gives(query, expected, at_minutes=5)
