"""The dashboard "Where does the pipeline wait?": the bubble and its parts, and the time and memory of stages."""

from __future__ import annotations

from collectors.metrics.metric import Metric
from collectors.metrics.results import (
    RUN_BUBBLE_PART_RATIO,
    RUN_BUBBLE_RATIO,
    RUN_LIVE_MICROBATCHES,
    RUN_STAGE_ACTIVATION_BYTES,
    RUN_STAGE_SECONDS,
)
from dashboards import promql
from dashboards.boards.training_speed import CHOSEN, choices, result
from dashboards.model import Dashboard, Panel, Query


def _exact(metric: Metric) -> tuple[Query, ...]:
    """Return the query of a run's result that is counted, equal in all trials, and so has no interval."""
    return (
        Query(
            metric=metric,
            expression=promql.select(metric, **CHOSEN, bound="median"),
            legend=promql.legend(metric),
            unit=metric.unit,
        ),
    )


DASHBOARD = Dashboard(
    name="where-does-the-pipeline-wait",
    title="Where does the pipeline wait?",
    summary="The newest result of each pipeline: its bubble as measured and expected, the bubble's parts, and what"
    " stages take and hold; worst first.",
    variables=choices(RUN_BUBBLE_RATIO),
    panels=(
        Panel(title="Bubble, measured and expected", queries=result(RUN_BUBBLE_RATIO), worst="highest"),
        Panel(title="Parts of the bubble", queries=result(RUN_BUBBLE_PART_RATIO), worst="highest"),
        Panel(title="Time of a stage for one microbatch", queries=result(RUN_STAGE_SECONDS), worst="highest"),
        Panel(title="Microbatches that a stage holds", queries=_exact(RUN_LIVE_MICROBATCHES), worst="highest"),
        Panel(title="Activations that a stage holds", queries=_exact(RUN_STAGE_ACTIVATION_BYTES), worst="highest"),
    ),
)
