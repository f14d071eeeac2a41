"""PromQL of one Metric's series, so that no other file spells a metric or a label wrongly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from collectors.metric import Metric, Scope
from dashboards.combining import where

OWNER_LABELS: dict[Scope, tuple[str, ...]] = {
    "rank": ("rank", "slot"),
    "node": (),
    "run": ("strategy", "ranks", "device", "precision", "series", "bound"),
}
"""Labels that the exporter adds to say what a value belongs to."""

SCRAPE_LABELS = ("job", "instance")
"""Labels that Prometheus adds to say where it read a value."""

_OVERLAP_MINUTES = 20
"""More than the time from one evaluation of any rule to the next."""

_VARIABLE = re.compile(r"\$\{?(?!__)\w+\}?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a label is, where that is not one text; `one_of` and `none_of` make it."""

    operator: str
    pattern: str


def one_of(*values: str) -> Match:
    """Any of these values."""
    return Match(operator="=~", pattern="|".join(map(re.escape, values)))


def none_of(*values: str) -> Match:
    """Any value but these."""
    return Match(operator="!~", pattern="|".join(map(re.escape, values)))


def select(metric: Metric, **labels: str | Match) -> str:
    """The metric's series with these labels; a value that is a dashboard's variable (`$strategy`) matches its choices.

    Raises:
        ValueError: the metric has no such label.
    """
    known = (*OWNER_LABELS[metric.scope], *metric.labels, *SCRAPE_LABELS)
    unknown = sorted(set(labels) - set(known))
    if unknown:
        raise ValueError(f"{metric.name} has no label {', '.join(unknown)}; its labels are: {', '.join(known)}")
    matchers = ",".join(f"{name}{_matcher(value)}" for name, value in labels.items())
    return f"{metric.name}{{{matchers}}}" if matchers else metric.name


def rate(metric: Metric, over_minutes: int | None = None, /, **labels: str | Match) -> str:
    """How fast a counter grows, per second.

    over_minutes: the window; None for one that Grafana fits to the scrape interval.

    Raises:
        ValueError: the metric is no counter, or has no such label.
    """
    return f"rate({_counted(metric, **labels)}[{_window(over_minutes)}])"


def has_grown(metric: Metric, *, over_minutes: int, **labels: str | Match) -> str:
    """A counter's growth over the last minutes, where there is any.

    Raises:
        ValueError: the metric is no counter, or has no such label.
    """
    return f"increase({_counted(metric, **labels)}[{_window(over_minutes)}]) > 0"


def average(metric: Metric, over_minutes: int | None = None, /, **labels: str | Match) -> str:
    """A gauge's mean over its scrapes; of one that is 0 or 1, the share of scrapes at which it was 1.

    over_minutes: the window; None for one that Grafana fits to the scrape interval.
    """
    return f"avg_over_time({select(metric, **labels)}[{_window(over_minutes)}])"


def seen(metric: Metric, *, over_hours: int, **labels: str | Match) -> str:
    """The metric's series of the last hours, those that are there no more among them, each with its last value."""
    return f"last_over_time({select(metric, **labels)}[{over_hours}h])"


def unanswered() -> str:
    """Targets of Prometheus that do not answer its scrape."""
    return "up == 0"


def choices(metric: Metric, label: str, **labels: str | Match) -> str:
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


def remembered(record: str) -> str:
    """What a rule recorded last within the hour: it may be evaluated more seldom than Prometheus looks back."""
    return f"last_over_time({record}[1h])"


def quantile_over_days(record: str, quantile: float, days: int) -> str:
    """A quantile of what a rule recorded on the days before the last one, each evaluation counting once.

    The last day is left out: what is judged is no part of what it is judged by.
    """
    return f"quantile_over_time({quantile:g}, {record}[{days}d] offset 1d)"


def days_with_news(record: str, completion: str, days: int, *, on: Sequence[str]) -> str:
    """On how many of the days before the last one a rule recorded a series and a run of it was completed.

    Each day counts once, however many runs it had; the first completion that is seen is no change and does not count.
    record, completion: names of rules, the latter's values are times. on: the labels by which they belong together.
    """
    # A change is seen between two values: a day begins with the last ones of the day before.
    news = f"changes({completion}[{24 * 60 + _OVERLAP_MINUTES}m]) > 0"
    return f"count_over_time(({where(remembered(record), news, on=on)})[{days}d:1d] offset 1d)"


def constant(value: float) -> str:
    """A number as a series without labels; a recording rule gives it some."""
    return f"vector({value:g})"


def age_below(timestamp: Metric, hours: int, **labels: str | Match) -> str:
    """How many seconds ago the metric's series, a time, lies, where that is less than so many hours."""
    return younger(select(timestamp, **labels), hours)


def younger(timestamp: str, hours: int) -> str:
    """How many seconds ago an expression, a time, lies, where that is less than so many hours."""
    return f"time() - {timestamp} < {hours * 3600}"


def past(timestamp: Metric) -> str:
    """The metric's series, a time, where it has come: a clock that is ahead counts only then."""
    return f"{select(timestamp)} <= time()"


def _counted(metric: Metric, **labels: str | Match) -> str:
    if metric.kind != "counter":
        raise ValueError(f"{metric.name} is a {metric.kind}; only a counter has a rate")
    return select(metric, **labels)


def _window(minutes: int | None) -> str:
    return "$__rate_interval" if minutes is None else f"{minutes}m"


def _matcher(value: str | Match) -> str:
    if isinstance(value, Match):
        return f'{value.operator}"{_escape(value.pattern)}"'
    return f'{"=~" if value.startswith("$") else "="}"{_escape(value)}"'


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
