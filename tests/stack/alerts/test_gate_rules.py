"""The alerts on the gate's verdicts, as Prometheus evaluates them: one figure is one alert, whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from collectors.metrics import gate as metrics
from collectors.metrics.agent import RESULT_INFO
from dashboards.render import rules_text
from dashboards.rules import minutes
from tests.dashboards.alert_links import ALERTS, GROUPS, THRESHOLDS, links_of
from tests.dashboards.promtool import promtool
from tests.support.grafana_expressions import select

pytestmark = [pytest.mark.stack, pytest.mark.slow]

BEAT_MINUTES = 5
REMEMBERED_HOURS = THRESHOLDS.gate.remembered_hours
HOUR = 60 // BEAT_MINUTES
"""Beats of an hour."""
DAY = 24 * HOUR
NODES = ("node1:9464", "node2:9464", "node3:9464")
FIGURE = {
    "suite": "nightly",
    "case": "ddp",
    "ranks": "8",
    "hardware": "8 x NVIDIA H100",
    "series": "ddp-12ab",
    "figure": "step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What an exporter says of the figure. night: the number of the day on which the night began."""

    night: int
    verdict: str = "same"
    change: float = 0.001


Shown = Sequence[Said | None]
"""One each beat; None where the exporter is not there."""
CONFIRMED = Said(night=0, verdict="confirmed", change=0.058)


def _series(instance: str, shown: Shown, case: str = FIGURE["case"]) -> dict[str, str]:
    """In promtool's notation."""
    target = {**FIGURE, "case": case, "job": "observatory", "instance": instance}
    nights = [None if one is None else 86_400.0 * one.night for one in shown]
    series = {
        select(metrics.VERDICT_NIGHT, **target): nights,
        select(metrics.VERDICT_CHANGE, **target): [None if one is None else one.change for one in shown],
    }
    for verdict in sorted({one.verdict for one in shown if one is not None}):
        name = select(metrics.VERDICT, **target, verdict=verdict)
        series[name] = [1.0 if one is not None and one.verdict == verdict else None for one in shown]
    return {name: _written(values) for name, values in series.items()}


def _written(values: Sequence[float | None]) -> str:
    return " ".join("stale" if value is None else f"{value:g}" for value in values)


def _rehearse(folder: Path, series: Mapping[str, str], **test: Any) -> None:
    rules = folder / "gate.yaml"
    rules.write_text(rules_text((GROUPS["gate"],), THRESHOLDS.links))
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{BEAT_MINUTES}m",
        "tests": [
            {
                "interval": f"{BEAT_MINUTES}m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                **test,
            }
        ],
    }
    path = folder / "rehearsal.yaml"
    path.write_text(yaml.safe_dump(document))
    ended = promtool("test", "rules", path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _fires(folder: Path, expected: Mapping[int, str | None] | Mapping[float, str | None], **shown: Shown) -> None:
    """Ask promtool which alert, and no other, is on at these hours, once. shown: by the number of the node."""
    asked = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{round(hour * 60)}m",
            "exp_samples": [] if name is None else [{"labels": f'{{alertname="{name}"}}', "value": 1}],
        }
        for hour, name in expected.items()
    ]
    series = {
        name: values
        for node, beats in shown.items()
        for name, values in _series(NODES[int(node.removeprefix("node")) - 1], beats).items()
    }
    _rehearse(folder, series, promql_expr_test=asked)


def test_each_verdict_that_is_worse_has_its_alert_and_no_other_has(tmp_path: Path) -> None:
    verdicts = {
        "same": None,
        "insufficient_data": None,
        "suspicion": None,
        "regression": "RegressionFound",
        "lasting": "RegressionFound",
        "redefined": "RegressionFound",
        "standing": "RegressionConfirmed",
        "mixture": "RegressionConfirmed",
        "confirmed": "RegressionConfirmed",
        "recovered": None,
        "creep": "LevelCrept",
        "accepted": None,
        "improvement": None,
        "faster_baseline": None,
        "late": None,
        "no_change_shown": None,
    }
    assert set(verdicts) == {outcome.name for outcome in metrics.OUTCOMES}
    series = {
        name: values
        for verdict in verdicts
        for name, values in _series(NODES[0], [Said(night=0, verdict=verdict)] * (3 * HOUR), verdict).items()
    }
    alerts = [
        {"labels": f'{{alertname="{alert}",case="{verdict}"}}', "value": 1}
        for verdict, alert in verdicts.items()
        if alert
    ]
    asked = {"expr": 'count by (alertname, case) (ALERTS{alertstate="firing"})', "exp_samples": alerts}
    _rehearse(tmp_path, series, promql_expr_test=[{**asked, "eval_time": f"{hour}h"} for hour in (1, 2)])


def test_two_exporters_of_one_store_are_one_alert(tmp_path: Path) -> None:
    shown = [CONFIRMED] * (3 * HOUR)
    _fires(tmp_path, {1: "RegressionConfirmed", 2: "RegressionConfirmed"}, node1=shown, node2=shown, node3=shown)


def test_of_three_nodes_in_turn_the_newest_night_counts(tmp_path: Path) -> None:
    """Each node keeps a history of its own, and goes on showing the night that ran there."""
    said = (
        Said(night=0),
        Said(night=1, verdict="regression", change=0.05),
        Said(night=2, verdict="confirmed", change=0.05),
        Said(night=3, verdict="recovered"),
    )
    nodes = {
        f"node{node + 1}": [
            next((one for one in reversed(said[: beat // DAY + 1]) if one.night % 3 == node), None)
            for beat in range(4 * DAY)
        ]
        for node in range(3)
    }
    expected = {12: None, 36: "RegressionFound", 60: "RegressionConfirmed", 84: None}
    _fires(tmp_path, expected, **nodes)


def test_a_new_node_goes_on_with_the_alert(tmp_path: Path) -> None:
    gone = [*[CONFIRMED] * DAY, *[None] * DAY]
    new = [*[None] * DAY, *[Said(night=1, verdict="confirmed", change=0.06)] * DAY]
    _fires(tmp_path, dict.fromkeys((1, 23, 24, 25, 47), "RegressionConfirmed"), node1=gone, node2=new)


def test_while_a_daemonset_is_rolled_out_the_alert_stands(tmp_path: Path) -> None:
    before = [*[CONFIRMED] * (2 * HOUR), *[None] * (10 * HOUR)]
    after = [*[None] * (2 * HOUR + 3), *[CONFIRMED] * (10 * HOUR - 3)]
    at_each_beat = {beat / HOUR: "RegressionConfirmed" for beat in range(HOUR, 12 * HOUR, 2)}
    _fires(tmp_path, at_each_beat, node1=before, node2=after)


def test_what_an_old_exporter_goes_on_showing_does_not_count(tmp_path: Path) -> None:
    stuck = [CONFIRMED] * (3 * DAY)
    right = [*[CONFIRMED] * DAY, *[Said(night=1, verdict="recovered")] * (2 * DAY)]
    _fires(tmp_path, {12: "RegressionConfirmed", 30: None, 60: None}, node1=stuck, node2=right)


def test_what_nobody_shows_any_more_stands_for_a_day_and_a_half(tmp_path: Path) -> None:
    shown = [*[CONFIRMED] * (3 * HOUR), *[None] * ((REMEMBERED_HOURS + 1) * HOUR)]
    expected = {
        2: "RegressionConfirmed",
        REMEMBERED_HOURS - 1: "RegressionConfirmed",
        REMEMBERED_HOURS + 1: None,
    }
    _fires(tmp_path, expected, node1=shown)


def test_a_night_of_a_clock_that_is_ahead_waits_for_its_time(tmp_path: Path) -> None:
    shown = [Said(night=1, verdict="confirmed")] * (2 * DAY)
    _fires(tmp_path, {12: None, 25: "RegressionConfirmed"}, node1=shown)


def test_an_alert_on_an_old_night_outlasts_an_exporters_restart(tmp_path: Path) -> None:
    """As of a weekly suite: what is older than a day and a half is not remembered."""
    late = [*[CONFIRMED] * (2 * DAY), None, *[CONFIRMED] * HOUR]
    at_each_beat = {48 + beat / HOUR: "RegressionConfirmed" for beat in range(-3, HOUR)}
    _fires(tmp_path, at_each_beat, node1=late)


def test_an_accepted_level_ends_the_alert(tmp_path: Path) -> None:
    shown = [*[CONFIRMED] * (2 * HOUR), *[Said(night=0, verdict="accepted", change=0.058)] * HOUR]
    keep_minutes = minutes(ALERTS["RegressionConfirmed"].keep_firing_for or "")
    _fires(tmp_path, {1.5: "RegressionConfirmed", 2 + (keep_minutes + BEAT_MINUTES) / 60: None}, node1=shown)


def _says(
    folder: Path,
    series: Mapping[str, str],
    alert: str,
    labels: Mapping[str, str],
    *,
    name: str = "",
    minute: int = 60,
    **texts: str,
) -> None:
    """Ask whether the alert is on then, and tells people this. name: of the series that its link chooses."""
    found = {
        "exp_labels": {**labels, **msgspec.structs.asdict(ALERTS[alert].labels)},
        "exp_annotations": {**texts, **links_of(ALERTS[alert], {**labels, "name": name})},
    }
    asked = {"alertname": alert, "eval_time": f"{minute}m", "exp_alerts": [found]}
    _rehearse(folder, series, alert_rule_test=[asked])


def _told_of(**told: str) -> dict[str, str]:
    """What one exporter shows of a confirmed change with its interval, its first night and these of its cause."""
    target = {**FIGURE, "job": "observatory", "instance": NODES[0]}
    began_s = 86_400.0 * 19_995
    values = {
        select(metrics.VERDICT_CHANGE_LOW, **target): 0.053,
        select(metrics.VERDICT_CHANGE_HIGH, **target): 0.068,
        select(metrics.VERDICT_SINCE, **target): began_s,
    }
    if told:
        values[select(metrics.VERDICT_CAUSE, **target, **told)] = 0.0
    series = _series(NODES[0], [CONFIRMED] * (2 * HOUR))
    return {**series, **{name: _written([value] * (2 * HOUR)) for name, value in values.items()}}


def test_a_person_is_told_what_how_much_since_when_why_and_what_to_do_next(tmp_path: Path) -> None:
    told = _told_of(run="r2", good_run="r1", cause="driver 550 -> 560 on the first bad night")
    _says(
        tmp_path,
        told,
        "RegressionConfirmed",
        FIGURE,
        summary="ddp on 8 ranks: step +5.8 % [+5.3 %, +6.8 %] since 2024-09-29 (suite nightly)",
        description=(
            "step of ddp on 8 x NVIDIA H100 is worse than before, and later nights confirm it. Likely cause:"
            " driver 550 -> 560 on the first bad night. Next: `observatory diagnose r2`, `observatory compare"
            " r1 r2`."
        ),
    )


def test_the_figures_stay_in_the_text_when_no_exporter_shows_the_night_any_more(tmp_path: Path) -> None:
    gone = {name: f"{values}{' stale' * (12 * HOUR)}" for name, values in _told_of(run="r2").items()}
    _says(
        tmp_path,
        gone,
        "RegressionConfirmed",
        FIGURE,
        minute=10 * 60,
        summary="ddp on 8 ranks: step +5.8 % [+5.3 %, +6.8 %] since 2024-09-29 (suite nightly)",
        description=(
            "step of ddp on 8 x NVIDIA H100 is worse than before, and later nights confirm it. Next:"
            " `observatory diagnose r2`."
        ),
    )


def test_the_link_of_an_alert_chooses_its_series_by_name(tmp_path: Path) -> None:
    info = select(RESULT_INFO, series=FIGURE["series"], name="ddp on 8, 8b", job="observatory", instance="n")
    _says(
        tmp_path,
        _series(NODES[0], [CONFIRMED] * (2 * HOUR)) | {info: _written([1] * HOUR + [None] * HOUR)},
        "RegressionConfirmed",
        FIGURE,
        name="ddp on 8, 8b",
        minute=115,
        summary="ddp on 8 ranks: step +5.8 % (suite nightly)",
        description="step of ddp on 8 x NVIDIA H100 is worse than before, and later nights confirm it.",
    )


def test_what_is_not_known_is_left_out_of_the_text(tmp_path: Path) -> None:
    _says(
        tmp_path,
        _series(NODES[0], [CONFIRMED] * (2 * HOUR)),
        "RegressionConfirmed",
        FIGURE,
        summary="ddp on 8 ranks: step +5.8 % (suite nightly)",
        description="step of ddp on 8 x NVIDIA H100 is worse than before, and later nights confirm it.",
    )
    _says(
        tmp_path,
        _told_of(run="r2", good_run="", cause=""),
        "RegressionConfirmed",
        FIGURE,
        summary="ddp on 8 ranks: step +5.8 % [+5.3 %, +6.8 %] since 2024-09-29 (suite nightly)",
        description=(
            "step of ddp on 8 x NVIDIA H100 is worse than before, and later nights confirm it. Next:"
            " `observatory diagnose r2`."
        ),
    )


def test_the_cause_is_that_of_the_newest_night_and_an_interval_never_of_another(tmp_path: Path) -> None:
    """An older night's cause is of another series, and Prometheus remembers it."""
    target = {**FIGURE, "job": "observatory", "instance": NODES[0]}
    old, new = ({"run": run, "good_run": "r1", "cause": cause} for run, cause in (("r2", "old"), ("r3", "new")))
    shown = [*[Said(night=0, verdict="regression")] * HOUR, *[Said(night=1, verdict="confirmed")] * HOUR]
    begun = [*[None] * (23 * HOUR), *shown]
    series = _series(NODES[0], begun)
    for name, values in (
        (select(metrics.VERDICT_CAUSE, **target, **old), [0.0] * HOUR + [None] * HOUR),
        (select(metrics.VERDICT_CAUSE, **target, **new), [None] * HOUR + [86_400.0] * HOUR),
        (select(metrics.VERDICT_CHANGE_LOW, **target), [0.04] * HOUR + [None] * HOUR),
    ):
        series[name] = _written([*[None] * (23 * HOUR), *values])
    alert = ALERTS["RegressionConfirmed"]
    found = {
        "exp_labels": {**FIGURE, **msgspec.structs.asdict(alert.labels)},
        "exp_annotations": {
            "summary": "ddp on 8 ranks: step +0.1 % (suite nightly)",
            "description": "step of ddp on 8 x NVIDIA H100 is worse than before, and later nights confirm it."
            " Likely cause: new. Next: `observatory diagnose r3`, `observatory compare r1 r3`.",
            **links_of(alert, FIGURE),
        },
    }
    asked = {"alertname": alert.name, "eval_time": f"{24 * 60 + 30}m", "exp_alerts": [found]}
    _rehearse(tmp_path, series, alert_rule_test=[asked])


def _lacks(kind: str, **numbers: Sequence[float | None]) -> dict[str, str]:
    """What exporters show of cases that are missing; each shows the night on which its first value comes."""
    series = {}
    for node, values in numbers.items():
        target = {"suite": "nightly", "job": "observatory", "instance": NODES[int(node.removeprefix("node")) - 1]}
        first = next(beat for beat, value in enumerate(values) if value is not None)
        series[select(metrics.SUITE_MISSING, kind=kind, **target)] = _written(values)
        nights = [None if value is None else 60.0 * BEAT_MINUTES * first for value in values]
        series[select(metrics.SUITE_NIGHT, **target)] = _written(nights)
    return series


def test_cases_that_a_night_lacks_are_told_once(tmp_path: Path) -> None:
    _says(
        tmp_path,
        _lacks("vanished", node1=[2] * DAY, node2=[2] * DAY),
        "SuiteCaseMissing",
        {"suite": "nightly", "kind": "vanished"},
        summary="Suite nightly: 2 cases missing",
        description=(
            "The newest night of the suite nightly lacks 2 cases of earlier nights. The gate cannot judge what"
            " is not measured. Next: `observatory check --suite nightly` lists the cases."
        ),
    )


def test_a_figure_that_stopped_is_told_in_words(tmp_path: Path) -> None:
    _says(
        tmp_path,
        _lacks("stopped", node1=[1] * DAY),
        "SuiteCaseMissing",
        {"suite": "nightly", "kind": "stopped"},
        summary="Suite nightly: 1 case with missing figures",
        description=(
            "The newest night of the suite nightly lacks figures of 1 case of earlier nights. The gate cannot"
            " judge what is not measured. Next: `observatory check --suite nightly` lists the cases."
        ),
    )


def test_what_an_older_exporter_goes_on_lacking_does_not_count(tmp_path: Path) -> None:
    series = _lacks("vanished", node1=[2] * (2 * DAY), node2=[*[None] * DAY, *[0] * DAY])
    asked = [
        {
            "expr": 'count(ALERTS{alertstate="firing"})',
            "eval_time": "600m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        },
        {"expr": 'count(ALERTS{alertstate="firing"})', "eval_time": "1500m", "exp_samples": []},
    ]
    _rehearse(tmp_path, series, promql_expr_test=asked)


def test_a_night_that_lacks_nothing_is_silent(tmp_path: Path) -> None:
    silent = {"expr": "ALERTS", "eval_time": "60m", "exp_samples": []}
    _rehearse(tmp_path, _lacks("stopped", node1=[0] * DAY), promql_expr_test=[silent])
