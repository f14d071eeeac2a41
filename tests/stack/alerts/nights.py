"""Results of nights as exporters would show them, and which alerts Prometheus' own rule tester finds on then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dashboards.render import rules_text
from dashboards.rules import Alert, Group
from tests.dashboards.alert_links import GROUPS, THRESHOLDS, links_of
from tests.dashboards.promtool import promtool

RULES = GROUPS["nightly"]
ALERT, CRITICAL = RULES.alerts
USUAL = (0.91, 0.90, 0.89, 0.905, 0.895, 0.90, 0.91, 0.89, 0.90, 0.905, 0.895, 0.90, 0.89, 0.91, 0.90)
# Evaluated by the hour, three weeks take a second; the hours are those that the rules look back by.
BEAT_MINUTES = 60
NIGHT = 24 * 60 // BEAT_MINUTES
OWNER = {"strategy": "ddp", "ranks": "8", "precision": "bfloat16", "series": "0123456789ab"}
KIND = {"scaling": "weak", "baseline": "beside"}
"""What tells efficiencies of one series from each other."""


def alert_of(
    labels: Mapping[str, str],
    value: float,
    alert: Alert = ALERT,
    *,
    ends: tuple[float, float] | None = None,
    name: str = "",
) -> dict[str, Any]:
    """The alert as people get it: its labels are the result's, and none of who showed it.

    ends: of the result's interval; 0.01 from the value where they are not given. name: of its series, which the link
    then chooses.
    """
    low, high = ends or (value - 0.01, value + 0.01)
    result = f"{_percent(value)} [{_percent(low)}, {_percent(high)}]"
    run = f"{labels['strategy']} on {labels['ranks']} ranks"
    if alert is CRITICAL:
        verdict = "scales far worse than expected"
        reason = "more than 10% below the accepted level, or below the median of 14 nights"
    else:
        verdict = "scales worse than expected"
        reason = "below the accepted level, or below the median of 14 nights by more than the noise of these nights"
    return {
        "exp_labels": {**labels, **msgspec.structs.asdict(alert.labels)},
        "exp_annotations": {
            **links_of(alert, {**labels, "name": name}),
            "summary": f"{run} {verdict}: {result}{_accepted(labels)}",
            "description": (
                f"The {labels['scaling']} scaling efficiency of {run} ({labels['device']}, {labels['precision']},"
                f" series {labels['series']}, baseline: {labels['baseline']}) is {result}:"
                f" its whole interval lies {reason}."
                f" Next: `observatory show --strategy {labels['strategy']}`."
            ),
        },
    }


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.4g}%"


def _accepted(labels: Mapping[str, str]) -> str:
    of_result = (labels["strategy"], labels["device"], labels["scaling"])
    levels = [
        entry.ratio
        for entry in THRESHOLDS.accepted_efficiency
        if (entry.strategy, entry.device, entry.scaling) == of_result
    ]
    return f" (accepted: {_percent(levels[0])})" if levels else ""


def rehearse(
    series: Mapping[str, str],
    expected: Mapping[int, Sequence[dict[str, Any]]],
    folder: Path,
    *,
    beat_minutes: int = BEAT_MINUTES,
    rules: Group = RULES,
    alert: Alert = ALERT,
) -> None:
    """Ask promtool whether these alerts, and no other, are on at these hours.

    series: values in the tester's notation, one each beat.
    """
    asked = [
        {"alertname": alert.name, "eval_time": f"{hour}h", "exp_alerts": list(alerts)}
        for hour, alerts in expected.items()
    ]
    test = {
        "interval": f"{beat_minutes}m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": asked,
    }
    path_of_rules = folder / "nightly.yaml"

    path_of_rules.write_text(rules_text((rules,), THRESHOLDS.links))
    document = {
        "rule_files": [str(path_of_rules)],
        "evaluation_interval": f"{beat_minutes}m",
        "tests": [test],
    }
    path = folder / "nights.yaml"
    path.write_text(yaml.safe_dump(document))
    ended = promtool("test", "rules", path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
