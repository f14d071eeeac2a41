"""PromQL as Grafana sends it, and selectors, for tests that query Prometheus without Grafana."""

from __future__ import annotations

import re

from collectors.metrics.metric import Metric
from dashboards.expressions import labels_of

_VARIABLE = re.compile(r"\$\{?(?!__)(\w+)\}?")
_WINDOWS = {"$__rate_interval": "1m", "${__interval_ms}": "15000", "$__interval": "15s", "$__range": "1h"}


def select(metric: Metric, **labels: str) -> str:
    """Return the selector of the metric's series that have these labels."""
    assert set(labels) <= set(labels_of(metric)), metric.name
    matchers = ",".join(f'{label}="{value}"' for label, value in labels.items())  # OpenMetrics takes no space.
    return f"{metric.name}{{{matchers}}}" if labels else metric.name


def with_every_choice(expression: str) -> str:
    """Return the expression as Grafana sends it with "All" chosen everywhere: an hour in steps of 15 s."""
    return with_choices(expression)


def with_choices(expression: str, **chosen: str) -> str:
    """Return the expression as Grafana sends it with these values of variables, and "All" for the others."""
    for name, window in _WINDOWS.items():
        expression = expression.replace(name, window)
    return _VARIABLE.sub(lambda match: _escaped(chosen[match[1]]) if match[1] in chosen else ".*", expression)


def _escaped(value: str) -> str:
    """Return a text as a regular expression within a quoted string."""
    return re.escape(value).replace("\\", "\\\\")


_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_NO_NAMES = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
"""Selectors, ranges, and lists of labels."""
_NAME = re.compile(r"(?<![\w:.$])[a-zA-Z_:][\w:]*(?![\w:]|\s*\()")
_WORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "group_left", "group_right", "inf", "NaN"}


def metric_names(expression: str) -> set[str]:
    """Return the metrics and records of a PromQL expression: names other than functions, labels and keywords."""
    return set(_NAME.findall(_NO_NAMES.sub("", _QUOTED.sub('""', expression)))) - _WORDS
