"""PromQL made from Metrics, so that no other file spells a metric or a label wrongly."""

from __future__ import annotations

import re
from collections.abc import Sequence

from collectors.metric import Metric, Scope

OWNER_LABELS: dict[Scope, tuple[str, ...]] = {
    "rank": ("rank", "slot"),
    "node": (),
    "run": ("strategy", "ranks", "device", "precision", "series", "bound"),
}
"""Labels that the exporter adds to say what a value belongs to."""

SCRAPE_LABELS = ("job", "instance")
"""Labels that Prometheus adds to say where it read a value."""

_VARIABLE = re.compile(r"\$\{?(?!__)\w+\}?")


def select(metric: Metric, **labels: str) -> str:
    """The metric's series with these labels; a value that is a dashboard's variable (`$strategy`) matches its choices.

    Raises:
        ValueError: the metric has no such label.
    """
    known = (*OWNER_LABELS[metric.scope], *metric.labels, *SCRAPE_LABELS)
    unknown = sorted(set(labels) - set(known))
    if unknown:
        raise ValueError(f"{metric.name} has no label {', '.join(unknown)}; its labels are: {', '.join(known)}")
    matchers = ",".join(
        f'{name}{"=~" if value.startswith("$") else "="}"{_escape(value)}"' for name, value in labels.items()
    )
    return f"{metric.name}{{{matchers}}}" if matchers else metric.name


def rate(metric: Metric, **labels: str) -> str:
    """How fast a counter grows, per second, over a window that Grafana fits to the scrape interval.

    Raises:
        ValueError: the metric is no counter, or has no such label.
    """
    if metric.kind != "counter":
        raise ValueError(f"{metric.name} is a {metric.kind}; only a counter has a rate")
    return f"rate({select(metric, **labels)}[$__rate_interval])"


def divide(dividend: str, divisor: str) -> str:
    """One expression by another, series of equal labels by each other."""
    return f"{dividend} / {divisor}"


def choices(metric: Metric, label: str, **labels: str) -> str:
    """What a dashboard's variable may be: the values of a label over the metric's series."""
    return f"label_values({select(metric, **labels)}, {label})"


def legend(metric: Metric, *extra: str) -> str:
    """How Grafana calls the metric's series: the labels that tell them apart, then the metric's own."""
    owner = {
        "rank": "slot {{slot}} rank {{rank}}",
        "node": "{{instance}}",
        "run": "{{strategy}} on {{ranks}} ranks ({{series}})",
    }[metric.scope]
    return " ".join((owner, *(f"{label} {{{{{label}}}}}" for label in metric.labels), *extra))


def with_every_choice(expression: str) -> str:
    """The expression as Grafana sends it with "All" chosen everywhere and a window of one minute."""
    return _VARIABLE.sub(".*", expression.replace("$__rate_interval", "1m"))


def recorded(metric: Metric, operation: str) -> str:
    """The name under which a rule records what it computes from a metric."""
    return f"series:{metric.name}:{operation}"


def bound(metric: Metric, which: str) -> str:
    """One bound of a run's result, without the label that says so, so that bounds compare with each other."""
    return f"max without (bound) ({select(metric, bound=which)})"


def quantile_over_days(expression: str, quantile: float, days: int) -> str:
    """A quantile over the days before the last one, each hour counting once.

    The last day is left out: what is judged is no part of what it is judged by.
    """
    return f"quantile_over_time({quantile:g}, {_hours_before_today(expression, days)})"


def days_with_news(expression: str, completion: Metric, days: int, *, on: Sequence[str]) -> str:
    """On how many of the days before the last one the expression had a series and a run of it was completed.

    Each day counts once, however many runs it had; the first completion that is seen is no change and does not count.
    on: the labels by which the expression and the completion belong together.
    """
    news = f"changes({select(completion)}[1d]) > 0"
    return f"count_over_time(({where(expression, news, on=on)})[{days}d:1d] offset 1d)"


def constant(value: float) -> str:
    """A number as a series without labels; a recording rule gives it some."""
    return f"vector({value:g})"


def age_below(timestamp: Metric, hours: int) -> str:
    """The metric's series, a time, where it lies less than so many hours ago."""
    return f"time() - {select(timestamp)} < {hours * 3600}"


def below(one: str, other: str, *, on: Sequence[str] | None = None) -> str:
    """The first where it is less than the second; on names the labels by which many of the first have one second."""
    matching = f" on ({', '.join(on)}) group_left ()" if on else ""
    return f"{one} <{matching} {other}"


def at_least(expression: str, number: float) -> str:
    """The expression where it is so much or more."""
    return f"{expression} >= {number:g}"


def less(expression: str, other: str) -> str:
    """The expression less another."""
    return f"({expression} - {other})"


def times(factor: float, expression: str) -> str:
    """So many times the expression."""
    return f"{factor:g} * {expression}"


def where(expression: str, *conditions: str, on: Sequence[str] | None = None) -> str:
    """The expression where each condition has a series too; on names the labels that decide."""
    matching = f" on ({', '.join(on)})" if on else ""
    return "".join((expression, *(f"\nand{matching} ({condition})" for condition in conditions)))


def either(*expressions: str) -> str:
    """The series of all expressions; one that several have counts once, with the first one's value."""
    return "\nor\n".join(f"(\n{expression}\n)" for expression in expressions)


def _hours_before_today(expression: str, days: int) -> str:
    return f"({expression})[{days}d:1h] offset 1d"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
