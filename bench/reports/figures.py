"""Figures as people read them: base units scaled, an interval behind the median."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bench.judgement.estimate import Estimate, Ratio
from collectors.catalogue import ceilings, results
from collectors.catalogue.every import METRICS

TELLS_LITTLE = (
    "2 trials tell little; --trials 5 would: intervals wider than their figure are left out here, not in JSON"
)


def tells_little(found: Estimate | Ratio) -> bool:
    """Whether two trials have an interval that is wider than its figure.

    With one degree of freedom it may be tens of times as wide, and says nothing to a reader.
    """
    if isinstance(found, Ratio):
        value, trials = found.value, min(found.numerator_trials, found.denominator_trials)
    else:
        value, trials = found.median, len(found.trials)
    return found.low is not None and found.high is not None and trials == 2 and found.high - found.low > abs(value)


def little(shown: Iterable[Estimate | Ratio]) -> list[str]:
    """Why figures of two trials stand without an interval, once; nothing where all of them tell enough."""
    return [TELLS_LITTLE] if any(tells_little(one) for one in shown) else []


def figure(estimate: Estimate) -> str:
    """The estimate in its unit for people: `84.1 ms [82.0, 86.3]`, the median and an interval that tells enough."""
    scale, unit, decimals = _scaled(estimate)
    text = f"{estimate.median * scale:,.{decimals}f}{unit}"
    if estimate.low is None or estimate.high is None or tells_little(estimate):
        return text
    return f"{text} [{estimate.low * scale:,.{decimals}f}, {estimate.high * scale:,.{decimals}f}]"


def percent(ratio: Ratio) -> str:
    """A ratio for people: `87.2 % [85.0, 89.5]`."""
    text = f"{100 * ratio.value:.1f} %"
    if ratio.low is None or ratio.high is None or tells_little(ratio):
        return text
    return f"{text} [{100 * ratio.low:.1f}, {100 * ratio.high:.1f}]"


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
