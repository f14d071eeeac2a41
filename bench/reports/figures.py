"""Figures as people read them: base units scaled, an interval behind the median."""

from __future__ import annotations

from collections.abc import Callable

from bench.judgement.estimate import Estimate
from collectors.catalogue import ceilings, pipeline, results


def figure(estimate: Estimate) -> str:
    """The estimate in its unit for people: `84.1 ms [82.0, 86.3]`, the median and the 95 % interval."""
    scale, unit, decimals = _scaled(estimate)
    text = f"{estimate.median * scale:,.{decimals}f}{unit}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low * scale:,.{decimals}f}, {estimate.high * scale:,.{decimals}f}]"


def percent(value: float, low: float | None, high: float | None) -> str:
    """A ratio for people: `87.2 % [85.0, 89.5]`."""
    interval = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{100 * value:.1f} %{interval}"


def _scaled(estimate: Estimate) -> tuple[float, str, int]:
    """What to multiply with, the unit's sign and the decimals that leave about three digits."""
    unit = _UNITS.get(estimate.metric)
    scale, sign = unit(estimate.median) if unit else (1.0, "")
    shown = abs(estimate.median * scale)
    return scale, sign, 0 if shown >= 100 or sign == " B" else 1 if shown >= 10 else 2 if shown >= 1 else 3


def _seconds(value: float) -> tuple[float, str]:
    return (1.0, " s") if value >= 1 else (1e3, " ms")


def _flops(value: float) -> tuple[float, str]:
    return (1e-12, " TFLOP/s") if value >= 1e11 else (1e-9, " GFLOP/s")


def _bytes(value: float) -> tuple[float, str]:
    if value >= 2**20 / 100:  # Three digits are left of it.
        return (2**-30, " GiB") if value >= 2**30 else (2**-20, " MiB")
    return (2**-10, " KiB") if value >= 2**10 else (1.0, " B")


def _percent(value: float) -> tuple[float, str]:
    return 100.0, " %"


def _bytes_per_second(value: float) -> tuple[float, str]:
    return (1e-9, " GB/s") if value >= 1e8 else (1e-6, " MB/s")


_UNITS: dict[str, Callable[[float], tuple[float, str]]] = {
    results.RUN_STEP_SECONDS.name: _seconds,
    results.RUN_MEAN_STEP_SECONDS.name: _seconds,
    results.RUN_PHASE_SECONDS.name: _seconds,
    results.RUN_TRACED_STEP_SECONDS.name: _seconds,
    results.RUN_FLOPS.name: _flops,
    results.RUN_MFU.name: _percent,
    results.RUN_PEAK_MEMORY_BYTES.name: _bytes,
    results.RUN_OBSERVER_RATIO.name: _percent,
    results.RUN_TRACED_RATIO.name: _percent,
    results.RUN_OVERLAP_RATIO.name: _percent,
    results.RUN_PAYLOAD_BYTES.name: _bytes,
    results.RUN_MEASURED_MFU.name: _percent,
    results.RUN_MEMORY_ACCOUNT_BYTES.name: _bytes,
    results.RUN_COMMUNICATION_SECONDS.name: _seconds,
    pipeline.RUN_BUBBLE_RATIO.name: _percent,
    pipeline.RUN_BUBBLE_PART_RATIO.name: _percent,
    pipeline.RUN_STAGE_SECONDS.name: _seconds,
    pipeline.RUN_STAGE_ACTIVATION_BYTES.name: _bytes,
    ceilings.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH.name: _bytes_per_second,
    ceilings.RUN_COLLECTIVE_BUS_BANDWIDTH.name: _bytes_per_second,
    ceilings.RUN_LINK_BANDWIDTH.name: _bytes_per_second,
    ceilings.RUN_MATMUL_FLOPS.name: _flops,
    ceilings.RUN_COPY_BANDWIDTH.name: _bytes_per_second,
}
