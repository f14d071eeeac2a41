"""Noise of a series: how much its nights differ from each other, how long that lasts, and how much its trials differ.

Night effects are a first-order autoregression: what makes a night slow is often there on the next. Its deviation and
its correlation are found by Whittle's likelihood over a grid, averaged by their probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench.analysis.regressions.night import RESOLUTION
from bench.analysis.regressions.settings import DetectorSettings

CLIP_SDS = 3.0
"""Deviations are cut here where the noise is learned: those of normal nights lie beyond once in 370."""
_PHIS = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
_SHARES = np.array([0.1, 0.25, 0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.4])
"""Night variances that are tried, as shares of the deviations' variance. Above 1: a long memory shows little of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesNoise:
    """night_variance: of the night effect. correlation: of two nights in a row. nights: how many it was learned from.

    long_run_variance: of a mean over many nights, times their number. outlier_rate: of nights.
    """

    night_variance: float
    correlation: float
    long_run_variance: float
    outlier_rate: float
    nights: int


@lru_cache(maxsize=256)
def _shapes(count: int) -> NDArray[np.float64]:
    """Spectra of autoregressions of variance 1, (correlation, 1, frequency), at the frequencies of so many nights."""
    omega = 2 * np.pi * np.arange(1, (count - 1) // 2 + 1) / count
    phi = _PHIS[:, None, None]
    shapes: NDArray[np.float64] = (1 - phi**2) / (1 - 2 * phi * np.cos(omega) + phi**2)
    return shapes


def learn(regimes: Sequence[Sequence[float]], error_variance: float, settings: DetectorSettings) -> SeriesNoise:
    """Return the noise of nights, from the values of each regime's nights, in order.

    error_variance: what of it is the trials', not the night's. Nights that are missing are passed over.
    Source: Whittle 1953.
    """
    deviations: list[float] = []
    for values_of_regime in regimes:
        middle = median(values_of_regime)
        deviations += [value - middle for value in values_of_regime]
    values = np.array(deviations)
    count = len(values)
    # Nights with a spike are cut to a size that an ordinary night may have.
    sd = _robust_sd(values)
    outliers = int((np.abs(values) > CLIP_SDS * sd).sum())
    values.clip(-CLIP_SDS * sd, CLIP_SDS * sd, out=values)
    variance = max(float(values @ values) / max(1, count - 1), RESOLUTION**2)
    # Frequency 0 is the level itself, and each further regime's level takes one of the lowest away.
    lowest = len(regimes) - 1
    shapes = _shapes(count)[:, :, lowest:]
    power = np.abs(np.fft.rfft(values)[1 + lowest : 1 + lowest + shapes.shape[2]]) ** 2 / count
    # Spectrum of each pair of correlation and variance, (correlation, share, frequency), and its log-likelihood.
    night_variances = _SHARES * variance
    spectrum = night_variances[:, None] * shapes + error_variance
    log_weights = -(np.log(spectrum) + power / spectrum).sum(axis=2)
    log_weights -= (0.5 * ((_PHIS - settings.phi_prior_mean) / settings.phi_prior_sd) ** 2)[:, None]
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    of_phi = weights.sum(axis=1)
    mean = float(of_phi @ _PHIS)
    spread = math.sqrt(max(float(of_phi @ _PHIS**2) - mean * mean, 0.0))
    # What is taken away as level lowers a correlation, by this in the first order (Kendall 1954).
    bias = (1 + 3 * mean) * len(regimes) / count
    # Guarded: too low a correlation takes wandering for changes, too high a one only delays. What is new on each night
    # is held: it is known best, and at a fixed variance a higher correlation would leave less of it.
    correlation = min(mean + bias + settings.correlation_guard_sds * spread, float(_PHIS[-1]))
    innovation = float((1 - _PHIS**2) @ (weights @ night_variances))
    night_variance = max(innovation / (1 - correlation**2), RESOLUTION**2)
    return SeriesNoise(
        night_variance=night_variance,
        correlation=correlation,
        long_run_variance=night_variance * (1 + correlation) / (1 - correlation) + error_variance,
        # As if the settings' rate had been seen over `outlier_nights` before.
        outlier_rate=(outliers + settings.outlier_rate * settings.outlier_nights) / (count + settings.outlier_nights),
        nights=count,
    )


def _robust_sd(deviations: NDArray[np.float64]) -> float:
    """Return the deviation of ordinary nights, by the median of all and by their 80 % quantile, whichever is larger.

    The quantile is for values of which most are equal, as rounded ones are, and for those with two modes.
    """
    middle, outer = np.quantile(np.abs(deviations), [0.5, 0.8])
    return max(1.4826 * float(middle), 0.7803 * float(outer), RESOLUTION)


def chi_square_median(freedom: int) -> float:
    """Return the median of a chi-square variable divided by its degrees of freedom, by Wilson and Hilferty's cube."""
    return (1 - 2 / (9 * freedom)) ** 3


def trial_variance(spreads: Sequence[tuple[float, int]]) -> float:
    """Return the variance of one trial, from the variance and the number of trials of each night.

    The median over nights, so that a night with a broken trial counts no more than one whose trials differ a little.
    """
    scaled = [variance / chi_square_median(trials - 1) for variance, trials in spreads]
    return max(median(scaled), RESOLUTION**2) if scaled else RESOLUTION**2
