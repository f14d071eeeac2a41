"""Checks PromQL against the catalogue: each metric and each label that an expression names must exist.

Checks only names; the tests use Prometheus to check whether expressions are valid.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from collectors.metrics.metric import OVER_RANKS, Metric, Scope
from collectors.metrics.registry import METRICS, SHOWN

OWNER_LABELS: dict[Scope, tuple[str, ...]] = {
    "rank": ("rank", "slot"),
    "node": (),
    "run": ("strategy", "ranks", "device", "precision", "series"),
}
"""Labels that the exporter adds to identify the owner of a value."""
TARGET_LABELS = ("job", "instance", "cluster")
"""Labels that Prometheus adds to identify the target of a value."""
OF_PROMETHEUS = {"ALERTS", "ALERTS_FOR_STATE", "up"}
"""Series that Prometheus makes itself."""
OF_ALERTS = {"alertname", "alertstate", "severity", "component"}


class BadExpression(ValueError):
    """An expression names a metric or a label that does not exist; the message names it, and a similar existing one."""


_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_LISTS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_RANGES = re.compile(r"\[[^\]]*\]|\boffset\s+\S+|\$\{?\w+\}?")
_SELECTOR = re.compile(r"([a-zA-Z_][\w:]*)?\s*\{([^{}]*)\}")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_NAMED = re.compile(r'__name__\s*=~?\s*"([^"]*)"')
_NAME = re.compile(r"(?<![\w:.])[a-zA-Z_][\w:]*(?![\w:]|\s*\()")
_WORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right"}
_NUMBERS = {"inf", "nan"}


def check(expression: str) -> None:
    """Check an expression, or the query of a variable.

    Raises:
        BadExpression: a metric or a label is unknown.
    """
    expression = re.sub(r"^label_values\((.*),\s*(\w+)\)$", r"group by (\2) (\1)", expression.strip(), flags=re.DOTALL)
    new_labels = {text for text in _QUOTED.findall(expression) if re.fullmatch(r"[a-z_]+", text)}
    plain = _QUOTED.sub('""', expression)
    for name, matchers in _SELECTOR.findall(plain):
        _check_labels(name, [label for label in _MATCHER.findall(matchers) if label != "__name__"])
    for labels in _LISTS.findall(plain):
        for label in re.findall(r"\w+", labels):
            if label not in _labels() and label not in new_labels:
                raise BadExpression(f"{label} is not a label of any metric{_instead(label, _labels())}")
    named = [name for names in _NAMED.findall(expression) for name in names.split("|")]
    for name in (*metrics_of(expression), *named):
        _metric(name)


def metrics_of(expression: str) -> list[str]:
    """Return the metrics and recorded series that an expression reads, in the expression's order."""
    plain = re.sub(r"#.*", "", _QUOTED.sub('""', expression))
    plain = re.sub(r"\{[^{}]*\}", "", _RANGES.sub("", _LISTS.sub("", plain)))
    names = dict.fromkeys(_NAME.findall(plain))
    return [name for name in names if name not in _WORDS and name.lower() not in _NUMBERS]


def definitions(expressions: Sequence[str], metrics: Sequence[str] | None = None) -> list[str]:
    """Return the definition of each metric that these expressions show.

    metrics: the metrics to define; None for all that are read, except infos that are joined with others, and statistics
    over ranks.

    Raises:
        BadExpression: a metric is unknown.
    """
    if metrics is None:
        read = [name.removesuffix("_bucket") for text in expressions for name in metrics_of(text)]
        of_ours = [name for name in dict.fromkeys(read) if name in _catalogue() and name not in _over_ranks()]
        metrics = [name for name in of_ours if not name.endswith("_info")] or of_ours
    shown = [(name, _metric(name)) for name in metrics]
    return [f"`{name}`: {metric.help}" for name, metric in shown if metric is not None]


@functools.cache
def _catalogue() -> dict[str, Metric]:
    return {metric.name: metric for metric in SHOWN}


@functools.cache
def _over_ranks() -> frozenset[str]:
    """Return the statistics over ranks, which the definitions of the ranks' own metrics cover."""
    return frozenset(
        form.over_ranks(word).name
        for metric in METRICS
        if metric.is_aggregated
        for _, form in metric.forms()
        for word in OVER_RANKS[metric.kind]
    )


@functools.cache
def _labels() -> frozenset[str]:
    """Return every label that one of our series, or an alert, may have."""
    return frozenset({"le", *TARGET_LABELS, *OF_ALERTS}.union(*map(labels_of, SHOWN)))


def labels_of(metric: Metric) -> tuple[str, ...]:
    """Return the labels that a metric's series have in Prometheus."""
    return (*OWNER_LABELS[metric.scope], *metric.labels, *TARGET_LABELS)


def _metric(name: str) -> Metric | None:
    """Return a metric of the catalogue; None for a series that rules record, or that Prometheus makes itself."""
    if name in OF_PROMETHEUS or name.startswith("series:"):
        return None
    metric = _catalogue().get(name.removesuffix("_bucket"))
    if metric is None or (metric.kind != "histogram" and name not in _catalogue()):
        raise BadExpression(f"{name} is not a metric{_instead(name, _catalogue())} (docs/metrics.md lists all)")
    return metric


def _check_labels(name: str, labels: Sequence[str]) -> None:
    metric = _metric(name) if name else None
    known = _labels() if metric is None else {*labels_of(metric), *(["le"] if metric.kind == "histogram" else [])}
    if name in _over_ranks():  # It has no label rank, which choosing all ranks matches, but choosing one does not.
        known = {*known, "rank"}
    for label in labels:
        if label not in known:
            raise BadExpression(f"{name or 'a series'} has no label {label}{_instead(label, known)}")


def _instead(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, sorted(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
