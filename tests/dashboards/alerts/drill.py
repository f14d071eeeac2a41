"""One group of alerts on made-up series, minute by minute, by Prometheus' own rule tester."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from collectors.metrics.metric import Metric
from dashboards.render import rules_text
from tests.dashboards.alert_links import ALERTS, GROUPS, THRESHOLDS, links_of
from tests.dashboards.promtool import promtool
from tests.support.grafana_expressions import select

SCRAPED = {"job": "observatory", "instance": "node1:9464"}
_TOLD = ("alertname", "instance", "gpu", "kind", "port", "folder", "run", "rank", "xid")

Series = dict[str, str]


def shown(metric: Metric, values: str, /, **labels: str) -> Series:
    """One series of a node, its values in the tester's notation, one each minute."""
    return {select(metric, **{**SCRAPED, **labels}): values}


def joined(*parts: Mapping[str, str]) -> Series:
    """All series of the parts; a later one takes the place of an earlier one of the same labels."""
    return {name: values for part in parts for name, values in part.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A group of rules by its name, and a folder for the tester's files."""

    group: str
    folder: Path

    def fires(self, series: Mapping[str, str], expected: Mapping[int, list[dict[str, str]]]) -> None:
        """Ask whether these alerts, and no others, are on at these minutes: each by its name and some labels."""
        asked = [
            {
                "expr": f'count by ({", ".join(_TOLD)}) (ALERTS{{alertstate="firing"}})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": _written(alert), "value": 1} for alert in alerts],
            }
            for minute, alerts in expected.items()
        ]
        self._check({"promql_expr_test": asked}, series)

    def says(
        self,
        series: Mapping[str, str],
        alert: str,
        minute: int,
        labels: Mapping[str, str],
        *,
        summary: str,
        description: str,
    ) -> None:
        """Ask whether one alert is on then with these labels, tells people this, and leads them to its pages."""
        told = {**labels, **msgspec.structs.asdict(ALERTS[alert].labels)}
        annotations = {"summary": summary, "description": description, **links_of(ALERTS[alert], labels)}
        found = {"exp_labels": told, "exp_annotations": annotations}
        asked = [{"alertname": alert, "eval_time": f"{minute}m", "exp_alerts": [found]}]
        self._check({"alert_rule_test": asked}, series)

    def _check(self, test: dict[str, Any], series: Mapping[str, str]) -> None:
        rules = self.folder / "rules.yaml"
        rules.write_text(rules_text((GROUPS[self.group],), THRESHOLDS.links))
        given = [{"series": name, "values": values} for name, values in series.items()]
        document = {
            "rule_files": [str(rules)],
            "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": given, **test}],
        }
        path = self.folder / "drill.yaml"
        path.write_text(yaml.safe_dump(document))
        ended = promtool("test", "rules", path)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def alert(name: str, /, **labels: str) -> dict[str, str]:
    """An alert that is on, with those of its labels that the drill tells."""
    return {"alertname": name, **labels}


def _written(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
