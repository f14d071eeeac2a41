"""Level of a regime, night by night: a Kalman filter under each hypothesis of when the level changed, if it did.

Under each hypothesis a night's value is level + night effect + error of its trials, where the effect is a first-order
autoregression; or the night is an outlier, which something else made slow or fast, and says little of the level. The
filter keeps both possibilities of each night in their proportion. A filter takes each night once, so a series costs the
same however long its history is.

Source: Willsky and Jones 1976 (jumps of unknown size in linear systems); Pena and Guttman 1988 (outliers in a Kalman
filter as a mixture, collapsed to its moments after each night).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import TypeVar

import msgspec

from bench.gate.detector.night import SeriesNoise
from bench.gate.detector.settings import DetectorSettings

AnyFilter = TypeVar("AnyFilter", bound="Filter")


class NightValue(msgspec.Struct, array_like=True, frozen=True):
    """A night's value: level + share * effect + an error of this variance. share: below 1 where reruns took part."""

    number: int
    log_value: float
    variance: float
    share: float = 1.0


class Filter(msgspec.Struct, array_like=True):
    """What is known after some nights under one hypothesis: means and covariance of level and night effect.

    good: probability that the last night was no outlier. log_likelihood: of the last night; of a candidate, of all
    nights since its onset, with that of no change taken off.
    """

    number: int
    level: float
    effect: float
    level_variance: float
    covariance: float
    effect_variance: float
    good: float = 1.0
    log_likelihood: float = 0.0

    def predict(self, share: float = 1.0) -> tuple[float, float]:
        """Return mean and variance of level + share * effect."""
        variance = self.level_variance + share * (2 * self.covariance + share * self.effect_variance)
        return self.level + share * self.effect, variance


class Candidate(Filter):
    """The hypothesis that the level changed on night `onset`, before which it was `level_before`."""

    onset: int = 0
    level_before: float = 0.0
    variance_before: float = 0.0

    @property
    def change(self) -> float:
        return self.level - self.level_before

    @property
    def change_variance(self) -> float:
        return self.level_variance + self.variance_before


def moved(before: AnyFilter, number: int, noise: SeriesNoise, settings: DetectorSettings) -> AnyFilter:
    """Return the filter on a later night, before its value is seen: the effect has faded, and new one has come."""
    now = copy(before)
    passed = number - before.number
    faded = noise.correlation**passed
    now.number = number
    now.effect *= faded
    now.covariance *= faded
    now.effect_variance = faded * faded * before.effect_variance + (1 - faded * faded) * noise.night_variance
    # The level wanders so little that only some `memory_nights` bear on it: by the drift at which a steady filter's
    # gain is 1 / memory_nights.
    now.level_variance += passed * noise.long_run_variance / settings.memory_nights**2
    return now


def changed(unchanged: Filter, settings: DetectorSettings) -> Candidate:
    """Return the hypothesis that the level changes on this night, by an unknown amount, from a filter moved to it."""
    return Candidate(
        number=unchanged.number,
        level=unchanged.level,
        effect=unchanged.effect,
        level_variance=unchanged.level_variance + settings.widest_change_sd**2,
        covariance=unchanged.covariance,
        effect_variance=unchanged.effect_variance,
        onset=unchanged.number,
        level_before=unchanged.level,
        variance_before=unchanged.level_variance,
    )


def unchanged_since(candidate: Candidate) -> Filter:
    """Return the filter of the regime that a confirmed change has begun."""
    return Filter(
        number=candidate.number,
        level=candidate.level,
        effect=candidate.effect,
        level_variance=candidate.level_variance,
        covariance=candidate.covariance,
        effect_variance=candidate.effect_variance,
        good=candidate.good,
    )


def see(
    now: Filter, value: NightValue, noise: SeriesNoise, settings: DetectorSettings, *, is_onset: bool = False
) -> None:
    """Take in the value of the night that the filter has moved to.

    is_onset: the level changed on this night, so that it is no outlier; were it one, the change would have come later.
    """
    share = value.share
    gain_level = now.level_variance + share * now.covariance
    gain_effect = now.covariance + share * now.effect_variance
    spread = gain_level + share * gain_effect + value.variance
    deviation = value.log_value - now.level - share * now.effect
    wide = spread + settings.outlier_sd**2
    square = deviation * deviation
    # An outlier is likelier after another: what disturbs a night may last.
    rate = noise.outlier_rate
    rate += max(settings.outlier_stays - rate, 0.0) * (1 - now.good)
    if is_onset:
        rate = 0.0
    # Densities without the factor that both have. Dividing both by the wider one's exponential keeps them above 0.
    good_density = (1 - rate) * math.exp(0.5 * square * (1 / wide - 1 / spread)) / math.sqrt(spread)
    bad_density = rate / math.sqrt(wide)
    now.log_likelihood += math.log(good_density + bad_density) - 0.5 * square / wide
    good = now.good = good_density / (good_density + bad_density)
    # Mean and covariance of the mixture "taken in, or not", in which it is taken in with this probability.
    gain_level /= spread
    gain_effect /= spread
    shrink = good * spread - good * (1 - good) * square
    now.level += good * gain_level * deviation
    now.effect += good * gain_effect * deviation
    now.level_variance -= gain_level * gain_level * shrink
    now.covariance -= gain_level * gain_effect * shrink
    now.effect_variance -= gain_effect * gain_effect * shrink


def log_odds(candidate: Candidate, past_levels: Sequence[tuple[float, float]], settings: DetectorSettings) -> float:
    """Return the logarithm of the odds of a change against none: how often there is one, and what the nights say.

    past_levels: means and variances of the levels of earlier regimes, since what broke a series is often taken back.
    The filter ran with one wide prior of the change; it is replaced here by the settings' own, which is exact for
    normal densities as long as the wide one is flat where the nights leave the change.
    """
    change, variance = candidate.change, candidate.change_variance
    sds = settings.change_sds
    prior = sum(_density(change, variance + sd * sd) for sd in sds) / len(sds)
    if past_levels:
        returns = [
            _density(candidate.level - level, candidate.level_variance + spread + settings.return_sd**2)
            for level, spread in past_levels
        ]
        prior += settings.return_share * (sum(returns) / len(returns) - prior)
    wide = _density(change, variance + settings.widest_change_sd**2)
    return (
        math.log(settings.changes_per_night)
        + candidate.log_likelihood
        + math.log(max(prior, 1e-300) / max(wide, 1e-300))
    )


def _density(deviation: float, variance: float) -> float:
    """Return the normal density, without the constant factor."""
    return math.exp(-0.5 * deviation * deviation / variance) / math.sqrt(variance)
