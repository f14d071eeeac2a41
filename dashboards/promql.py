"""Builds PromQL from metrics and expressions, so that no other file spells a metric or a label wrongly."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collectors.metrics.agent import RUN_INFO
from collectors.metrics.gpu import RANK_GPU
from collectors.metrics.metric import Metric, Scope
from dashboards.model import Severity

# Combining expressions, whatever their metrics. on: the labels by which series of two expressions belong together.


def divide(dividend: str, divisor: str, *, on: Sequence[str] | None = None) -> str:
    """Divide one expression by another, series of equal labels by each other.

    on: the labels by which many dividends have one divisor; the quotients keep the dividends' labels.
    """
    return f"{dividend} /{_on(on)}{' group_left ()' if on else ''} {divisor}"


def less_one(quotient: str) -> str:
    """Return by which share a quotient is more than 1."""
    return f"({quotient} - 1)"


def positive(expression: str) -> str:
    """Keep the expression where it is more than zero, so that it can be a divisor."""
    return f"({expression} > 0)"


def total(expression: str, *, by: Sequence[str]) -> str:
    """Sum the series that have these labels in common; a sum has no other labels."""
    return f"sum by ({_listed(by)}) ({expression})"


def less(expression: str, other: str) -> str:
    """Subtract another expression from one."""
    return f"({expression} - {other})"


def plus(expression: str, other: str) -> str:
    """Add two expressions, series of equal labels to each other."""
    return f"({expression} + {other})"


def times(factor: float, expression: str) -> str:
    """Multiply the expression by the factor."""
    return f"{factor:g} * {expression}"


def product(one: str, other: str, *, on: Sequence[str]) -> str:
    """Multiply two expressions. on: the labels by which many of the first have one second; the first's labels stay."""
    return f"{one} *{_on(on)} group_left () {other}"


def below(one: str, other: str, *, on: Sequence[str] | None = None) -> str:
    """Keep the first where it is less than the second. on: the labels by which many of the first have one second."""
    return f"{one} <{_on(on)}{' group_left ()' if on else ''} {other}"


def at_least(expression: str, number: float) -> str:
    """Keep the expression where it is the number or more."""
    return f"{expression} >= {number:g}"


def above(expression: str, number: float) -> str:
    """Keep the expression where it is more than the number."""
    return f"({expression}) > {number:g}"


def exceeds(one: str, other: str, *, on: Sequence[str]) -> str:
    """Keep the first where it is more than the second. on: the labels by which many of the first have one second."""
    return f"{one} >{_on(on)} group_left () {other}"


def equal(expression: str, number: float) -> str:
    """Keep the expression where it is the number."""
    return f"{expression} == {number:g}"


def same(one: str, other: str, *, on: Sequence[str]) -> str:
    """Keep the first where it equals the second. on: the labels by which many of the first have one second."""
    return f"{one} =={_on(on)} group_left () {other}"


def where(expression: str, *conditions: str, on: Sequence[str] | None = None) -> str:
    """Keep the expression where each condition has a series, too."""
    return "".join((expression, *(f"\nand{_on(on)} ({condition})" for condition in conditions)))


def unless(expression: str, other: str, *, on: Sequence[str]) -> str:
    """Keep the expression where the other has no series."""
    return f"{expression}\nunless{_on(on)} ({other})"


def nothing_of(expression: str) -> str:
    """Return one series, whose value is no number, where the expression has no series."""
    return f"vector(NaN) unless on () ({expression})"


def either(*expressions: str) -> str:
    """Join the series of all expressions; one that several have counts once, with the first one's value."""
    return "\nor\n".join(f"(\n{expression}\n)" for expression in expressions)


def magnitude(expression: str) -> str:
    """Return the expression's value without its sign."""
    return f"abs({expression})"


def mean(expression: str, *, by: Sequence[str]) -> str:
    """Take the mean of the series that have these labels in common; it has no other labels."""
    return f"avg by ({_listed(by)}) ({expression})"


def middle(expression: str, *, by: Sequence[str]) -> str:
    """Take the median of the series that have these labels in common; it has no other labels."""
    return f"quantile by ({_listed(by)}) (0.5, {expression})"


def smallest(expression: str, *, by: Sequence[str]) -> str:
    """Take the least of the series that have these labels in common; it has no other labels."""
    return f"min by ({_listed(by)}) ({expression})"


def beneath(expression: str, number: float) -> str:
    """Keep the expression where it is less than the number."""
    return f"({expression}) < {number:g}"


def one_each(expression: str, *, by: Sequence[str]) -> str:
    """Return 1 for all series that have these labels in common, whatever their values; it has no other labels."""
    return f"group by ({_listed(by)}) ({expression})"


def largest(expression: str, *, by: Sequence[str]) -> str:
    """Take the largest of the series that have these labels in common; it has no other labels."""
    return f"max by ({_listed(by)}) ({expression})"


def bearing(expression: str, info: str, labels: Sequence[str], *, on: Sequence[str], called: str, between: str) -> str:
    """Add labels of an info series to the expression's series, joined into one label.

    A series to which no info belongs, or several, stays as it is: which one is meant is unknown.
    labels: those to add. called: the new label. between: what stands between its parts.
    """
    alone = f"count by ({_listed(on)}) ({info}) == 1"
    named = (
        f"({expression}) * on ({_listed(on)}) group_left ({_listed(labels)}) ({info} and on ({_listed(on)}) {alone})"
    )
    return either(joined(named, labels, called=called, between=between), unless(f"({expression})", alone, on=on))


def cut(expression: str, label: str, *, to: int, called: str) -> str:
    """Add to the expression's series the first characters of a label, as a new one; none where it has fewer."""
    return f'label_replace({expression}, "{called}", "$1", "{label}", "(.{{{to}}}).*")'


def joined(expression: str, labels: Sequence[str], *, called: str, between: str) -> str:
    """Add labels of the expression's series to them, joined into one. between: what stands between its parts."""
    parts = ", ".join(f'"{label}"' for label in labels)
    return f'label_join({expression}, "{called}", "{between}", {parts})'


def _on(labels: Sequence[str] | None) -> str:
    return f" on ({_listed(labels)})" if labels else ""


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels)


# Expressions of one metric, and of what recording rules keep.

OWNER_LABELS: dict[Scope, tuple[str, ...]] = {
    "rank": ("rank", "slot"),
    "node": (),
    "run": ("strategy", "ranks", "device", "precision", "series"),
}
"""Labels that the exporter adds to say what a value belongs to."""

SCRAPE_LABELS = ("job", "instance")
"""Labels that Prometheus adds to say where it read a value."""

_OVERLAP_MINUTES = 20
"""More than the time from one evaluation of any rule to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A condition on a label other than equality with one text; made by `one_of`, `none_of` and `if_any`."""

    operator: str
    pattern: str


def one_of(*values: str) -> Match:
    """Match any of these values."""
    return Match(operator="=~", pattern="|".join(map(re.escape, values)))


def none_of(*values: str) -> Match:
    """Match any value but these."""
    return Match(operator="!~", pattern="|".join(map(re.escape, values)))


def if_any(value: str) -> Match:
    """Match what a variable chooses (`$strategy`), and what has no such label."""
    return Match(operator="=~", pattern=f"|{value}")


def select(metric: Metric, **labels: str | Match) -> str:
    """Select the metric's series with these labels; a dashboard's variable (`$strategy`) matches what is chosen.

    Raises:
        ValueError: the metric has no such label.
    """
    known = (*OWNER_LABELS[metric.scope], *metric.labels, *SCRAPE_LABELS, "cluster")
    unknown = sorted(set(labels) - set(known))
    if unknown:
        raise ValueError(f"{metric.name} has no label {', '.join(unknown)}; its labels are: {', '.join(known)}")
    return f"{metric.name}{{{_matchers(labels)}}}" if labels else metric.name


def rate(metric: Metric, over_minutes: int | None = None, /, **labels: str | Match) -> str:
    """Return a counter's growth per second.

    over_minutes: the window; None for one that Grafana fits to the scrape interval.

    Raises:
        ValueError: the metric is no counter, or has no such label.
    """
    return f"rate({_counted(metric, **labels)}[{window(over_minutes)}])"


def has_grown(metric: Metric, *, over_minutes: int, **labels: str | Match) -> str:
    """Return a counter's growth over the last minutes, where there is any.

    Raises:
        ValueError: the metric is no counter, or has no such label.
    """
    return f"increase({_counted(metric, **labels)}[{window(over_minutes)}]) > 0"


def average(metric: Metric, over_minutes: int | None = None, /, **labels: str | Match) -> str:
    """Return a gauge's mean over its scrapes; for one that is 0 or 1, the share of scrapes at which it was 1.

    over_minutes: the window; None for one that Grafana fits to the scrape interval.
    """
    return f"avg_over_time({select(metric, **labels)}[{window(over_minutes)}])"


def peak(metric: Metric, over_minutes: int, /, **labels: str | Match) -> str:
    """Return a gauge's largest value over the last minutes."""
    return f"max_over_time({select(metric, **labels)}[{over_minutes}m])"


def least(metric: Metric, over_minutes: int, /, **labels: str | Match) -> str:
    """Return a gauge's least value over the last minutes."""
    return f"min_over_time({select(metric, **labels)}[{over_minutes}m])"


def growth(metric: Metric, over_minutes: int, /, **labels: str | Match) -> str:
    """Return a counter's growth over the last minutes.

    Raises:
        ValueError: the metric is no counter, or has no such label.
    """
    return f"increase({_counted(metric, **labels)}[{over_minutes}m])"


def seen(metric: Metric, *, over_hours: int, **labels: str | Match) -> str:
    """Return the metric's series of the last hours, each with its last value, including those that are gone."""
    return f"last_over_time({select(metric, **labels)}[{over_hours}h])"


def unanswered() -> str:
    """Return the targets of Prometheus that do not answer its scrape."""
    return "up == 0"


def choices(metric: Metric, label: str, *others: Metric, **labels: str | Match) -> str:
    """Return the choices of a dashboard's variable: the values of a label over the series of one metric or several."""
    selected = [select(one, **labels) for one in (metric, *others)]
    if others:
        names = one_of(metric.name, *(other.name for other in others))
        selected = [f"{{{_matchers({'__name__': names, **labels})}}}"]
    return f"label_values({selected[0]}, {label})"


def ranked_choices(expression: str) -> str:
    """Return the choices of a dashboard's variable: the expression's series, that with the largest value first."""
    return f"query_result(sort_desc({expression}))"


def legend(metric: Metric, *extra: str) -> str:
    """Return Grafana's name for the metric's series: the labels of their owner, then the metric's own."""
    owner = {
        "rank": "slot {{slot}} rank {{rank}}",
        "node": "{{instance}}",
        "run": "{{strategy}} on {{ranks}} ranks ({{series}})",
    }[metric.scope]
    return " ".join((owner, *(f"{label} {{{{{label}}}}}" for label in metric.labels), *extra))


def recorded(metric: Metric, operation: str) -> str:
    """Return the name under which a rule records what it computes from a metric."""
    return f"series:{metric.name}:{operation}"


def recorded_with(record: str, **labels: str | Match) -> str:
    """Select what a rule recorded with these labels."""
    return f"{record}{{{_matchers(labels)}}}"


def remembered(record: str) -> str:
    """Return what a rule recorded last within the hour: it may run more seldom than Prometheus looks back."""
    return f"last_over_time({record}[1h])"


def quantile_over_days(record: str, quantile: float, days: int) -> str:
    """Return a quantile of what a rule recorded on the days before the last one, each evaluation counting once.

    The last day is left out, so that no result is judged by itself.
    """
    return f"quantile_over_time({quantile:g}, {record}[{days}d] offset 1d)"


def days_with_news(record: str, completion: str, days: int, *, on: Sequence[str]) -> str:
    """Count the days before the last one on which a rule recorded a series and a run of it was completed.

    Each day counts once, however many runs it had; the first completion that is seen is no change and does not count.
    record, completion: names of rules; the latter's values are times.
    """
    # A change needs two values, so a day begins with the last ones of the day before.
    news = f"changes({completion}[{24 * 60 + _OVERLAP_MINUTES}m]) > 0"
    return f"count_over_time(({where(remembered(record), news, on=on)})[{days}d:1d] offset 1d)"


def constant(value: float) -> str:
    """Return a number as a series without labels; a recording rule adds some."""
    return f"vector({value:g})"


def age_below(timestamp: Metric, hours: int, **labels: str | Match) -> str:
    """Return the seconds since the metric's value, a time, where they are less than these hours."""
    return younger(select(timestamp, **labels), hours)


def younger(timestamp: str, hours: int) -> str:
    """Return the seconds since an expression's value, a time, where they are less than these hours."""
    return f"{age(timestamp)} < {hours * 3600}"


def age(timestamp: str) -> str:
    """Return the seconds since an expression's value, a time."""
    return f"time() - {timestamp}"


def past(timestamp: Metric, *, over_hours: int | None = None) -> str:
    """Keep the metric's value, a time, where it is not in the future, as that of a clock that is ahead may be.

    over_hours: also count what was shown last within these hours and is gone.
    """
    shown = select(timestamp) if over_hours is None else seen(timestamp, over_hours=over_hours)
    return f"{shown} <= time()"


def _counted(metric: Metric, **labels: str | Match) -> str:
    if metric.kind != "counter":
        raise ValueError(f"{metric.name} is a {metric.kind}; only a counter has a rate")
    return select(metric, **labels)


def window(minutes: int | None) -> str:
    return "$__rate_interval" if minutes is None else f"{minutes}m"


def _matchers(labels: Mapping[str, str | Match]) -> str:
    return ",".join(f"{name}{_matcher(value)}" for name, value in labels.items())


def _matcher(value: str | Match) -> str:
    if isinstance(value, Match):
        return f'{value.operator}"{_escape(value.pattern)}"'
    return f'{"=~" if value.startswith("$") else "="}"{_escape(value)}"'


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# Who shows what.


# Runs that go on.

RUN = ("run", "strategy", "ranks", "series")
"""The labels that tell a run that goes on."""

SLOT = (*SCRAPE_LABELS, "slot")
"""The labels that the series of a run and of its ranks have in common."""


def named(expression: str, info: Metric, labels: Sequence[str], *, on: Sequence[str]) -> str:
    """Add labels of an info metric to the expression's series, whoever shows it; without one they are left out."""
    others = _listed([label for label in labels if label not in on])
    return f"({expression}) * on ({_listed(on)}) group_left ({others}) ({largest(select(info), by=labels)})"


def of_live_runs(expression: str, *, since_minutes: int) -> str:
    """Add to ranks' series which run they are of, where that run goes on and already did so many minutes ago.

    Slots are given again: without that, a window would hold steps of a run that had the slot before.
    """
    listed = _listed(SLOT)
    named = f"{RUN_INFO.name} and {RUN_INFO.name} offset {since_minutes}m"
    return f"({expression}) * on ({listed}) group_left ({_listed(RUN)}) ({named})"


PLACE = ("cluster", *SCRAPE_LABELS)
"""The labels that say where a value was read. A cluster has a name only where Prometheus was told one."""

_OF_RUN = tuple(label for label in RUN_INFO.labels if label != "slot")


def of_chosen_runs(expression: str, **chosen: str | Match) -> str:
    """Add to ranks' series which run they are of, and keep those of the runs with these labels.

    Without that, the series of a slot would be of all runs that had it, of which one is chosen.

    Raises:
        ValueError: a run's info has no such label.
    """
    on = (*PLACE, "slot")
    return f"({expression}) * on ({_listed(on)}) group_left ({_listed(_OF_RUN)}) {select(RUN_INFO, **chosen)}"


def recent_rate(metric: Metric, **labels: str | Match) -> str:
    """Return a counter's growth per second over a window that Grafana fits to the scrape interval.

    Where Grafana was not told of a longer interval that window holds one value, and five minutes are taken instead; not
    of a series that has ended, which would seem to go on for so long.

    Raises:
        ValueError: the metric is no counter, or has no such label.
    """
    counted = _counted(metric, **labels)
    return f"(rate({counted}[$__rate_interval]) or (rate({counted}[5m]) and {counted}))"


def number_of(expression: str, *, by: Sequence[str] = ()) -> str:
    """Count the series that have these labels in common."""
    return f"count{f' by ({_listed(by)})' if by else ''} ({expression})"


def how_many(expression: str, *, of: str) -> str:
    """Count the series; 0 where there are none but some of what they are picked from, and nothing where there is none.

    Without that, what nobody watches would look well.
    """
    return either(number_of(expression), times(0, number_of(of)))


def firing(severity: Severity | None = None, **labels: str | Match) -> str:
    """Return the alerts that Prometheus has now, of this severity or of all, with these labels."""
    of_severity = {} if severity is None else {"severity": severity}
    return f"ALERTS{{{_matchers({'alertstate': 'firing', **of_severity, **labels})}}}"


# GPUs and the ranks that compute on them.

GPU = (*SCRAPE_LABELS, "gpu")
"""The labels that a GPU's series and its rank's have in common."""

SLICE = (*GPU, "slice")
"""The labels that the series of a GPU's slice and of its rank have in common."""

WORK = "work"
"""The label that says, in words, which rank of which run computes there."""


def with_work(expression: str, *, on: Sequence[str] = GPU) -> str:
    """Add to the expression's series which rank computes on their GPU, or slice of one, where it is one rank."""
    return bearing(expression, select(RANK_GPU), ("run", "rank"), on=on, called=WORK, between=" rank ")


def at_work(expression: str) -> str:
    """Keep the expression for GPUs on which at least one rank computes."""
    return where(expression, select(RANK_GPU), on=GPU)
