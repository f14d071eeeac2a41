"""The level of a regime, night by night: a Kalman filter for each hypothesis of when, if ever, the level changed.

Under each hypothesis a night's value is level + night effect + error of its trials, where the effect is a first-order
autoregression. Or the night is an outlier, which something else made slow or fast, and which says little about the
level. The filter weighs both possibilities of each night by their probabilities. A filter takes each night once, so a
night costs the same however long the history is.

All filters of a series run together, as one array of shape (moment, model, hypothesis): `moment` indexes the quantities
below, `model` the models of the noise, and hypothesis 0 is no change.

Source: Willsky and Jones 1976 (jumps of unknown size in linear systems); Pena and Guttman 1988 (outliers in a Kalman
filter as a mixture, collapsed to its moments after each night).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.gate.detector.night import SeriesNoise
from bench.gate.detector.settings import DetectorSettings

LEVEL, EFFECT, LEVEL_VARIANCE, COVARIANCE, EFFECT_VARIANCE = range(5)
"""Means of level and night effect, and their covariance."""
GOOD = 5
"""Probability that the last night was not an outlier."""
LOG_LIKELIHOOD = 6
"""Of a change: of all nights since the onset, relative to no change. Of no change: of the last night."""
LEVEL_BEFORE, VARIANCE_BEFORE = 7, 8
"""Of a change: the level before it."""
MOMENTS = 9

Filters = NDArray[np.float64]
SMALLEST = 1e-300


class NightValue(msgspec.Struct, array_like=True, frozen=True):
    """A night's value: level + share * effect + an error with this variance. share: below 1 if there were reruns."""

    number: int
    log_value: float
    variance: float
    share: float = 1.0


class Filter(msgspec.Struct, array_like=True):
    """Estimates after some nights under one hypothesis: means and covariance of level and night effect."""

    number: int
    level: float
    effect: float
    level_variance: float
    covariance: float
    effect_variance: float

    def predict(self, share: float = 1.0) -> tuple[float, float]:
        """Return mean and variance of level + share * effect."""
        variance = self.level_variance + share * (2 * self.covariance + share * self.effect_variance)
        return self.level + share * self.effect, variance


class Change(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The hypothesis that the level changed on night `onset`, over all models of the noise.

    place: index of the hypothesis among the filters. change: of the logarithm.
    """

    place: int
    onset: int
    probability: float
    change: float
    change_variance: float
    level: float
    level_variance: float
    level_before: float
    variance_before: float


def first_filters(log_value: float, variance: float, noise: SeriesNoise) -> Filters:
    """Return the filters before the first night, for a level with this prior value and variance."""
    filters = np.zeros((MOMENTS, len(noise.weights), 1))
    filters[LEVEL] = log_value
    filters[LEVEL_VARIANCE] = variance
    filters[EFFECT_VARIANCE] = noise.night_variances[:, None]
    filters[GOOD] = 1.0
    return filters


def move(before: Filters, passed: int, noise: SeriesNoise, settings: DetectorSettings) -> Filters:
    """Return the filters `passed` nights later, before a value: old effects have faded, and new ones have come."""
    now = before.copy()
    faded = (noise.phis**passed)[:, None]
    now[EFFECT] *= faded
    now[COVARIANCE] *= faded
    now[EFFECT_VARIANCE] *= faded * faded
    now[EFFECT_VARIANCE] += (1 - faded * faded) * noise.night_variances[:, None]
    # The level drifts so little that only about `memory_nights` nights determine it: with this drift, a steady filter's
    # gain is 1 / memory_nights.
    now[LEVEL_VARIANCE] += passed * noise.long_run_variances[:, None] / settings.memory_nights**2
    return now


def with_change(filters: Filters, settings: DetectorSettings) -> Filters:
    """Return the filters of a night with one more hypothesis: the level changes on this night by an unknown amount."""
    new = filters[:, :, :1].copy()
    new[LEVEL_BEFORE] = new[LEVEL]
    new[VARIANCE_BEFORE] = new[LEVEL_VARIANCE]
    new[LEVEL_VARIANCE] += settings.widest_change_sd**2
    new[GOOD] = 1.0
    new[LOG_LIKELIHOOD] = 0.0
    return np.concatenate([filters, new], axis=2)


def see(now: Filters, value: NightValue, noise: SeriesNoise, settings: DetectorSettings, *, has_onset: bool) -> None:
    """Update the filters, in place, with the night's value; the likelihoods are relative to no change.

    The filters have already moved to the night. has_onset: under the last hypothesis the level changed on this night,
    so the night is no outlier; otherwise the change would have come later.
    """
    share = value.share
    gain_level = now[LEVEL_VARIANCE] + share * now[COVARIANCE]
    gain_effect = now[COVARIANCE] + share * now[EFFECT_VARIANCE]
    spread = gain_level + share * gain_effect + value.variance
    deviation = value.log_value - now[LEVEL] - share * now[EFFECT]
    square = deviation * deviation
    # An outlier is likelier after another: what disturbs a night may last.
    rate = noise.outlier_rate
    rates = rate + max(settings.outlier_stays - rate, 0.0) * (1 - now[GOOD])
    if has_onset:
        rates[:, -1] = 0.0
    # Densities without the constant factor of the normal density. Outliers follow Student's t with 2 degrees of
    # freedom, so that no outlier is impossible, however large.
    wide = spread + noise.outlier_variance
    bad = rates * (0.8862269 / np.sqrt(wide) * (1 + square / (2 * wide)) ** -1.5)
    good = (1 - rates) * np.exp(-0.5 * square / spread) / np.sqrt(spread)
    both = np.maximum(good + bad, SMALLEST)
    log_likelihood = np.log(both)
    now[LOG_LIKELIHOOD, :, 1:] += log_likelihood[:, 1:] - log_likelihood[:, :1]
    now[LOG_LIKELIHOOD, :, 0] = log_likelihood[:, 0]
    good /= both
    now[GOOD] = good
    # Mean and covariance of the mixture "value used or not", in which it is used with probability `good`.
    gain_level /= spread
    gain_effect /= spread
    shrink = good * spread - good * (1 - good) * square
    now[LEVEL] += good * gain_level * deviation
    now[EFFECT] += good * gain_effect * deviation
    now[LEVEL_VARIANCE] -= gain_level * gain_level * shrink
    now[COVARIANCE] -= gain_level * gain_effect * shrink
    now[EFFECT_VARIANCE] -= gain_effect * gain_effect * shrink


def log_odds(
    filters: Filters, past_levels: Sequence[tuple[float, float]], settings: DetectorSettings
) -> NDArray[np.float64]:
    """Return the log odds of each change against none (model, change), from the prior rate of changes and the nights.

    past_levels: means and variances of the levels of earlier regimes, because a change that broke a series is often
    reverted. The filters ran with one wide prior of the change. It is replaced here by the prior of the settings. This
    is exact for normal densities as long as the wide prior is flat where the nights put the change.
    """
    changes = filters[:, :, 1:]
    change = changes[LEVEL] - changes[LEVEL_BEFORE]
    variance = changes[LEVEL_VARIANCE] + changes[VARIANCE_BEFORE]
    sds = np.array(settings.change_sds)
    shares = np.array(settings.change_shares) / sum(settings.change_shares)
    prior = _density(change[..., None], variance[..., None] + sds**2) @ shares
    if past_levels:
        levels = np.array(past_levels)
        spreads = changes[LEVEL_VARIANCE][..., None] + levels[:, 1] + settings.return_sd**2
        returns = _density(changes[LEVEL][..., None] - levels[:, 0], spreads).mean(axis=2)
        prior += settings.return_share * (returns - prior)
    wide = _density(change, variance + settings.widest_change_sd**2)
    ratio = np.log(np.maximum(prior, SMALLEST)) - np.log(np.maximum(wide, SMALLEST))
    result: NDArray[np.float64] = np.log(settings.changes_per_night) + changes[LOG_LIKELIHOOD] + ratio
    return result


def _density(deviation: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the normal density without its constant factor."""
    density: NDArray[np.float64] = np.exp(-0.5 * deviation * deviation / variance) / np.sqrt(variance)
    return density
