"""What dashboards of results have in common: choices, and the figures of the newest result of each series.

A line or a row is named by what a person reads, such as "ddp on 8, 8b, bf16, cuda", and told from another of that name
by its series, as two kinds of GPU may have the same case.
"""

from __future__ import annotations

from collections.abc import Mapping

from collectors.metrics.agent import RESULT_INFO, RUN_LAST_COMPLETION, USUAL_STEP_SECONDS
from collectors.metrics.gate import VERDICT, VERDICT_CHANGE
from collectors.metrics.metric import STATISTICS, Metric
from collectors.metrics.results import RUN_STEP_SECONDS
from dashboards import promql
from dashboards.boards import choices
from dashboards.model import Column, Query, Steps, Variable
from dashboards.promql import Match
from dashboards.queries import joins

OF_SERIES = ("series", "name", "strategy", "ranks")
ABSENT = (
    "No result of what is chosen above is in the history. `observatory run ddp` measures one; ad hoc runs, which"
    " measure less than by default, are not shown."
)

Chosen = Mapping[str, str | Match]
"""Conditions on labels of a figure, or of its result's info."""

# What may be chosen. Each leaves to the next what it has.

OF_SUITE = {**choices.OF_CLUSTER, "suite": "$suite"}
OF_SHAPE = {**OF_SUITE, "shape": "$shape", "precision": "$precision", "strategy": "$strategy"}
SHAPE = Variable(name="shape", label="Shape", query=promql.choices(RESULT_INFO, "shape", **OF_SUITE), is_single=True)
PRECISION = Variable(
    name="precision",
    label="Precision",
    query=promql.choices(RESULT_INFO, "precision", **OF_SUITE, shape="$shape"),
)
STRATEGY_OF_SHAPE = Variable(
    name="strategy",
    label="Strategy",
    query=promql.choices(RESULT_INFO, "strategy", **OF_SUITE, shape="$shape"),
)
OF_ONE_SERIES = {**choices.OF_CLUSTER, "name": "$series"}
_IN_SUITE: Chosen = {**OF_SUITE, "strategy": "$strategy", "shape": promql.none_of("")}


def _badness() -> str:
    """Return how bad each series is: first what the gate finds worse, then what it suspects, then how long its step is.

    Within each of these the largest change comes first.
    """
    figure = tuple(label for label in VERDICT.labels if label != "verdict")
    change = promql.magnitude(promql.largest(promql.select(VERDICT_CHANGE, **OF_SUITE), by=figure))

    def found(grade: float, *verdicts: str) -> str:
        judged = promql.select(VERDICT, **OF_SUITE, verdict=promql.one_of(*verdicts))
        return promql.largest(promql.where(f"{grade:g} + {change}", judged, on=figure), by=("series",))

    step, usual = (
        promql.largest(promql.select(metric, **choices.OF_CLUSTER), by=("series",))
        for metric in (RUN_STEP_SECONDS.statistic("median"), USUAL_STEP_SECONDS)
    )
    return promql.either(
        found(20, "confirmed", "regression"),
        found(10, "creep", "suspicion", "late"),
        promql.less_one(promql.divide(step, usual)),
    )


ONE_SERIES = Variable(
    name="series",
    label="Series of the lines",
    query=joins.series_by(_badness(), **_IN_SUITE),
    ranked_label="name",
    is_single=True,
)
"""The worst series stands first, and is the one that is shown until somebody chooses."""


# Queries.


def now(metric: Metric, expression: str, unit: str | None = None, legend: str = "{{name}}") -> Query:
    """Return a query of an expression that shows a metric, or the medians of a figure."""
    shown = metric.shown()[0] if metric.scope == "run" else metric
    return Query(metric=shown, expression=expression, legend=legend, unit=unit or metric.unit)


def median(metric: Metric, chosen: Chosen, *extra: str) -> str:
    """Return the medians of the newest results. extra: labels of the metric by which they are told apart."""
    return joins.results(metric, "median", by=(*OF_SERIES, *extra), **chosen)


def with_interval(metric: Metric, chosen: Chosen, *extra: str) -> tuple[Query, ...]:
    """Return the queries of a figure's median and of its interval's ends, for lines.

    Grafana finds the ends of a band by their names, so these are told apart.
    """
    words = " ".join(("{{name}}", *(f"{{{{{label}}}}}" for label in extra)))
    ends = {"median": "", "low": " (low)", "high": " (high)"}
    return tuple(
        Query(
            metric=joins.form_with(metric, chosen).statistic(which),
            expression=joins.results(metric, which, by=(*OF_SERIES, *extra), **chosen),
            legend=f"{words}{ends[which]}",
            unit=metric.unit,
            statistic=which,
        )
        for which in STATISTICS
    )


def band(metric: Metric, chosen: Chosen) -> tuple[Query, ...]:
    """Return the queries of one series' figure, whose interval is a band: its ends have one fixed name each."""
    by = {"median": "median", "low": "low end", "high": "high end"}
    return tuple(
        Query(
            metric=joins.form_with(metric, chosen).statistic(which),
            expression=joins.results(metric, which, by=("series",), **chosen),
            legend=by[which],
            unit=metric.unit,
            statistic=which,
        )
        for which in STATISTICS
    )


# Columns of tables, whose rows are series, or parts of one.

NAME = Column(name="Case", source="name", link=choices.TO_SERIES)
RANKS = Column(name="Ranks", source="ranks", unit="number", width=70)


def column(
    name: str,
    metric: Metric,
    chosen: Chosen,
    *extra: str,
    steps: Steps | None = None,
) -> Column:
    """Return a column of medians."""
    shown = joins.form_with(metric, chosen).statistic("median")
    source = Query(metric=shown, expression=median(metric, chosen, *extra), legend="{{name}}", unit=metric.unit)
    return Column(name=name, source=source, steps=steps)


def interval_column(name: str, metric: Metric, chosen: Chosen, *extra: str) -> Column:
    """Return a column of half the interval's width, as a share of the median; empty where there is no interval."""
    expression = joins.interval_share(metric, by=(*OF_SERIES, *extra), **chosen)
    return Column(name=name, source=now(metric, expression, "ratio"), width=80)


def age_column(chosen: Chosen, *, steps: Steps | None = None) -> Column:
    """Return a column of how long ago the newest run of each series ended well."""
    ended = joins.info_of_results(RUN_LAST_COMPLETION, by=OF_SERIES, **chosen)
    return Column(name="Age", source=now(RUN_LAST_COMPLETION, promql.age(ended), "seconds"), width=90, steps=steps)
