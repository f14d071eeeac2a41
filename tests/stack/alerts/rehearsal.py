"""Series as nodes would show them, and what Prometheus' own rule tester makes of them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from collectors.metrics.metric import Metric
from dashboards.render import CHECKOUT, RULES
from tests.dashboards.alert_links import ALERTS, links_of
from tests.dashboards.promtool import promtool
from tests.support.grafana_expressions import select

SCRAPED = {"job": "observatory", "instance": "node1:9464"}

Found = Mapping[str, float]
"""Values by their series, as PromQL writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Series scraped each minute, and a folder for the tester's files."""

    series: Mapping[str, str]
    folder: Path

    def gives(self, expression: str, expected: Found, *, at_minutes: int) -> None:
        """Ask whether an expression has these series, and no others, then. No rule is evaluated."""
        self._check({"promql_expr_test": [_expression_test(expression, expected, at_minutes)]}, rule_files=[])

    def gives_by_rules(self, expression: str, expected: Found, *, at_minutes: int) -> None:
        """Ask whether an expression on what our rules have recorded has these series, and no others, then."""
        self._check({"promql_expr_test": [_expression_test(expression, expected, at_minutes)]})

    def fires(self, *expected: tuple[str, str], at_minutes: int) -> None:
        """Ask whether these alerts, and no others, are on then: each by its name and its GPU, or ""."""
        found = {
            f'{{alertname="{name}"{f", gpu={chr(34)}{gpu}{chr(34)}" if gpu else ""}}}': 1.0 for name, gpu in expected
        }
        self.gives_by_rules(
            'count by (alertname, gpu) (count by (alertname, gpu, instance) (ALERTS{alertstate="firing"}))',
            found,
            at_minutes=at_minutes,
        )

    def is_on(self, alert: str, *, at_minutes: int) -> bool:
        """Whether one alert of this name is on then."""
        asked = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
        test = {"promql_expr_test": [_expression_test(asked, {"{}": 1.0}, at_minutes)]}
        return self._run(test, [str(CHECKOUT / RULES)]).returncode == 0

    def says(self, alert: str, annotations: Mapping[str, str], *, at_minutes: int, **labels: str) -> None:
        """Ask whether one alert is on then, with these labels, tells people this, and leads them to its pages."""
        labels = {**SCRAPED, "component": ALERTS[alert].labels.component, **labels}
        told = {**annotations, **links_of(ALERTS[alert], labels)}
        expected = [{"exp_labels": labels, "exp_annotations": told}]
        self._check({"alert_rule_test": [{"alertname": alert, "eval_time": f"{at_minutes}m", "exp_alerts": expected}]})

    def _check(self, test: dict[str, Any], rule_files: Sequence[str] = (str(CHECKOUT / RULES),)) -> None:
        ended = self._run(test, rule_files)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    def _run(self, test: dict[str, Any], rule_files: Sequence[str]) -> subprocess.CompletedProcess[str]:
        shown = [{"series": name, "values": values} for name, values in self.series.items()]
        document = {
            "rule_files": list(rule_files),
            "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": shown, **test}],
        }
        path = self.folder / "rehearsal.yaml"
        path.write_text(yaml.safe_dump(document))
        return promtool("test", "rules", path)


def shown(metric: Metric, values: str, **labels: str) -> dict[str, str]:
    """One series of a node, its values in the tester's notation."""
    return {select(metric, **{**SCRAPED, **labels}): values}


def _expression_test(expression: str, expected: Found, at_minutes: int) -> dict[str, Any]:
    samples = [{"labels": series, "value": value} for series, value in expected.items()]
    return {"expr": expression, "eval_time": f"{at_minutes}m", "exp_samples": samples}
