"""What a series can show: the smallest lasting change that its next nights would confirm, and after how many nights.

The answer follows from the learned noise and the number of nights without a simulation; docs/measured/detector.md has
the simulation that it was checked with.
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
"""Nights within which a change should be confirmed: as long as the nightly rule weighs an onset."""
_SCORE = 4.7
"""Difference of the new nights' mean from the old, in standard deviations, that is confirmed in four of five cases."""
_SHORT_NIGHTS = 1.5
"""How much more a short history needs, in nights: its noise is known less well, and is estimated higher."""
TARGET_CHANGE = 0.03
"""A change for which the needed nights are reported along with the smallest detectable change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """The changes that a series can show with `history` nights.

    smallest: smallest lasting change, as a ratio minus 1, that is confirmed within `WITHIN_NIGHTS` nights in four of
    five cases. target: a change; nights: nights of history after which it would be confirmed in the same way, or None
    if no history is long enough.
    """

    history: int
    smallest: float
    target: float
    nights: int | None

    @property
    def words(self) -> str:
        """The detectable changes as a clause."""
        smallest = f"with {self.history} nights, lasting changes of {_percent(self.smallest)} or more are detectable"
        if self.smallest <= self.target:
            return smallest
        if self.nights is None:
            return f"{smallest}; no history is long enough for {_percent(self.target)}"
        return f"{smallest}; {_percent(self.target)} after about {self.nights} nights"


@dataclass(frozen=True, slots=True, kw_only=True)
class NightNoise:
    """Variances of a night's effect and of its trials' error. correlation: between the effects of successive nights."""

    night_variance: float
    error_variance: float
    correlation: float = 0.0


def visible(state: SeriesState, target: float = TARGET_CHANGE, settings: DetectorSettings = SETTINGS) -> Visible | None:
    """Return the changes that a series can show; None before its first verdict."""
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
    """Return the smallest change (logarithm) that is confirmed within `within` nights after a history."""
    before = max(1, min(history, settings.memory_nights))
    variance = _variance_of_mean(noise, before) + _variance_of_mean(noise, within)
    return max(_SCORE * (1 + _SHORT_NIGHTS / before) * math.sqrt(variance), settings.smallest_change)


def history_needed(noise: NightNoise, change: float, settings: DetectorSettings = SETTINGS) -> int | None:
    """Return the nights of history after which a change (logarithm) would be confirmed; None if none suffice."""
    for nights in range(settings.fewest_nights, settings.memory_nights + 1):
        if smallest_change(noise, nights, settings=settings) <= change:
            return nights
    return None


def confirmed_after(
    noise: NightNoise, change: float, history: int, settings: DetectorSettings = SETTINGS
) -> int | None:
    """Return on which night of a change (logarithm) it is confirmed; None if that is after the weighed nights."""
    for nights in range(settings.hold_nights + 1, WITHIN_NIGHTS + 1):
        if smallest_change(noise, history, nights, settings) <= change:
            return nights
    return None


def _variance_of_mean(noise: NightNoise, count: int) -> float:
    """Return the variance of the mean of neighbouring nights, in which each pair shares correlation^distance."""
    pairs = sum((count - lag) * noise.correlation**lag for lag in range(1, count))
    return (noise.night_variance * (1 + 2 * pairs / count) + noise.error_variance) / count


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2g} %" if ratio < 1 else f"x {1 + ratio:.2g}"
