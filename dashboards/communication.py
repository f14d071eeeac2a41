"""The dashboard "Who waits for whom?": the rank that holds others up, and collectives as wait and transfer."""

from __future__ import annotations

from collectors.catalogue.joined_ranks import (
    RUN_CLOCK_RESIDUAL_SECONDS,
    RUN_COLLECTIVE_TRANSFER_SECONDS,
    RUN_COLLECTIVE_WAIT_SECONDS,
    RUN_HELD_UP_RATIO,
    RUN_LAST_RATIO,
    RUN_STRAGGLER_RATIO,
    RUN_TRACED_BUS_BANDWIDTH,
    RUN_WAITING_RATIO,
)
from collectors.metric import Metric
from dashboards import promql
from dashboards.dashboard import Bound, Dashboard, Panel, Query, Variable

_BOUNDS: tuple[Bound, ...] = ("median", "low", "high")
_RUN = {"strategy": "$strategy", "series": "$series"}


def _result(metric: Metric) -> tuple[Query, ...]:
    """A run's result with its interval."""
    return tuple(
        Query(
            metric=metric,
            expression=promql.select(metric, **_RUN, bound=bound),
            legend=promql.legend(metric),
            unit=metric.unit,
            bound=bound,
        )
        for bound in _BOUNDS
    )


DASHBOARD = Dashboard(
    name="who-waits-for-whom",
    title="Who waits for whom?",
    summary="The newest result of each series whose traced windows were joined over its ranks: which rank holds the"
    " others up, and what collectives take beside the wait; worst first.",
    variables=(
        Variable(name="strategy", label="Strategy", query=promql.choices(RUN_WAITING_RATIO, "strategy")),
        Variable(
            name="series",
            label="Series",
            query=promql.choices(RUN_WAITING_RATIO, "series", strategy="$strategy"),
        ),
    ),
    panels=(
        Panel(
            title="The rank that holds the others up, and by what",
            queries=_result(RUN_STRAGGLER_RATIO),
            worst="highest",
        ),
        Panel(
            title="Time that others could begin sooner without the rank",
            queries=_result(RUN_HELD_UP_RATIO),
            worst="highest",
        ),
        Panel(title="Collectives to which the rank comes last", queries=_result(RUN_LAST_RATIO), worst="highest"),
        Panel(title="Waiting, of the time in collectives", queries=_result(RUN_WAITING_RATIO), worst="highest"),
        Panel(title="Wait of one call", queries=_result(RUN_COLLECTIVE_WAIT_SECONDS), worst="highest"),
        Panel(title="Transfer of one call", queries=_result(RUN_COLLECTIVE_TRANSFER_SECONDS), worst="highest"),
        Panel(title="Bus bandwidth without the wait", queries=_result(RUN_TRACED_BUS_BANDWIDTH), worst="lowest"),
        Panel(
            title="How far the ranks' clocks may be off", queries=_result(RUN_CLOCK_RESIDUAL_SECONDS), worst="highest"
        ),
    ),
)
