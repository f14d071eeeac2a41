"""Where an alert must lead people to: its runbook, and its dashboard with what the alert is about chosen."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote_plus

from dashboards.board import BOARDS, read_board
from dashboards.render import label_of, window_hours
from dashboards.rules import Alert, load
from dashboards.thresholds import shipped

THRESHOLDS = shipped()
GROUPS = {group.name: group for group in load(THRESHOLDS)}
ALERTS = {alert.name: alert for group in GROUPS.values() for alert in group.alerts}
VARIABLES = {
    name: {variable["name"]: label_of(variable) for variable in read_board(name)["variables"]} for name in BOARDS
}


def links_of(alert: Alert, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that lead somewhere. labels: of the alert as it fires."""
    choices = VARIABLES[alert.dashboard].items()
    chosen = [f"&var-{name}={quote_plus(labels[label])}" for name, label in choices if labels.get(label)]
    return {
        "runbook": f"observatory runbook {alert.name}",
        "dashboard_url": (
            f"http://localhost:3000/d/observatory-{alert.dashboard}?from=now-{window_hours(alert)}h&to=now{''.join(chosen)}"
        ),
    }
