"""What a series can show: the smallest lasting change that its next nights would confirm, and after how many nights.

From the noise that was learned and the number of nights alone, so it costs no simulation; the simulation that holds it
is in docs/measured/detector.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from bench.gate.detector.detector import learned_noise
from bench.gate.detector.settings import SETTINGS, DetectorSettings
from bench.gate.detector.state import SeriesState

POWER = 0.8
WITHIN_NIGHTS = SETTINGS.window_nights
"""Nights in which a change is to be confirmed: as long as the nightly rule weighs an onset."""
_SCORE = 4.7
"""Deviations of the mean of the new nights less that of the old ones that are confirmed in four of five cases."""
_SHORT_NIGHTS = 1.5
"""How much more a short history needs, in nights: its noise is less well known, and taken for more."""
TARGET_CHANGE = 0.03
"""The change whose nights are reported along with the smallest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """What a series can show with so many nights.

    smallest: the smallest lasting change, as a ratio less 1, that is confirmed within `WITHIN_NIGHTS` nights in four of
    five cases. target: a change, and nights: after how many nights of history it would be confirmed so; None where no
    history is long enough.
    """

    history: int
    smallest: float
    target: float
    nights: int | None

    @property
    def words(self) -> str:
        """What can be seen, in a clause."""
        smallest = f"with {self.history} nights, lasting changes of {_percent(self.smallest)} or more are detectable"
        if self.smallest <= self.target:
            return smallest
        if self.nights is None:
            return f"{smallest}; no history is long enough for {_percent(self.target)}"
        return f"{smallest}; {_percent(self.target)} after about {self.nights} nights"


@dataclass(frozen=True, slots=True, kw_only=True)
class NightNoise:
    """Variances of a night: of its effect, which the next one shares by `correlation`, and of its trials' error."""

    night_variance: float
    error_variance: float
    correlation: float = 0.0


def visible(state: SeriesState, target: float = TARGET_CHANGE, settings: DetectorSettings = SETTINGS) -> Visible | None:
    """Return what a series can show, None before its first verdict."""
    if state.unchanged is None:
        return None
    learned = learned_noise(state, settings)
    noise = NightNoise(
        night_variance=learned.night_variance,
        error_variance=median(night.variance for night in state.nights),
        correlation=learned.correlation,
    )
    history = sum(night.number >= state.regime_starts[-1] for night in state.nights)
    return Visible(
        history=history,
        smallest=math.expm1(smallest_change(noise, history, settings=settings)),
        target=target,
        nights=history_needed(noise, math.log1p(target), settings),
    )


def smallest_change(
    noise: NightNoise, history: int, within: int = WITHIN_NIGHTS, settings: DetectorSettings = SETTINGS
) -> float:
    """Return the smallest change, on logarithms, that is confirmed within so many nights after a history."""
    before = max(1, min(history, settings.memory_nights))
    variance = _variance_of_mean(noise, before) + _variance_of_mean(noise, within)
    return max(_SCORE * (1 + _SHORT_NIGHTS / before) * math.sqrt(variance), settings.smallest_change)


def history_needed(noise: NightNoise, change: float, settings: DetectorSettings = SETTINGS) -> int | None:
    """Return after how many nights of history a change, on logarithms, would be confirmed; None where after none."""
    for nights in range(settings.fewest_nights, settings.memory_nights + 1):
        if smallest_change(noise, nights, settings=settings) <= change:
            return nights
    return None


def confirmed_after(
    noise: NightNoise, change: float, history: int, settings: DetectorSettings = SETTINGS
) -> int | None:
    """Return on which night of a change, on logarithms, it is confirmed; None where that takes longer than weighed."""
    for nights in range(settings.hold_nights + 1, WITHIN_NIGHTS + 1):
        if smallest_change(noise, history, nights, settings) <= change:
            return nights
    return None


def _variance_of_mean(noise: NightNoise, count: int) -> float:
    """Return the variance of the mean of neighbouring nights, each pair of which shares correlation^distance."""
    pairs = sum((count - lag) * noise.correlation**lag for lag in range(1, count))
    return (noise.night_variance * (1 + 2 * pairs / count) + noise.error_variance) / count


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2g} %" if ratio < 1 else f"x {1 + ratio:.2g}"
