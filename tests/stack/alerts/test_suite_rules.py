"""The alerts on suites, as Prometheus evaluates them over days: what did not run, what failed, what stands still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.serve.demo import SUITE, SUITE_RUN, made_suites
from collectors.metrics.metric import Sample
from collectors.metrics.suites import (
    SUITE_CASE_FAILURE,
    SUITE_LAST_CASES,
    SUITE_LAST_PROGRESS,
    SUITE_LAST_START,
    SUITE_PERIOD,
)
from dashboards.render import rules_text
from tests.dashboards.alert_links import ALERTS, GROUPS, THRESHOLDS, links_of
from tests.dashboards.promtool import promtool
from tests.support.grafana_expressions import select

pytestmark = [pytest.mark.stack, pytest.mark.slow]

BEAT_MINUTES = 5
HOUR = 60 // BEAT_MINUTES
"""Beats of an hour."""
PERIOD_S = 24 * 3600
LATE_HOURS = 24 * (1 + THRESHOLDS.suites.late_ratio)
NODES = ("node1:9464", "node2:9464")

Values = Sequence[float | None]
"""One each beat; None where the exporter is not there, or does not show the series."""
Alarms = set[tuple[str, ...]]
"""Alerts that fire: each its name, its suite, and its run and outcome where it has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What one exporter shows of one suite at each beat."""

    suite: str = "nightly"
    instance: str = NODES[0]
    started_s: Values = ()
    period_s: Values = ()
    runs: Mapping[str, tuple[Values, Mapping[str, Values]]] | None = None

    def series(self) -> dict[str, str]:
        """In promtool's notation. runs: progress and cases of each."""
        target = {"suite": self.suite, "job": "observatory", "instance": self.instance}
        series = {
            select(SUITE_LAST_START, **target): self.started_s,
            select(SUITE_PERIOD, **target): self.period_s,
        }
        for run, (progress_s, cases) in (self.runs or {}).items():
            series[select(SUITE_LAST_PROGRESS, run=run, **target)] = progress_s
            for outcome, numbers in cases.items():
                series[select(SUITE_LAST_CASES, run=run, outcome=outcome, **target)] = numbers
        return {name: _written(values) for name, values in series.items() if values}


def _written(values: Values) -> str:
    return " ".join("stale" if value is None else f"{value:.0f}" for value in values)


def _constant(value: float | None, hours: float) -> list[float | None]:
    return [value] * round(hours * HOUR)


def _fires(expected: Mapping[float, Alarms], folder: Path, *shown: Shown) -> None:
    """Ask promtool whether these alerts, and no others, are on at these hours."""
    asked = [_firing(hour, alarms) for hour, alarms in expected.items()]
    _rehearse({"promql_expr_test": asked}, folder, _joined(*shown))


def _joined(*shown: Shown) -> dict[str, str]:
    return {name: values for one in shown for name, values in one.series().items()}


def _firing(hour: float, alarms: Alarms) -> dict[str, Any]:
    return {
        "expr": 'count by (alertname, suite, run, outcome) (ALERTS{alertstate="firing"})',
        "eval_time": f"{round(hour * 60)}m",
        "exp_samples": [{"labels": _labels(*alarm), "value": 1} for alarm in alarms],
    }


def _labels(alarm: str, suite: str, run: str = "", outcome: str = "") -> str:
    labels = {"alertname": alarm, "suite": suite, "run": run, "outcome": outcome}
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items() if value) + "}"


def _says(alarm: str, labels: Mapping[str, str], annotations: Mapping[str, str], hour: float) -> dict[str, Any]:
    found = {
        "exp_labels": {**labels, "severity": "warning", "component": "suite"},
        "exp_annotations": {**annotations, **links_of(ALERTS[alarm], labels)},
    }
    asked = {"alertname": alarm, "eval_time": f"{round(hour * 60)}m", "exp_alerts": [found]}
    return {"alert_rule_test": [asked]}


def _rehearse(test: Mapping[str, Any], folder: Path, series: Mapping[str, str]) -> None:
    rules = folder / "suites.yaml"
    rules.write_text(rules_text((GROUPS["suites"],), THRESHOLDS.links))
    shown = [{"series": name, "values": values} for name, values in series.items()]
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{BEAT_MINUTES}m",
        "tests": [{"interval": f"{BEAT_MINUTES}m", "input_series": shown, **test}],
    }
    path = folder / "rehearsal.yaml"
    path.write_text(yaml.safe_dump(document))
    ended = promtool("test", "rules", path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


# A suite that did not run.


def _nightly(hours: float, **changes: Any) -> Shown:
    """A suite that began at the first moment, and not again."""
    usual = {"started_s": _constant(0, hours), "period_s": _constant(PERIOD_S, hours)}
    return Shown(**{**usual, **changes})


NOT_RUN: Alarms = {("SuiteNotRun", "nightly")}


def test_a_suite_that_did_not_begin_again_is_told_after_its_period_and_a_quarter(tmp_path: Path) -> None:
    _fires({LATE_HOURS - 0.1: set(), LATE_HOURS + 0.3: NOT_RUN, 48: NOT_RUN}, tmp_path, _nightly(49))


def test_a_suite_that_is_missed_is_told_in_words(tmp_path: Path) -> None:
    annotations = {
        "summary": "Suite nightly did not run: it last started 1d 8h 0m 0s ago",
        "description": "The suite nightly last started 1d 8h 0m 0s ago, at least 25% later than its period"
        " allows. No other alert covers what it would have measured.",
    }
    _rehearse(_says("SuiteNotRun", {"suite": "nightly"}, annotations, 32), tmp_path, _joined(_nightly(33)))


def test_a_new_start_ends_it(tmp_path: Path) -> None:
    again = [*_constant(0, 31), *_constant(31 * 3600, 10)]
    _fires({30.9: NOT_RUN, 31.2: set()}, tmp_path, _nightly(41, started_s=again))


def test_a_suite_without_a_period_is_never_missed(tmp_path: Path) -> None:
    _fires({40: set()}, tmp_path, _nightly(41, period_s=()))


def test_a_suite_that_declares_no_period_any_more_is_missed_no_more(tmp_path: Path) -> None:
    shown = _nightly(31, started_s=[*_constant(0, 31), *_constant(31 * 3600, 36)])
    _fires({30.9: NOT_RUN, 66: set()}, tmp_path, shown)


def test_of_many_suites_those_that_did_not_run_are_told(tmp_path: Path) -> None:
    weekly = _nightly(60, suite="weekly", period_s=_constant(7 * PERIOD_S, 60))
    hourly = _nightly(60, suite="hourly", period_s=_constant(3600, 60))
    expected: dict[float, Alarms] = {
        1.1: set(),
        2: {("SuiteNotRun", "hourly")},
        59: {("SuiteNotRun", "hourly"), *NOT_RUN},
    }
    _fires(expected, tmp_path, _nightly(60), weekly, hourly)


def test_the_newest_start_counts_whoever_shows_it(tmp_path: Path) -> None:
    other = _nightly(80, instance=NODES[1], started_s=[*_constant(None, 24), *_constant(24 * 3600, 56)])
    _fires({32: set(), 53.9: set(), 55: NOT_RUN}, tmp_path, _nightly(80), other)


def test_several_exporters_of_one_history_are_one_alert(tmp_path: Path) -> None:
    _fires({32: NOT_RUN}, tmp_path, _nightly(33), _nightly(33, instance=NODES[1]))


def test_a_suite_that_nobody_shows_any_more_is_missed_all_the_same(tmp_path: Path) -> None:
    gone = _nightly(5, started_s=[*_constant(0, 5), None], period_s=[*_constant(PERIOD_S, 5), None])
    _fires({29: set(), 32: NOT_RUN, 48: NOT_RUN}, tmp_path, gone)


def test_what_nobody_has_shown_for_long_is_forgotten(tmp_path: Path) -> None:
    started_s = -3600.0 * (24 * THRESHOLDS.suites.missed_days - 8)
    gone = _nightly(3, started_s=[*_constant(started_s, 3), None], period_s=[*_constant(PERIOD_S, 3), None])
    _fires({1: NOT_RUN, 7: NOT_RUN, 10: set()}, tmp_path, gone)


def test_a_start_of_a_clock_that_is_ahead_hides_nothing(tmp_path: Path) -> None:
    ahead = _nightly(33, instance=NODES[1], started_s=_constant(1e9, 33))
    _fires({32: NOT_RUN}, tmp_path, _nightly(33), ahead)


def test_a_prometheus_that_was_away_tells_what_was_missed_and_nothing_else(tmp_path: Path) -> None:
    """Its scrapes are missing for an hour and a half, which is more than it remembers by itself."""
    away = [_constant(None, 1.5), _constant(None, 1.5)]
    on_time = [*_constant(0, 22), *away[0], *_constant(23 * 3600, 10)]
    period = [*_constant(PERIOD_S, 22), *away[1], *_constant(PERIOD_S, 10)]
    late = Shown(suite="late", started_s=[*_constant(0, 29), *away[0], *_constant(0, 3)], period_s=period)
    _fires(
        {23.6: set(), 32: {("SuiteNotRun", "late")}},
        tmp_path,
        Shown(started_s=on_time, period_s=period),
        late,
    )


# A case that failed.


def _ended(run: str, hours: float, ended_s: float = 0, /, **cases: int) -> Shown:
    counted = {outcome: _constant(number, hours) for outcome, number in cases.items()}
    return Shown(runs={run: (_constant(ended_s, hours), counted)})


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "interrupted", "missing"])
def test_cases_that_did_not_end_well_are_told_at_once(outcome: str, tmp_path: Path) -> None:
    failed = _ended("a", 1, done=5, **{outcome: 2})
    _fires({0.1: {("SuiteCaseFailed", "nightly", "a", outcome)}}, tmp_path, failed)


def test_a_failed_case_is_told_in_words(tmp_path: Path) -> None:
    annotations = {
        "summary": "2 cases of the suite nightly: failed",
        "description": _FAILED,
    }
    labels = {"suite": "nightly", "run": "a", "outcome": "failed"}
    _rehearse(_says("SuiteCaseFailed", labels, annotations, 0.5), tmp_path, _joined(_ended("a", 1, done=5, failed=2)))


_FAILED = (
    "In the run a of the suite nightly, 2 cases ended as failed. The other cases of the run are unaffected."
    " Next: `observatory suite show a`, then `observatory suite run nightly --resume a --repeat-failed`."
)


def test_a_failed_case_is_told_with_its_rank_its_cause_and_its_run(tmp_path: Path) -> None:
    annotations = {
        "summary": "2 cases of the suite nightly: failed: ddp (rank 1), fsdp",
        "description": f"{_FAILED} ddp: rank 1 was killed by SIGKILL (`observatory show r1`). fsdp: cause unknown"
        " (`observatory show r2`).",
    }
    labels = {"suite": "nightly", "run": "a", "outcome": "failed"}
    series = _joined(_ended("a", 1, done=5, failed=2))
    for case, run, rank, cause in (("ddp", "r1", "1", "rank 1 was killed by SIGKILL"), ("fsdp", "r2", "", "")):
        for instance in ("node1:9464", "node2:9464"):  # Two exporters of one history.
            shown = {"case": case, "case_run": run, "rank": rank, "cause": cause, "instance": instance}
            series[select(SUITE_CASE_FAILURE, **labels, **shown)] = "1x20"
    _rehearse(_says("SuiteCaseFailed", labels, annotations, 0.5), tmp_path, series)


def test_what_was_done_skipped_or_left_out_is_no_failure(tmp_path: Path) -> None:
    _fires({0.5: set()}, tmp_path, _ended("a", 1, done=5, skipped=2, left_out=3, failed=0))


def test_a_failure_in_a_run_that_goes_on_is_told_before_its_end(tmp_path: Path) -> None:
    cases = {"failed": [0] * HOUR + [1] * HOUR, "running": [1] * 2 * HOUR}
    going = Shown(runs={"a": ([60 * BEAT_MINUTES * beat for beat in range(2 * HOUR)], cases)})
    _fires({0.9: set(), 1.1: {("SuiteCaseFailed", "nightly", "a", "failed")}}, tmp_path, going)


def test_a_failure_lasts_while_the_next_run_goes_on_and_ends_with_its_good_end(tmp_path: Path) -> None:
    before = (_constant(0, 26), {"failed": _constant(1, 26)})
    after = ([None] * 24 * HOUR + _constant(26 * 3600, 10), {"failed": [None] * 24 * HOUR + _constant(0, 10)})
    told: Alarms = {("SuiteCaseFailed", "nightly", "a", "failed")}
    shown = Shown(runs={"a": ([*before[0], None], {"failed": [*before[1]["failed"], None]}), "b": after})
    _fires({25: told, 26.2: set()}, tmp_path, shown)


def test_an_old_failure_is_told_no_more(tmp_path: Path) -> None:
    told: Alarms = {("SuiteCaseFailed", "nightly", "a", "failed")}
    _fires(
        {THRESHOLDS.suites.news_hours - 1: told, THRESHOLDS.suites.news_hours + 1: set()},
        tmp_path,
        _ended("a", 40, failed=1),
    )


def test_a_failure_of_a_weekly_suite_is_told_until_the_next_run_is_late(tmp_path: Path) -> None:
    began_s = 6 * 3600 - 7 * PERIOD_S * (1 + THRESHOLDS.suites.late_ratio)
    failed = _ended("a", 9, began_s, failed=1)
    weekly = Shown(started_s=_constant(began_s, 9), period_s=_constant(7 * PERIOD_S, 9), runs=failed.runs)
    told: Alarms = {("SuiteCaseFailed", "nightly", "a", "failed")}
    _fires({1: told, 5: told, 7: {("SuiteNotRun", "nightly")}}, tmp_path, weekly)


def test_a_good_run_of_another_node_hides_no_failure(tmp_path: Path) -> None:
    failed, good = _ended("a", 3, failed=1), _ended("b", 3, 3600, failed=0, done=1)
    other = Shown(instance=NODES[1], runs=good.runs)
    _fires({2: {("SuiteCaseFailed", "nightly", "a", "failed")}}, tmp_path, failed, other)


def test_a_failure_that_several_exporters_show_is_one_alert(tmp_path: Path) -> None:
    failed = _ended("a", 3, failed=1)
    twice = Shown(instance=NODES[1], runs=failed.runs)
    _fires({2: {("SuiteCaseFailed", "nightly", "a", "failed")}}, tmp_path, failed, twice)


def test_of_the_demonstrations_suites_one_has_a_failed_case(tmp_path: Path) -> None:
    beats = [
        {_name(sample): sample.value for sample, _ in made_suites(0, 60 * BEAT_MINUTES * beat)} for beat in range(HOUR)
    ]
    series = {name: _written([shown.get(name) for shown in beats]) for name in {*beats[0], *beats[-1]}}
    told = ("SuiteCaseFailed", SUITE, SUITE_RUN, "failed")
    _rehearse({"promql_expr_test": [_firing(0.8, {told})]}, tmp_path, series)


def _name(sample: Sample) -> str:
    labels = {**sample.labels, "job": "observatory", "instance": NODES[0]}
    return f"{sample.metric}{{{', '.join(f'{name}={chr(34)}{value}{chr(34)}' for name, value in labels.items())}}}"


# A suite that stands still.


def _still(hours: float, *, moves: float = 0, suite: str = "nightly", instance: str = NODES[0]) -> Shown:
    """A run of one case that moves for some hours, and then stands still."""
    end = round(moves * HOUR)
    progress: Values = [60 * BEAT_MINUTES * min(beat, end) for beat in range(round(hours * HOUR))]
    cases: Mapping[str, Values] = {"running": _constant(1, hours), "waiting": _constant(3, hours)}
    return Shown(suite=suite, instance=instance, runs={"a": (progress, cases)})


STALLED: Alarms = {("SuiteStalled", "nightly", "a")}


def test_a_suite_that_stands_still_is_told_after_half_an_hour(tmp_path: Path) -> None:
    _fires({1.4: set(), 1.8: STALLED}, tmp_path, _still(3, moves=1))


def test_a_suite_that_stands_still_is_told_in_words(tmp_path: Path) -> None:
    annotations = {
        "summary": "Suite nightly has made no progress for 1h 0m 0s",
        "description": "The run a of the suite nightly has not ended, and none of its ranks has finished a step"
        " for 1h 0m 0s. It hangs, or its runner has died.",
    }
    _rehearse(_says("SuiteStalled", {"suite": "nightly", "run": "a"}, annotations, 1), tmp_path, _joined(_still(2)))


def test_a_suite_that_gets_on_is_silent_however_long_it_takes(tmp_path: Path) -> None:
    _fires({9.9: set()}, tmp_path, _still(10, moves=10))


def test_a_run_that_has_ended_stands_not_still(tmp_path: Path) -> None:
    _fires({9: set()}, tmp_path, _ended("a", 10, done=4))


def test_a_case_between_two_others_counts_as_running(tmp_path: Path) -> None:
    between = Shown(runs={"a": (_constant(0, 2), {"running": _constant(0, 2)})})
    _fires({1: STALLED}, tmp_path, between)


def test_an_exporter_that_lags_behind_raises_no_alarm_on_a_run_that_gets_on(tmp_path: Path) -> None:
    _fires({4: set()}, tmp_path, _still(5), _still(5, moves=5, instance=NODES[1]))


def test_of_several_suites_at_once_the_one_that_stands_still_is_told(tmp_path: Path) -> None:
    _fires({4: STALLED}, tmp_path, _still(5), _still(5, moves=5, suite="smoke"))


def test_a_run_that_stands_still_is_told_of_for_a_week(tmp_path: Path) -> None:
    died_s = 3600.0 * (4 - THRESHOLDS.suites.given_up_hours)
    dead = Shown(runs={"a": (_constant(died_s, 7), {"running": _constant(1, 7)})})
    _fires({1: STALLED, 3: STALLED, 5: set()}, tmp_path, dead)


def test_an_exporter_that_starts_again_tells_of_a_run_that_stands_still(tmp_path: Path) -> None:
    progress, cases = [*_constant(0, 1), *_constant(None, 0.5), *_constant(0, 1)], _constant(1, 2.5)
    shown = Shown(runs={"a": (progress, {"running": [*cases[:HOUR], *_constant(None, 0.5), *_constant(1, 1)]})})
    _fires({0.9: STALLED, 1.3: set(), 1.8: STALLED}, tmp_path, shown)


def test_where_nobody_shows_a_suite_nobody_is_told(tmp_path: Path) -> None:
    _fires({1: set()}, tmp_path, Shown())
