"""The link of each alert opens a window that holds what the alert is about, however long ago that may have been."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

import pytest

from dashboards.board import BOARDS, read_board
from dashboards.render import alert_rule
from dashboards.rules import Alert, Group, load, minutes
from dashboards.thresholds import Thresholds, changed_by, shipped

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_RANGE = re.compile(r"\[(\d+)([smhd])(?::\d+[smhd])?\](?:\s+offset\s+(\d+)([smhd]))?")
_AGE = re.compile(r"time\(\)\s+- .*?\s< (\d+) \* (\d+)", re.DOTALL)
"""How the rules say that something is news: the seconds since its time are fewer than hours times 3600, say."""
NIGHTLY_HOURS = 720
_LONGER = """
[agents]
remembered_hours = 100
[gpus]
remembered_hours = 200
news_hours = 50
[infiniband]
remembered_hours = 60
[live]
fresh_hours = 99
"""
_CHANGED = changed_by(tomllib.loads(_LONGER), "mine.toml")


def _alerts(thresholds: Thresholds) -> list[tuple[Alert, Group]]:
    return [(alert, group) for group in load(thresholds) for alert in group.alerts]


def _looks_back_s(expression: str, records: Mapping[str, str]) -> int:
    """How long ago what an expression finds may have happened, by its own text and that of what it has recorded."""
    own = [
        int(number) * _SECONDS[unit] + int(more or 0) * _SECONDS[of or "s"]
        for number, unit, more, of in _found(expression)
    ]
    news = [int(number) * int(seconds) for number, seconds in _AGE.findall(expression)]
    others = {name: text for name, text in records.items() if name in expression and text != expression}
    rest = {name: text for name, text in records.items() if name not in others}
    recorded = [_looks_back_s(text, rest) for text in others.values()]
    return max((*own, *news, *recorded, 0))


def _found(expression: str) -> list[tuple[str, str, str, str]]:
    return _RANGE.findall(expression)


def _window_s(alert: Alert, thresholds: Thresholds) -> int:
    address = alert_rule(alert, thresholds.links)["annotations"]["dashboard_url"]
    hours = re.search(r"/d/[\w-]+\?from=now-(\d+)h&to=now", address)
    assert hours is not None, address
    return int(hours[1]) * 3600


@pytest.mark.parametrize("thresholds", [shipped(), _CHANGED], ids=["shipped", "longer"])
def test_the_window_of_an_alerts_link_holds_what_the_alert_is_about(thresholds: Thresholds) -> None:
    missed = {}
    for alert, group in _alerts(thresholds):
        records = {recording.record: recording.expression for recording in group.recordings}
        back_s = _looks_back_s(alert.expression, records) + 60 * minutes(alert.hold)
        if _window_s(alert, thresholds) < back_s:
            missed[alert.name] = (_window_s(alert, thresholds), back_s)
    assert missed == {}


def test_the_test_sees_how_far_each_kind_of_rule_looks_back() -> None:
    found = {
        alert.name: _looks_back_s(alert.expression, {one.record: one.expression for one in group.recordings}) // 3600
        for alert, group in _alerts(shipped())
    }
    looked = ("NodeAgentGone", "GpuLost", "GpuXid", "Straggler", "RegressionConfirmed", "SuiteNotRun", "RunSlow")
    assert [found[name] for name in looked] == [24, 24, 1, 36, 36, 720, 1]
    assert found["ScalingEfficiencyLow"] == 15 * 24


def test_a_link_to_a_page_of_nights_opens_thirty_days() -> None:
    nightly = {name for name in BOARDS if read_board(name)["time"]["from"] == f"now-{NIGHTLY_HOURS}h"}
    windows = {alert.name: _window_s(alert, shipped()) for alert, _ in _alerts(shipped()) if alert.dashboard in nightly}
    assert {"RegressionConfirmed", "SuiteCaseFailed", "ScalingEfficiencyLow", "RunFailed"} <= windows.keys()
    assert min(windows.values()) >= NIGHTLY_HOURS * 3600


def test_an_alert_on_a_series_chooses_it_by_name_where_it_bears_the_name_or_its_id_alone() -> None:
    (failed,) = (alert for alert, _ in _alerts(shipped()) if alert.name == "RegressionConfirmed")
    address = alert_rule(failed, shipped().links)["annotations"]["dashboard_url"]
    assert "{{ with $labels.name }}&var-series={{ . | urlquery }}{{ else }}{{ with $labels.series }}" in address
    managed = alert_rule(failed, shipped().links, can_query=False)["annotations"]["dashboard_url"]
    assert "query" not in managed.replace("urlquery", "")
