"""A dashboard's page as Grafana asks it of Prometheus: what its variables list, and what each target answers.

Source: Grafana's documentation of template variables, `$__rate_interval` and `allValue`.
"""

from __future__ import annotations

import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.render import CHECKOUT, RENDERED
from tests.dashboards import grafana_lint
from tests.support.servers import PrometheusServer

_SPECIAL = re.compile(r"([\\^$*+?.()|\[\]{}])")
_LISTED = re.compile(r"label_values\((.*),\s*(\w+)\)", re.DOTALL)
_RANKED = re.compile(r"query_result\((.*)\)", re.DOTALL)
_METRIC = re.compile(r"\bobservatory_\w+")


MAY_BE_EMPTY = {
    "NVLink errors in this time range": "no link has one",
    "PCIe link errors in this time range": "no link has one",
    "Parts of the bubble of the selected series": "it is no pipeline",
    "Late rank of a watched run": "it is no watched run",
    "Long steps of a watched run": "it is no watched run",
    "Phases of each rank of a watched run": "it is no watched run",
    "Below the accepted level": "no rule records the level",
    "Alerts: critical": "no rules of ours are loaded, so that nobody knows",
    "Alerts: warnings": "no rules of ours are loaded, so that nobody knows",
}
"""Panels that show nothing though their metrics are there, and why that is right."""


def rendered(name: str) -> dict[str, Any]:
    """A dashboard as it is rendered for Grafana."""
    found: dict[str, Any] = json.loads((CHECKOUT / RENDERED / f"{name}.json").read_text())
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a target of a panel answered. samples: how many Prometheus read for it. elapsed_s: until it was here."""

    panel: str
    expression: str
    series: list[dict[str, str]]
    samples: int
    elapsed_s: float

    @property
    def metrics(self) -> frozenset[str]:
        """The metrics that it asks for."""
        return frozenset(_METRIC.findall(re.sub(r"\{[^}]*\}", "", self.expression)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A dashboard, looked at until a moment. chosen: of variables, one value each; all of the others.

    back_s: how far the page looks back. scrape_s: what the data source was told of Prometheus. points: most points of a
    line; Grafana asks for one for each pixel.
    """

    dashboard: Mapping[str, Any]
    prometheus: PrometheusServer
    end_s: float
    back_s: int
    scrape_s: int
    chosen: Mapping[str, str]
    points: int = 60

    def answers(self) -> list[Answer]:
        """Ask each target of each panel, those within rows included."""
        values = self.variables()
        return [
            self._answer(panel, target, values)
            for panel in grafana_lint.all_panels(dict(self.dashboard))
            for target in panel["targets"]
        ]

    def variables(self) -> dict[str, str]:
        """What each variable stands for in an expression: a choice, the first of the list, or all."""
        values: dict[str, str] = {}
        for variable in self.dashboard["templating"]["list"]:
            if variable["type"] == "query":
                values[variable["name"]] = self._value(variable, values)
        return values

    def shown(self) -> frozenset[str]:
        """The metrics that there are within the page's time."""
        # The list of names is that of whole blocks of hours.
        every = f'count by (__name__) (last_over_time({{__name__=~"observatory_.+"}}[{self.back_s}s]))'
        return frozenset(
            one["metric"]["__name__"] for one in self._ask("query", query=every, time=self.end_s)["result"]
        )

    def empty(self) -> set[str]:
        """The panels that show nothing though all metrics of one of their targets are there."""
        answers, shown = self.answers(), self.shown()
        due = {answer.panel for answer in answers if answer.metrics and answer.metrics <= shown}
        filled = {answer.panel for answer in answers if answer.series}
        return due - filled - MAY_BE_EMPTY.keys()

    @property
    def _start_s(self) -> float:
        return self.end_s - self.back_s

    def _value(self, variable: Mapping[str, Any], known: Mapping[str, str]) -> str:
        name = variable["name"]
        if name in self.chosen:
            return _escaped(self.chosen[name])
        if variable.get("includeAll"):
            return str(variable["allValue"])
        asked = variable["query"] if isinstance(variable["query"], str) else variable["query"]["query"]
        if (ranked := _RANKED.fullmatch(asked)) is not None:
            first = self._ask("query", query=self._expanded(ranked[1], known, self._step_s), time=self.end_s)["result"]
            text = ",".join(f'{name}="{value}"' for name, value in first[0]["metric"].items()) if first else ""
            shown = re.search(variable["regex"].strip("/"), text)
            return _escaped(shown[1]) if shown else ""
        listed = _LISTED.fullmatch(asked)
        assert listed, asked
        selector, label = listed.groups()
        series = self._get(
            "series", **{"match[]": self._expanded(selector, known, self._step_s)}, start=self._start_s, end=self.end_s
        )
        options = sorted({one[label] for one in series if label in one}, reverse=variable["sort"] in (2, 4, 6, 8))
        return _escaped(options[0]) if options else ""

    def drawn(self, panel: Mapping[str, Any], target: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
        """What a target answers, with what a drawing needs to know of it. Moments are multiples of the step."""
        step_s, _, found = self._asked(panel, target, values)
        return {
            "refId": target["refId"],
            "legend": target.get("legendFormat", ""),
            "format": target["format"],
            "start_s": self._start_s // step_s * step_s,
            "end_s": self.end_s // step_s * step_s,
            "step_s": step_s,
            "result": found["result"],
        }

    def _answer(self, panel: Mapping[str, Any], target: Mapping[str, Any], values: Mapping[str, str]) -> Answer:
        begun_s = time.perf_counter()
        _, expression, found = self._asked(panel, target, values)
        return Answer(
            panel=panel["title"],
            expression=expression,
            series=[one["metric"] for one in found["result"]],
            samples=found["stats"]["samples"]["totalQueryableSamples"],
            elapsed_s=time.perf_counter() - begun_s,
        )

    def _asked(
        self, panel: Mapping[str, Any], target: Mapping[str, Any], values: Mapping[str, str]
    ) -> tuple[int, str, dict[str, Any]]:
        step_s = max(self._step_s, int(panel.get("interval", "0s").removesuffix("s")))
        expression = self._expanded(target["expr"], values, step_s)
        if target.get("instant"):
            return step_s, expression, self._ask("query", query=expression, time=self.end_s)
        start_s, end_s = (at_s // step_s * step_s for at_s in (self._start_s, self.end_s))
        return step_s, expression, self._ask("query_range", query=expression, start=start_s, end=end_s, step=step_s)

    @property
    def _step_s(self) -> int:
        return max(self.scrape_s, self.back_s // self.points)

    def _expanded(self, expression: str, values: Mapping[str, str], step_s: int) -> str:
        window_s = max(step_s + self.scrape_s, 4 * self.scrape_s)
        expression = expression.replace("${__interval_ms}", str(1000 * step_s))
        if self.scrape_s < 15:  # Pages choose at moments 15 s apart, as scrapes are; here these are closer.
            expression = expression.replace(":15s]", f":{self.scrape_s}s]")
        for name, time_s in (("rate_interval", window_s), ("interval", step_s), ("range", self.back_s)):
            expression = expression.replace(f"$__{name}", f"{time_s}s")
        # $1 is PromQL's, a group of a pattern.
        return re.sub(r"\$\{?([a-zA-Z_]\w*)\}?", lambda found: values[found[1]], expression)

    def _ask(self, path: str, **fields: object) -> dict[str, Any]:
        found: dict[str, Any] = self._get(path, **fields, stats="all")
        return found

    def _get(self, path: str, **fields: object) -> Any:
        url = f"{self.prometheus.url}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"Prometheus refuses {fields.get('query')}: {error.read().decode()}") from None


def _escaped(text: str) -> str:
    """A value as Grafana puts it into a regular expression within a text of PromQL."""
    return _SPECIAL.sub(r"\\\1", text).replace("\\", "\\\\")
