"""What the dashboards of one chosen series have in common: the choice of it, and the figures of its newest result."""

from __future__ import annotations

from collectors.metrics.agent import RUN_INFO
from collectors.metrics.metric import STATISTICS, Metric, Statistic
from dashboards import promql
from dashboards.boards.choices import OF_CLUSTER, one_cluster
from dashboards.model import Query, Variable
from dashboards.promql import Match
from dashboards.queries import joins
from dashboards.queries.fleets import over_the_range

OF_ONE_SERIES = {**OF_CLUSTER, "strategy": "$strategy", "name": "$series"}


def one_series(metric: Metric, *, has_live: bool = False) -> tuple[Variable, ...]:
    """Return the variables: a cluster, a strategy that has this figure there, and a series of it on several ranks.

    Both lists begin with the worst: where the figure is highest. has_live: the page also shows runs that go on, so that
    clusters and strategies that have none but the first runs of all on several ranks can be chosen, too.
    """
    several: dict[str, str | Match] = {**OF_CLUSTER, "ranks": promql.none_of("1")}
    figures = promql.select(metric.statistic("median"), **several)
    strategies = promql.largest(figures, by=("strategy",))
    if has_live:
        live = promql.largest(over_the_range(promql.select(RUN_INFO, **several)), by=("strategy",))
        strategies = promql.either(strategies, promql.times(-1, live))
    return (
        one_cluster(*([RUN_INFO] if has_live else [])),
        Variable(
            name="strategy",
            label="Strategy",
            query=promql.ranked_choices(strategies),
            ranked_label="strategy",
            is_single=True,
        ),
        Variable(
            name="series",
            label="Series",
            query=joins.series_by(promql.largest(figures, by=("series",)), **several, strategy="$strategy"),
            ranked_label="name",
            is_single=True,
        ),
    )


def figure(metric: Metric, which: Statistic = "median", /, **labels: str) -> str:
    """Return a statistic of a figure of the chosen series."""
    return joins.of_chosen_results(metric.statistic(which), **OF_ONE_SERIES, **labels)


def median(metric: Metric, legend: str, *, is_reference: bool = False, **labels: str) -> Query:
    """Return the query of a figure's median. is_reference: see `Query`."""
    return Query(
        metric=metric.statistic("median"),
        expression=figure(metric, **labels),
        legend=legend,
        unit=metric.unit,
        is_reference=is_reference,
    )


def with_interval(metric: Metric, legend: str, *, is_band: bool = False) -> tuple[Query, ...]:
    """Return the queries of a figure's median and of its interval's ends.

    is_band: Grafana finds the ends of a band by their names; dashed ends have the median's name, and so its colour.
    """
    return tuple(
        Query(
            metric=metric.statistic(which),
            expression=figure(metric, which),
            legend=legend if which == "median" or not is_band else f"{legend} ({which} end)",
            unit=metric.unit,
            statistic=which,
        )
        for which in STATISTICS
    )


def cell(metric: Metric, *by: str, **labels: str) -> Query:
    """Return the query of a table's column: a figure's median, with these labels alone."""
    return Query(
        metric=metric.statistic("median"),
        expression=promql.largest(figure(metric, **labels), by=by),
        legend=" ".join((metric.statistic("median").name, *labels.values())),
        unit=metric.unit,
    )
