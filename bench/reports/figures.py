"""Figures as people read them: base units scaled, an interval behind the median."""

from __future__ import annotations

from collections.abc import Callable

from bench.judgement.estimate import Estimate
from collectors.catalogue import ceilings, results
from collectors.catalogue.every import METRICS


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
    if value >= 1:
        return 1.0, " s"
    return (1e3, " ms") if value >= 1e-3 else (1e6, " us")


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


_BY_UNIT: dict[str, Callable[[float], tuple[float, str]]] = {
    "seconds": _seconds,
    "bytes": _bytes,
    "bytes_per_second": _bytes_per_second,
    "ratio": _percent,
}
_UNITS = {metric.name: _BY_UNIT[metric.unit] for metric in METRICS if metric.unit in _BY_UNIT} | {
    metric.name: _flops
    for metric in (results.RUN_FLOPS, ceilings.RUN_MATMUL_FLOPS, ceilings.RUN_MATMUL_WITH_HOST_FLOPS)
}
