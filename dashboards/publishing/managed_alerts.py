"""Alerts as Grafana-managed rules, in the form of Grafana's provisioning API.

Grafana records no series here, so alerts that need recorded series are left out; Prometheus evaluates these from
rendered/rules.yaml. `keep_firing_for`, which only Grafana 12 knows, is also left out.
Source: Grafana, HTTP API, Alerting provisioning; its template functions lack `query`.
"""

from __future__ import annotations

import re
from typing import Any

from dashboards.render import alert_rule
from dashboards.rules import Alert, Group, minutes
from dashboards.thresholds import Links

_HAS_RESULT = "is_number($A) || is_nan($A) || is_inf($A)"
"""Prometheus alerts on each series of a result, whatever its value, but Grafana's condition would treat 0 as false."""
_SECONDS = 600
_MINUTES = {"d": 1440, "h": 60, "m": 1}


def managed_alerts(
    groups: tuple[Group, ...], links: Links, *, folder_uid: str, data_source_uid: str
) -> list[dict[str, Any]]:
    """Return the alerts that Grafana can evaluate, as its rules; it evaluates them every minute, its usual interval."""
    without = left_out(groups, links)
    return [
        _managed(alert, alert_rule(alert, links, can_query=False), group.name, folder_uid, data_source_uid)
        for group in groups
        for alert in group.alerts
        if alert.name not in without
    ]


def left_out(groups: tuple[Group, ...], links: Links) -> list[str]:
    """Return the names of alerts that Grafana cannot evaluate, or whose text it cannot fill in."""
    recorded = {recording.record for group in groups for recording in group.recordings}
    return [
        alert.name
        for group in groups
        for alert in group.alerts
        if any(name in alert.expression for name in recorded)
        or _queries(alert_rule(alert, links, can_query=False)["annotations"])
    ]


def _queries(annotations: dict[str, str]) -> bool:
    """Return whether a text queries Prometheus, which Grafana's templates cannot do."""
    return any(re.search(r"\{\{[^}]*\bquery\b", text) for text in annotations.values())


def _managed(alert: Alert, rule: dict[str, Any], group: str, folder_uid: str, data_source_uid: str) -> dict[str, Any]:
    return {
        "uid": f"observatory-{alert.runbook.removesuffix('.md')}",
        "title": alert.name,
        "folderUID": folder_uid,
        "ruleGroup": group,
        "condition": "B",
        "data": [
            {
                "refId": "A",
                "datasourceUid": data_source_uid,
                "relativeTimeRange": {"from": _SECONDS, "to": 0},
                "model": {"refId": "A", "expr": alert.expression, "instant": True, "range": False},
            },
            {
                "refId": "B",
                "datasourceUid": "__expr__",
                "relativeTimeRange": {"from": _SECONDS, "to": 0},
                "model": {"refId": "B", "type": "math", "expression": _HAS_RESULT},
            },
        ],
        "for": _duration(minutes(alert.hold)),
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": rule["labels"],
        # In Grafana, $value is a text that lists all values.
        "annotations": {
            name: re.sub(r"\$value\b", "$values.A.Value", text) for name, text in rule["annotations"].items()
        },
    }


def _duration(rest: int) -> str:
    """Return minutes as Grafana writes a duration: `1h` for 60, and `1h30m` for 90."""
    text = ""
    for unit, size in _MINUTES.items():
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"
