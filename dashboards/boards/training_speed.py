"""The dashboard "Is training fast?": what was measured last, what runs now, and where the time goes.

Also has what all dashboards of runs share: results with intervals, and the choice of strategy and series.
"""

from __future__ import annotations

from collectors.metrics.agent import RUN_INFO
from collectors.metrics.gpu import GPU_MEMORY_FREE_BYTES, GPU_MEMORY_USED_BYTES, GPU_UTILIZATION
from collectors.metrics.metric import Metric
from collectors.metrics.rank import (
    EXPOSED_COMMUNICATION_RATIO,
    MFU,
    OVERLAP_RATIO,
    PEAK_BYTES,
    RESIDENT_BYTES,
    STEP_SECONDS,
    TOKENS,
)
from collectors.metrics.results import (
    RUN_MFU,
    RUN_OVERLAP_RATIO,
    RUN_SCALING_EFFICIENCY,
    RUN_STEP_SECONDS,
    RUN_TOKENS_PER_SECOND_PER_DEVICE,
    RUN_TRACED_RATIO,
)
from collectors.metrics.suites import SUITE_CASE_INFO, SUITE_LAST_CASES
from dashboards import promql
from dashboards.model import Bound, Dashboard, Panel, Query, Variable

# Shared by the dashboards of runs.

BOUNDS: tuple[Bound, ...] = ("median", "low", "high")
CHOSEN = {"strategy": "$strategy", "series": "$series"}


def result(metric: Metric, **labels: str) -> tuple[Query, ...]:
    """Return the queries of a run's result with its interval, for the chosen strategy and series."""
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
    """Return the variables: the strategies that have this result, and the series of those that are chosen."""
    return (
        Variable(name="strategy", label="Strategy", query=promql.choices(metric, "strategy")),
        Variable(name="series", label="Series", query=promql.choices(metric, "series", strategy="$strategy")),
    )


_RANK = {"slot": "$slot"}


def _live(metric: Metric, *extra: str, **labels: str) -> Query:
    return Query(
        metric=metric,
        expression=promql.select(metric, **labels),
        legend=promql.legend(metric, *extra),
        unit=metric.unit,
    )


_TOKENS_NOW = Query(
    metric=TOKENS,
    expression=promql.rate(TOKENS, **_RANK),
    legend=promql.legend(TOKENS),
    unit=RUN_TOKENS_PER_SECOND_PER_DEVICE.unit,
)
_GPU_MEMORY_SHARE = Query(
    metric=GPU_MEMORY_USED_BYTES,
    # Of less than all memory: no process can have what the driver keeps for itself.
    expression=promql.divide(
        promql.select(GPU_MEMORY_USED_BYTES),
        promql.plus(promql.select(GPU_MEMORY_USED_BYTES), promql.select(GPU_MEMORY_FREE_BYTES)),
    ),
    legend=promql.legend(GPU_MEMORY_USED_BYTES, "memory in use"),
    unit="ratio",
)


def _suite(metric: Metric, expression: str, *, by: tuple[str, ...]) -> Query:
    """Return the query of what is told of runs of suites; several exporters of one history are one series."""
    return Query(
        metric=metric,
        expression=promql.largest(expression, by=("suite", "run", *by)),
        legend=" ".join(("{{suite}}", *(f"{{{{{label}}}}}" for label in by), "({{run}})")),
        unit=metric.unit,
    )


DASHBOARD = Dashboard(
    name="is-training-fast",
    title="Is training fast?",
    summary="The newest results with their 95 % intervals, and what ranks and GPUs do now; worst first.",
    variables=(
        *choices(RUN_STEP_SECONDS),
        Variable(
            name="slot", label="Slot", query=promql.choices(RUN_INFO, "slot", strategy="$strategy", series="$series")
        ),
    ),
    panels=(
        Panel(title="Scaling efficiency", queries=result(RUN_SCALING_EFFICIENCY), worst="lowest"),
        Panel(
            title="Tokens per second and device",
            queries=(*result(RUN_TOKENS_PER_SECOND_PER_DEVICE), _TOKENS_NOW),
            worst="lowest",
        ),
        Panel(
            title="Step time",
            queries=(*result(RUN_STEP_SECONDS), _live(STEP_SECONDS, **_RANK)),
            worst="highest",
        ),
        Panel(
            title="Model FLOPs utilization",
            queries=(*result(RUN_MFU), _live(MFU, **_RANK)),
            worst="lowest",
        ),
        Panel(
            title="Communication that computation does not hide",
            queries=(
                *result(RUN_TRACED_RATIO, part="exposed_communication"),
                _live(EXPOSED_COMMUNICATION_RATIO, **_RANK),
            ),
            worst="highest",
        ),
        Panel(
            title="Communication that computation hides",
            queries=(*result(RUN_OVERLAP_RATIO), _live(OVERLAP_RATIO, **_RANK)),
            worst="lowest",
        ),
        Panel(
            title="Memory of a rank",
            queries=(
                _live(PEAK_BYTES, "device peak", **_RANK),
                _live(RESIDENT_BYTES, "resident", **_RANK),
            ),
            worst="highest",
        ),
        Panel(
            title="GPUs: busy, and memory in use",
            queries=(_live(GPU_UTILIZATION, "busy"), _GPU_MEMORY_SHARE),
            worst="lowest",
        ),
        Panel(
            title="Suites: how the cases of the newest run ended, and of those that go on",
            queries=(_suite(SUITE_LAST_CASES, promql.above(promql.select(SUITE_LAST_CASES), 0), by=("outcome",)),),
            worst="highest",
        ),
        Panel(
            title="Suites: the cases that run now",
            queries=(_suite(SUITE_CASE_INFO, promql.select(SUITE_CASE_INFO), by=("case",)),),
            worst="highest",
        ),
    ),
)
