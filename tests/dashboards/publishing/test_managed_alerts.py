"""Alerts become rules that Grafana evaluates, but for those that need what it lacks."""

from __future__ import annotations

import re

from msgspec.structs import replace

from dashboards.publishing.managed_alerts import left_out, managed_alerts
from dashboards.rules import Alert, Annotations, Group, Labels, Recording, load
from dashboards.thresholds import shipped

THRESHOLDS = shipped()
LINKS = THRESHOLDS.links
ALERT = Alert(
    name="GpuHot",
    expression="hot > 1",
    hold="5m",
    labels=Labels(severity="warning", component="gpu"),
    annotations=Annotations(
        summary="GPU {{ $labels.gpu }} has {{ $value | humanize }}; {{ with $value }}{{ . }}{{ end }}; $values stays",
        description="It is hot.",
    ),
    dashboard="one-gpu",
)


def _with_description(name: str, description: str) -> Alert:
    return replace(ALERT, name=name, annotations=replace(ALERT.annotations, description=description))


def _group(*alerts: Alert, recordings: tuple[Recording, ...] = ()) -> Group:
    return Group(name="gpus", interval="1m", recordings=recordings, alerts=alerts)


def test_a_rule_asks_the_data_source_and_fires_on_each_series() -> None:
    (rule,) = managed_alerts((_group(ALERT),), LINKS, folder_uid="f", data_source_uid="d")
    asked, condition = rule["data"]
    assert (asked["datasourceUid"], asked["model"]["expr"], asked["model"]["instant"]) == ("d", "hot > 1", True)
    assert (rule["condition"], condition["refId"], condition["datasourceUid"]) == ("B", "B", "__expr__")
    assert condition["model"]["expression"] == "is_number($A) || is_nan($A) || is_inf($A)"
    assert (rule["uid"], rule["title"], rule["folderUID"], rule["ruleGroup"], rule["noDataState"]) == (
        "observatory-gpu-hot",
        "GpuHot",
        "f",
        "gpus",
        "OK",
    )


def test_a_rule_has_prometheus_labels_and_texts_with_grafanas_value() -> None:
    (rule,) = managed_alerts((_group(ALERT),), LINKS, folder_uid="f", data_source_uid="d")
    assert rule["labels"] == {"severity": "warning", "component": "gpu"}
    assert rule["annotations"]["summary"] == (
        "GPU {{ $labels.gpu }} has {{ $values.A.Value | humanize }}; {{ with $values.A.Value }}{{ . }}{{ end }};"
        " $values stays"
    )
    assert rule["annotations"]["runbook"] == "observatory runbook GpuHot"


def test_a_duration_is_written_as_grafana_writes_it() -> None:
    held = [replace(ALERT, hold=hold) for hold in ("0m", "5m", "1h", "90m", "1440m")]
    rules = managed_alerts((_group(*held),), LINKS, folder_uid="f", data_source_uid="d")
    assert [rule["for"] for rule in rules] == ["0s", "5m", "1h", "1h30m", "1d"]


def test_what_needs_recorded_series_or_asks_in_its_text_is_left_out() -> None:
    recorded = Recording(record="series:hot:newest", expression="hot")
    of_other_group = replace(ALERT, name="NeedsRecorded", expression="series:hot:newest > 1")
    asking = _with_description("Asks", '{{ with query "up" }}{{ . }}{{ end }}')
    word = _with_description("SaysQuery", "Look at the query.")
    both = (_group(recordings=(recorded,)), _group(ALERT, of_other_group, asking, word))
    assert left_out(both, LINKS) == ["NeedsRecorded", "Asks"]
    rules = managed_alerts(both, LINKS, folder_uid="f", data_source_uid="d")
    assert [rule["title"] for rule in rules] == ["GpuHot", "SaysQuery"]


def test_every_shipped_alert_is_a_rule_or_left_out_and_has_a_uid_of_its_own() -> None:
    shipped_groups = load(THRESHOLDS)
    rules = managed_alerts(shipped_groups, LINKS, folder_uid="f", data_source_uid="d")
    named = {rule["title"] for rule in rules}
    assert named | set(left_out(shipped_groups, LINKS)) == {
        alert.name for group in shipped_groups for alert in group.alerts
    }
    assert len({rule["uid"] for rule in rules}) == len(rules)
    assert all(re.fullmatch(r"[a-z0-9-]{1,40}", rule["uid"]) for rule in rules)


def test_every_group_that_grafana_evaluates_is_one_of_each_minute() -> None:
    """Grafana's usual interval, which a push does not set."""
    shipped_groups = load(THRESHOLDS)
    used = {rule["ruleGroup"] for rule in managed_alerts(shipped_groups, LINKS, folder_uid="f", data_source_uid="d")}
    assert {group.interval for group in shipped_groups if group.name in used} == {"1m"}
