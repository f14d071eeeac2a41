"""What is chosen at the top of a page holds for each of its panels that can tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.metrics.agent import RESULT_INFO, RUN_INFO, USUAL_STEP_SECONDS
from collectors.metrics.gate import VERDICT, VERDICT_CHANGE
from collectors.metrics.metric import Metric
from collectors.metrics.results import (
    RUN_BUBBLE_RATIO,
    RUN_SCALING_EFFICIENCY,
    RUN_STEP_SECONDS,
    RUN_WAITING_RATIO,
)
from collectors.metrics.suites import SUITE_CASE_INFO, SUITE_LAST_CASES, SUITE_LAST_PROGRESS
from tests.dashboards.boards import Board, all_boards, board
from tests.stack.alerts.rehearsal import Rehearsal, shown
from tests.support.grafana_expressions import with_choices

pytestmark = pytest.mark.stack

MEASURED_BUBBLE = RUN_BUBBLE_RATIO.alone(account="measured")
RESULT = {"strategy": "ddp", "ranks": "8", "device": "cuda", "precision": "bf16", "series": "s"}
ABOUT = {"strategy": "ddp", "ranks": "8", "series": "s", "name": "ddp on 8", "suite": "nightly"}
FIGURE = {"suite": "nightly", "case": "ddp", "ranks": "8", "hardware": "h", "series": "s", "figure": "step"}
OF_RUN = {"suite": "nightly", "run": "n"}
EAST = {
    **shown(RESULT_INFO, "1x9", **ABOUT, cluster="east"),
    **shown(
        RUN_SCALING_EFFICIENCY.statistic("median"),
        "0.9x9",
        **RESULT,
        scaling="weak",
        baseline="beside",
        cluster="east",
    ),
    **shown(VERDICT, "1x9", **FIGURE, verdict="confirmed", cluster="east"),
    **shown(VERDICT_CHANGE, "0.2x9", **FIGURE, cluster="east"),
    **shown(SUITE_LAST_CASES, "3x9", **OF_RUN, outcome="failed", cluster="east"),
    **shown(SUITE_CASE_INFO, "1x9", **OF_RUN, case="ddp", cluster="east"),
    **shown(SUITE_LAST_PROGRESS, "60x9", **OF_RUN, cluster="east"),
}
ALERT = 'cluster="east",suite="nightly",strategy="ddp"'
EAST |= {
    f'{name}{{alertname="A{severity}",{state}severity="{severity}",{ALERT}}}': "1x9"
    for severity in ("critical", "warning")
    for name, state in (("ALERTS", 'alertstate="firing",'), ("ALERTS_FOR_STATE", ""))
}
OF_SUITES = ("Cases of active runs, and of the newest run of each suite", "Running cases")
OF_ALERTS = ("Alerts: critical", "Alerts: warnings", "Firing alerts")
OF_RESULTS = ("Lowest efficiency", "Figures that changed, by the gate's verdict")
OTHERS = (
    *((title, {"cluster": "west"}) for title in (*OF_SUITES, *OF_ALERTS, *OF_RESULTS)),
    *((title, {"suite": "weekly"}) for title in (*OF_SUITES, *OF_ALERTS, *OF_RESULTS)),
    *((title, {"strategy": "fsdp"}) for title in (*OF_ALERTS, *OF_RESULTS)),
    *((title, {"series": "ddp on 16"}) for title in OF_RESULTS),
)


def _is_shown(title: str, **chosen: str) -> str:
    """1 where a panel shows something, else 0; a count of alerts, which no rule here makes 0, is such a number."""
    panel = board("what-needs-me-now").panel(title)
    return f"sgn(count({with_choices(panel.queries[0].expression, **chosen)})) or vector(0)"


@pytest.mark.parametrize(("title", "other"), OTHERS, ids=str)
def test_a_panel_shows_what_is_chosen_and_nothing_else(title: str, other: dict[str, str], tmp_path: Path) -> None:
    own = {"cluster": "east", "suite": "nightly", "strategy": "ddp", "series": "ddp on 8"}
    rehearsal = Rehearsal(series=EAST, folder=tmp_path)
    rehearsal.gives(_is_shown(title, **own), {"{}": 1.0}, at_minutes=5)
    rehearsal.gives(_is_shown(title, **{**own, **other}), {"{}": 0.0}, at_minutes=5)


def _result(series: str, name: str, step_s: float) -> dict[str, str]:
    owner = {**RESULT, "series": series}
    about = {**ABOUT, "series": series, "name": name, "shape": "8b"}
    return {
        **shown(RESULT_INFO, "1x9", **about),
        **shown(RUN_STEP_SECONDS.statistic("median"), f"{step_s}x9", **owner),
        **shown(USUAL_STEP_SECONDS, "1x9", **owner),
    }


def _judged(series: str, verdict: str, change: float) -> dict[str, str]:
    figure = {**FIGURE, "series": series}
    return {**shown(VERDICT, "1x9", **figure, verdict=verdict), **shown(VERDICT_CHANGE, f"{change}x9", **figure)}


def test_the_series_that_a_page_shows_first_is_the_worst_and_not_the_last_of_the_alphabet(tmp_path: Path) -> None:
    """What the gate finds worse comes first, then what it suspects, then the longest step beside what is usual."""
    ranked = with_choices(board("nightly").variable("series")["query"], cluster="", suite="nightly", strategy="ddp")
    worst = "topk(1, " + ranked.removeprefix("query_result(sort_desc(").removesuffix("))") + ")"
    series = {**_result("s1", "a on 2", 1.0), **_result("s2", "z on 2", 1.5), **_result("s3", "b on 2", 1.5)}
    for judged, name, value in (
        ({}, "a on 2", 1.0),
        (_judged("s3", "suspicion", 0.1), "b on 2", 10.1),
        ({**_judged("s3", "suspicion", 0.3), **_judged("s1", "confirmed", 0.05)}, "a on 2", 20.05),
        ({**_judged("s3", "regression", -0.3), **_judged("s1", "confirmed", 0.05)}, "b on 2", 20.3),
    ):
        given = {**series, **(judged or _result("s1", "a on 2", 2.0))}
        Rehearsal(series=given, folder=tmp_path).gives(worst, {f'{{name="{name}"}}': value}, at_minutes=5)


def _listed(dashboard: Board, variable: str, **chosen: str) -> str:
    """Return how Prometheus lists what may be chosen: the worst first."""
    query = dashboard.variable(variable)["query"]
    return "topk(1, " + with_choices(query, **chosen).removeprefix("query_result(sort_desc(").removesuffix("))") + ")"


@pytest.mark.parametrize(
    ("dashboard", "figure", "worst"),
    [
        (board("who-waits-for-whom"), RUN_WAITING_RATIO, 0.4),
        (board("where-does-the-pipeline-wait"), MEASURED_BUBBLE, 0.4),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_page_of_one_series_begins_with_the_strategy_and_the_series_whose_figure_is_highest(
    dashboard: Board, figure: Metric, worst: float, tmp_path: Path
) -> None:
    given: dict[str, str] = {}
    for strategy, series, name, ratio in (
        ("ddp", "s1", "ddp on 16", 0.1),
        ("fsdp", "s2", "fsdp on 2", 0.4),
        ("fsdp", "s3", "fsdp on 4", 0.2),
        ("zero1", "s4", "zero1 on 8", 0.3),
    ):
        owner = {**RESULT, "strategy": strategy, "series": series}
        given |= shown(RESULT_INFO, "1x9", **{**ABOUT, "strategy": strategy, "series": series, "name": name})
        given |= shown(figure.statistic("median"), f"{ratio}x9", **owner)
    rehearsal = Rehearsal(series=given, folder=tmp_path)
    rehearsal.gives(_listed(dashboard, "strategy"), {'{strategy="fsdp"}': worst}, at_minutes=5)
    of_strategy = _listed(dashboard, "series", strategy="fsdp")
    rehearsal.gives(of_strategy, {'{name="fsdp on 2"}': worst}, at_minutes=5)


def test_the_strategy_of_a_first_run_can_be_chosen_where_there_is_no_result(tmp_path: Path) -> None:
    series = shown(RUN_INFO, "1x9", strategy="zero1", ranks="4", run="r")
    Rehearsal(series=series, folder=tmp_path).gives(
        _listed(board("who-waits-for-whom"), "strategy"), {'{strategy="zero1"}': -1}, at_minutes=5
    )


def test_the_page_of_scaling_begins_with_the_series_that_scales_worst(tmp_path: Path) -> None:
    given: dict[str, str] = {}
    for series, name, efficiency in (("s1", "a on 2", 0.9), ("s2", "b on 2", 0.6), ("s3", "c on 2", None)):
        given |= shown(RESULT_INFO, "1x9", **{**ABOUT, "series": series, "name": name})
        if efficiency is not None:
            owner = {**RESULT, "series": series, "scaling": "weak", "baseline": "beside"}
            given |= shown(RUN_SCALING_EFFICIENCY.statistic("median"), f"{efficiency}x9", **owner)
    listed = _listed(board("does-it-scale"), "series")
    Rehearsal(series=given, folder=tmp_path).gives(listed, {'{name="b on 2"}': -0.6}, at_minutes=5)


@pytest.mark.parametrize("dashboard", all_boards(), ids=lambda dashboard: dashboard.name)
def test_a_choice_of_a_ranked_label_asks_for_series_in_their_order(dashboard: Board) -> None:
    for variable in dashboard.variables:
        assert ("regex" in variable) == variable["query"].startswith("query_result("), variable["label"]


def test_an_alert_that_has_no_cluster_is_shown_whichever_is_chosen(tmp_path: Path) -> None:
    series = {'ALERTS{alertname="RunStalled",alertstate="firing",severity="warning",run="a"}': "1x9"}
    Rehearsal(series=series, folder=tmp_path).gives(
        _is_shown("Alerts: warnings", cluster="west", suite="nightly"), {"{}": 1.0}, at_minutes=5
    )
