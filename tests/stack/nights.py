"""Results of nights as exporters would show them, and which alerts Prometheus' own rule tester finds on then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dashboards import alerts as nightly
from dashboards.render import rules_text
from tests.dashboards.promtool import promtool

(ALERT,) = nightly.NIGHTLY_RULES.alerts
USUAL = (0.91, 0.90, 0.89, 0.905, 0.895, 0.90, 0.91, 0.89, 0.90, 0.905, 0.895, 0.90, 0.89, 0.91, 0.90)
# Evaluated by the hour, three weeks take a second; the hours are those that the rules look back by.
BEAT_MINUTES = 60
NIGHT = 24 * 60 // BEAT_MINUTES
OWNER = {"strategy": "ddp", "ranks": "8", "precision": "bfloat16", "series": "0123456789ab"}
KIND = {"scaling": "weak", "baseline": "beside"}
"""What tells efficiencies of one series from each other."""


def alert_of(labels: Mapping[str, str], efficiency: float) -> dict[str, Any]:
    """The alert as people get it: its labels are the result's, and none of who showed it."""
    annotations = {"runbook": ALERT.runbook}
    for name, text in (("summary", ALERT.summary), ("description", ALERT.description)):
        for label, value in labels.items():
            text = text.replace(f"{{{{ $labels.{label} }}}}", value)
        annotations[name] = text.replace("{{ $value | humanizePercentage }}", f"{efficiency * 100:.4g}%")
    return {"exp_labels": {**labels, "severity": ALERT.severity}, "exp_annotations": annotations}


def rehearse(
    series: Mapping[str, str],
    expected: Mapping[int, Sequence[dict[str, Any]]],
    folder: Path,
    *,
    beat_minutes: int = BEAT_MINUTES,
) -> None:
    """Ask promtool whether these alerts, and no other, are on at these hours.

    series: values in the tester's notation, one each beat.
    """
    asked = [
        {"alertname": ALERT.name, "eval_time": f"{hour}h", "exp_alerts": list(alerts)}
        for hour, alerts in expected.items()
    ]
    test = {
        "interval": f"{beat_minutes}m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": asked,
    }
    rules = folder / "nightly.yaml"
    rules.write_text(
        rules_text((nightly.NIGHTLY_RULES,))
    )  # The other groups' rules, evaluated each beat, would take longer.
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{beat_minutes}m",
        "tests": [test],
    }
    path = folder / "nights.yaml"
    path.write_text(yaml.safe_dump(document))
    ended = promtool("test", "rules", path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
