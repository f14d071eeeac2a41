"""Metrics of a GPU's power, heat and clocks, and of what holds the clocks back."""

from __future__ import annotations

from collectors.metric import Metric

GPU_POWER_WATTS = Metric(
    name="observatory_gpu_power_watts",
    kind="gauge",
    unit="watts",
    scope="node",
    labels=("gpu",),
    help="Power draw of the GPU as NVML gives it: over the last second, or at the moment on A100 and before Ampere.",
)
GPU_POWER_INSTANT_WATTS = Metric(
    name="observatory_gpu_power_instant_watts",
    kind="gauge",
    unit="watts",
    scope="node",
    labels=("gpu",),
    help="Power draw of the GPU at the moment of the reading.",
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
GPU_MEMORY_TEMPERATURE_CELSIUS = Metric(
    name="observatory_gpu_memory_temperature_celsius",
    kind="gauge",
    unit="celsius",
    scope="node",
    labels=("gpu",),
    help="Temperature of the hottest part of the GPU's memory.",
)
GPU_TEMPERATURE_MARGIN_CELSIUS = Metric(
    name="observatory_gpu_temperature_margin_celsius",
    kind="gauge",
    unit="celsius",
    scope="node",
    labels=("gpu",),
    help="How many degrees the GPU is below the nearest temperature at which it slows itself down.",
)
GPU_CLOCK_HERTZ = Metric(
    name="observatory_gpu_clock_hertz",
    kind="gauge",
    unit="hertz",
    scope="node",
    labels=("gpu", "clock"),
    help="A clock of the GPU as it runs now: sm, memory or video.",
)
GPU_CLOCK_HELD_SECONDS = Metric(
    name="observatory_gpu_clock_held_seconds_total",
    kind="counter",
    unit="seconds",
    scope="node",
    labels=("gpu", "reason"),
    help="Time since its driver was loaded in which a reason held the GPU's clocks back; reasons may hold at once.",
)
GPU_CLOCK_HELD_RATIO = Metric(
    name="observatory_gpu_clock_held_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu", "reason"),
    help=(
        "1 where a reason sets the GPU's clocks at the moment of the reading, 0 where it does not; what is held "
        "between two readings shows in the seconds only."
    ),
)

METRICS = (
    GPU_POWER_WATTS,
    GPU_POWER_INSTANT_WATTS,
    GPU_ENERGY_JOULES,
    GPU_TEMPERATURE_CELSIUS,
    GPU_MEMORY_TEMPERATURE_CELSIUS,
    GPU_TEMPERATURE_MARGIN_CELSIUS,
    GPU_CLOCK_HERTZ,
    GPU_CLOCK_HELD_SECONDS,
    GPU_CLOCK_HELD_RATIO,
)
