"""The dashboard "Which GPU is sick?": a GPU's errors and repairs, what holds it back, what it does for which rank."""

from __future__ import annotations

from collectors.metrics import gpu, gpu_health
from collectors.metrics.metric import Metric
from dashboards import promql
from dashboards.model import Dashboard, Panel, Query, Variable
from dashboards.promql import GPU, SLICE, WORK, Match, with_work

_CHOSEN = {"instance": "$node", "gpu": "$gpu"}
_NO_BRAKE = ("idle",)
"""Reasons of slow clocks that are no trouble."""


def _of_gpu(metric: Metric, expression: str, unit: str, *extra: str) -> Query:
    """Return a query whose series are named after their node, GPU and rank."""
    return Query(
        metric=metric,
        expression=with_work(expression),
        legend=promql.legend(metric, *extra, f"{{{{{WORK}}}}}"),
        unit=unit,
    )


def _gauge(metric: Metric, *extra: str, **labels: str | Match) -> Query:
    return _of_gpu(metric, promql.select(metric, **_CHOSEN, **labels), metric.unit, *extra)


def _rate(metric: Metric, unit: str, *extra: str) -> Query:
    return _of_gpu(metric, promql.rate(metric, **_CHOSEN), unit, *extra)


def _share(part: Metric, whole: str, *extra: str, **labels: str) -> Query:
    expression = promql.divide(promql.select(part, **_CHOSEN, **labels), whole, on=GPU)
    return _of_gpu(part, expression, "ratio", *extra)


_ANSWERING = promql.select(gpu.GPU_STATE, **_CHOSEN, state="answering")
# 0 while a GPU answers, 1 in any other state, so that sound GPUs are shown, too.
_STATE = Query(
    metric=gpu.GPU_STATE,
    expression=with_work(
        promql.either(
            promql.select(gpu.GPU_STATE, **_CHOSEN, state=promql.none_of("answering")),
            promql.times(0, _ANSWERING),
        )
    ),
    legend=promql.legend(gpu.GPU_STATE, f"{{{{{WORK}}}}}"),
    unit="info",
)
_REPAIR = _of_gpu(
    gpu_health.GPU_MEMORY_REPAIR, promql.equal(promql.select(gpu_health.GPU_MEMORY_REPAIR, **_CHOSEN), 1), "info"
)
# Each row stands for an error: it was remapped because of one.
_REMAPPED = _of_gpu(
    gpu_health.GPU_REMAPPED_ROWS,
    promql.select(gpu_health.GPU_REMAPPED_ROWS, **_CHOSEN, kind="uncorrected"),
    "errors",
    "rows remapped",
)
# Only for reasons without a counter.
_SAMPLED_BRAKES = _of_gpu(
    gpu.GPU_CLOCK_HELD_RATIO,
    promql.unless(
        promql.average(gpu.GPU_CLOCK_HELD_RATIO, **_CHOSEN, reason=promql.none_of(*_NO_BRAKE)),
        promql.select(gpu.GPU_CLOCK_HELD_SECONDS),
        on=(*GPU, "reason"),
    ),
    "ratio",
    "sampled",
)
# Less than all memory: no process can have what the driver keeps for itself.
_TO_BE_HAD = promql.plus(promql.select(gpu.GPU_MEMORY_USED_BYTES), promql.select(gpu.GPU_MEMORY_FREE_BYTES))
_SLICE_MEMORY = Query(
    metric=gpu.GPU_INSTANCE_MEMORY_USED_BYTES,
    expression=with_work(
        promql.divide(
            promql.select(gpu.GPU_INSTANCE_MEMORY_USED_BYTES, **_CHOSEN), promql.select(gpu.GPU_INSTANCE_MEMORY_BYTES)
        ),
        on=SLICE,
    ),
    legend=promql.legend(gpu.GPU_INSTANCE_MEMORY_USED_BYTES, f"{{{{{WORK}}}}}"),
    unit="ratio",
)

DASHBOARD = Dashboard(
    name="which-gpu-is-sick",
    title="Which GPU is sick?",
    summary="The GPUs of each node, and the ranks on them: errors and repairs first, then what holds a GPU back, then"
    " what it does. Where one rank computes on a GPU, the series bear its run and number.",
    variables=(
        Variable(name="node", label="Node", query=promql.choices(gpu.GPU_STATE, "instance")),
        Variable(name="gpu", label="GPU", query=promql.choices(gpu.GPU_STATE, "gpu", instance="$node")),
    ),
    panels=(
        Panel(
            title="Lost, late, or waiting for a repair",
            queries=(_STATE, _gauge(gpu_health.GPU_RECOVERY, action=promql.none_of("none")), _REPAIR),
            worst="highest",
        ),
        Panel(
            title="Errors that the driver reported, since the agent began",
            queries=(_gauge(gpu_health.GPU_XIDS), _gauge(gpu_health.GPU_EVENTS, event=promql.none_of("xid"))),
            worst="highest",
        ),
        Panel(
            title="Memory errors that ECC could not correct",
            queries=(
                _gauge(gpu_health.GPU_ECC_VOLATILE_ERRORS, "since the driver was loaded", kind="uncorrected"),
                _gauge(gpu_health.GPU_ECC_AGGREGATE_ERRORS, "in its life", kind="uncorrected"),
                _REMAPPED,
            ),
            worst="highest",
        ),
        Panel(
            title="Share of time in which clocks are held back",
            queries=(_rate(gpu.GPU_CLOCK_HELD_SECONDS, "ratio"), _SAMPLED_BRAKES),
            worst="highest",
        ),
        Panel(
            title="Degrees below slowing down",
            queries=(_gauge(gpu.GPU_TEMPERATURE_MARGIN_CELSIUS),),
            worst="lowest",
            goes_below_zero=True,
        ),
        Panel(
            title="Temperature",
            queries=(
                _gauge(gpu.GPU_TEMPERATURE_CELSIUS, "die"),
                _gauge(gpu.GPU_MEMORY_TEMPERATURE_CELSIUS, "memory"),
            ),
            worst="highest",
        ),
        Panel(
            title="Power, of the limit in force",
            queries=(_share(gpu.GPU_POWER_WATTS, promql.select(gpu.GPU_POWER_LIMIT_WATTS, limit="current")),),
            worst="highest",
        ),
        Panel(
            title="Clock of the multiprocessors, of its maximum",
            queries=(
                _share(
                    gpu.GPU_CLOCK_HERTZ,
                    promql.select(gpu.GPU_CLOCK_LIMIT_HERTZ, clock="sm"),
                    clock="sm",
                ),
            ),
            worst="lowest",
        ),
        Panel(
            title="Busy: with any kernel, its multiprocessors, its tensor cores",
            queries=(
                _gauge(gpu.GPU_UTILIZATION, "any kernel"),
                _gauge(gpu_health.GPU_SM_ACTIVITY, "multiprocessors"),
                _gauge(gpu_health.GPU_TENSOR_ACTIVITY, "tensor cores", kind="any"),
            ),
            worst="lowest",
        ),
        Panel(
            title="Memory in use, of what processes can have",
            queries=(_share(gpu.GPU_MEMORY_USED_BYTES, _TO_BE_HAD), _SLICE_MEMORY),
            worst="highest",
        ),
        Panel(
            title="PCIe traffic",
            queries=(_rate(gpu_health.GPU_PCIE_BYTES, "bytes_per_second"),),
            worst="highest",
        ),
        Panel(
            title="NVLink traffic",
            queries=(_rate(gpu_health.GPU_NVLINK_BYTES, "bytes_per_second"),),
            worst="highest",
        ),
        Panel(
            title="Errors of links per second",
            queries=(
                _rate(gpu_health.GPU_PCIE_RETRIES, "per_second", "PCIe sent again"),
                _rate(gpu_health.GPU_PCIE_ERRORS, "per_second", "PCIe"),
                _rate(gpu_health.GPU_NVLINK_ERRORS, "per_second", "NVLink"),
            ),
            worst="highest",
        ),
        Panel(title="Age of what is shown", queries=(_gauge(gpu_health.GPU_AGE_SECONDS),), worst="highest"),
    ),
)
