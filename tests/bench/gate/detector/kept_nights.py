"""States whose nights are given by their values, for what looks back at them."""

from __future__ import annotations

from collections.abc import Iterable

from bench.gate.detector.settings import SETTINGS
from bench.gate.detector.state import KeptNight, SeriesState


def kept(log_values: Iterable[float], variance: float = 1e-6, regime_start: int = 0) -> SeriesState:
    """Return a state that has seen these nights; only the newest are kept, as the detector does."""
    nights = [KeptNight(place, float(value), variance, variance, 3, 0.01) for place, value in enumerate(log_values)][
        -SETTINGS.memory_nights :
    ]
    return SeriesState(nights=tuple(nights), regime_starts=(max(regime_start, nights[0].number),))
