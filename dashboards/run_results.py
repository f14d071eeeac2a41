"""What dashboards of runs have in common: results with their intervals, of the strategy and series that are chosen."""

from __future__ import annotations

from collectors.metric import Metric
from dashboards import promql
from dashboards.dashboard import Bound, Query, Variable

BOUNDS: tuple[Bound, ...] = ("median", "low", "high")
CHOSEN = {"strategy": "$strategy", "series": "$series"}


def result(metric: Metric, **labels: str) -> tuple[Query, ...]:
    """A run's result with its interval."""
    return tuple(
        Query(
            metric=metric,
            expression=promql.select(metric, **CHOSEN, **labels, bound=bound),
            legend=promql.legend(metric),
            unit=metric.unit,
            bound=bound,
        )
        for bound in BOUNDS
    )


def choices(metric: Metric) -> tuple[Variable, ...]:
    """The strategies that have this result, and the series of those that are chosen."""
    return (
        Variable(name="strategy", label="Strategy", query=promql.choices(metric, "strategy")),
        Variable(name="series", label="Series", query=promql.choices(metric, "series", strategy="$strategy")),
    )
