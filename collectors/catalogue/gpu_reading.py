"""Metrics of the reading of GPUs itself: how old it is, what was missed, what it costs."""

from __future__ import annotations

from collectors.metric import Metric

GPU_AGE_SECONDS = Metric(
    name="observatory_gpu_age_seconds",
    kind="gauge",
    unit="seconds",
    scope="node",
    labels=("gpu",),
    help=(
        "Age of what is shown of the GPU, at the agent's last beat: up to a beat older at the scrape; more than a beat "
        "where its driver keeps it waiting."
    ),
)
GPU_MISSED = Metric(
    name="observatory_gpu_missed_readings_total",
    kind="counter",
    unit="errors",
    scope="node",
    labels=("gpu",),
    help=(
        "Beats at which the GPU had not answered by the deadline, or had no whole answer; what is shown is then what "
        "it answered last."
    ),
)
GPU_FIELD_SECONDS = Metric(
    name="observatory_gpu_field_seconds",
    kind="gauge",
    unit="seconds",
    scope="node",
    labels=("field",),
    help=(
        "What the driver took to read one field, by its own account, on the slowest of the node's GPUs; fields "
        "that share a driver call share its time."
    ),
)
GPU_CALL_SECONDS = Metric(
    name="observatory_gpu_call_seconds_total",
    kind="counter",
    unit="seconds",
    scope="node",
    labels=("function",),
    help=(
        "Time that our calls to a function of NVML took, all of the node's GPUs together; without waiting for events."
    ),
)
GPU_CALLS = Metric(
    name="observatory_gpu_calls_total",
    kind="counter",
    unit="requests",
    scope="node",
    labels=("function",),
    help="Our calls to a function of NVML, answered or refused, all of the node's GPUs together.",
)

METRICS = (
    GPU_AGE_SECONDS,
    GPU_MISSED,
    GPU_FIELD_SECONDS,
    GPU_CALL_SECONDS,
    GPU_CALLS,
)
