"""The dashboard "Where does the pipeline wait?": the bubble and its parts, what stages take, what they hold."""

from __future__ import annotations

from collectors.catalogue.pipeline import (
    RUN_BUBBLE_PART_RATIO,
    RUN_BUBBLE_RATIO,
    RUN_LIVE_MICROBATCHES,
    RUN_STAGE_ACTIVATION_BYTES,
    RUN_STAGE_SECONDS,
)
from collectors.metric import Metric
from dashboards import promql
from dashboards.dashboard import Bound, Dashboard, Panel, Query, Variable

_BOUNDS: tuple[Bound, ...] = ("median", "low", "high")
_RUN = {"strategy": "$strategy", "series": "$series"}


def _result(metric: Metric, **labels: str) -> tuple[Query, ...]:
    """A run's result with its interval."""
    return tuple(
        Query(
            metric=metric,
            expression=promql.select(metric, **_RUN, **labels, bound=bound),
            legend=promql.legend(metric),
            unit=metric.unit,
            bound=bound,
        )
        for bound in _BOUNDS
    )


def _exact(metric: Metric) -> tuple[Query, ...]:
    """A run's result that is counted, equal in all trials, and so has no interval."""
    return (
        Query(
            metric=metric,
            expression=promql.select(metric, **_RUN, bound="median"),
            legend=promql.legend(metric),
            unit=metric.unit,
        ),
    )


DASHBOARD = Dashboard(
    name="where-does-the-pipeline-wait",
    title="Where does the pipeline wait?",
    summary="The newest result of each pipeline: its bubble as measured and expected, the bubble's parts, and what"
    " stages take and hold; worst first.",
    variables=(
        Variable(name="strategy", label="Strategy", query=promql.choices(RUN_BUBBLE_RATIO, "strategy")),
        Variable(
            name="series",
            label="Series",
            query=promql.choices(RUN_BUBBLE_RATIO, "series", strategy="$strategy"),
        ),
    ),
    panels=(
        Panel(title="Bubble, measured and expected", queries=_result(RUN_BUBBLE_RATIO), worst="highest"),
        Panel(title="Parts of the bubble", queries=_result(RUN_BUBBLE_PART_RATIO), worst="highest"),
        Panel(title="Time of a stage for one microbatch", queries=_result(RUN_STAGE_SECONDS), worst="highest"),
        Panel(title="Microbatches that a stage holds", queries=_exact(RUN_LIVE_MICROBATCHES), worst="highest"),
        Panel(title="Activations that a stage holds", queries=_exact(RUN_STAGE_ACTIVATION_BYTES), worst="highest"),
    ),
)
