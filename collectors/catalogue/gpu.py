"""Metrics of a node's GPUs, polled from NVML by the agent."""

from __future__ import annotations

from collectors.metric import Metric

GPU_INFO = Metric(
    name="observatory_gpu_info",
    kind="info",
    unit="info",
    scope="node",
    labels=("gpu", "uuid", "name", "driver"),
    help="A GPU of the node: its index, identity and driver; the value is always 1.",
)
GPU_UTILIZATION = Metric(
    name="observatory_gpu_utilization_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu",),
    help="Share of NVML's last sample period in which at least one kernel ran on the GPU.",
)
GPU_MEMORY_USED_BYTES = Metric(
    name="observatory_gpu_memory_used_bytes",
    kind="gauge",
    unit="bytes",
    scope="node",
    labels=("gpu",),
    help="Device memory in use by all processes, without what the driver reserves for itself.",
)
GPU_MEMORY_BYTES = Metric(
    name="observatory_gpu_memory_bytes",
    kind="gauge",
    unit="bytes",
    scope="node",
    labels=("gpu",),
    help="Device memory of the GPU, that of the driver included.",
)
GPU_POWER_WATTS = Metric(
    name="observatory_gpu_power_watts",
    kind="gauge",
    unit="watts",
    scope="node",
    labels=("gpu",),
    help="Power draw of the GPU as NVML gives it: over the last second, or at the moment on A100 and before Ampere.",
)
GPU_ENERGY_JOULES = Metric(
    name="observatory_gpu_energy_joules_total",
    kind="counter",
    unit="joules",
    scope="node",
    labels=("gpu",),
    help="Energy that the GPU has used since its driver was loaded.",
)
GPU_TEMPERATURE_CELSIUS = Metric(
    name="observatory_gpu_temperature_celsius",
    kind="gauge",
    unit="celsius",
    scope="node",
    labels=("gpu",),
    help="Temperature of the GPU's die, as its sensor gives it.",
)
GPU_CLOCK_HERTZ = Metric(
    name="observatory_gpu_clock_hertz",
    kind="gauge",
    unit="hertz",
    scope="node",
    labels=("gpu", "clock"),
    help="A clock of the GPU as it runs now: sm or memory.",
)

METRICS = (
    GPU_INFO,
    GPU_UTILIZATION,
    GPU_MEMORY_USED_BYTES,
    GPU_MEMORY_BYTES,
    GPU_POWER_WATTS,
    GPU_ENERGY_JOULES,
    GPU_TEMPERATURE_CELSIUS,
    GPU_CLOCK_HERTZ,
)
