"""Nights of a series: the trials of each, their robust centre, and the noise of the series.

A series is one metric of one case, with one definition, on one kind of machine. A night is one visit with some trials.
Each trial is reduced to the median logarithm of its steps. Everything here is a logarithm, so that a change of 1 % is
0.01 at any level, and a rate is the mirror image of a time. Knows neither store nor clock.

`learn` estimates the noise of a series. Night effects are a first-order autoregression: what makes a night slow often
persists into the next. Whittle's likelihood over a grid, averaged by probability, gives their deviation and
correlation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench.gate.detector.settings import DetectorSettings

RESOLUTION = 0.001
"""Smallest standard deviation, as a logarithm, that any night is assumed to have: 0.1 %. Rounded samples sometimes
agree to the last digit; without this limit, a difference in the last digit would then be a regression.
"""
OUTLIER_SDS = 3.0
"""Distance at which a trial is as likely broken as good: one normal trial in 370 lies beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSample:
    """One trial, reduced to its centre.

    log_median: median of the logarithms of its steps' values. mad: their median absolute deviation from it, unscaled.
    placement: where it ran, for example a node pool or a list of hosts; "" if unknown.
    """

    log_median: float
    mad: float
    steps: int
    placement: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """All trials of a series on one night.

    number: counts nights or days from any origin; missing numbers are nights on which the series was not run.
    """

    number: int
    trials: tuple[TrialSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Centre:
    """Robust centre of some trials, with the variance of its error; weights: credibility of each trial, 0 to 1."""

    log_value: float
    variance: float
    weights: tuple[float, ...]


def trial_sample(samples: Sequence[float], placement: str = "") -> TrialSample:
    """Reduce the steps of one trial.

    Raises:
        ValueError: there is no sample, or one is not positive and finite.
    """
    if not samples:
        raise ValueError("a trial has no sample; give one value for each measured step")
    for value in samples:
        if not 0 < value < math.inf:
            raise ValueError(f"a sample is {value}; it must be positive and finite")
    logarithms = [math.log(value) for value in samples]
    middle = median(logarithms)
    mad = median(abs(value - middle) for value in logarithms)
    return TrialSample(log_median=middle, mad=mad, steps=len(logarithms), placement=placement)


def require_finite(trials: Iterable[TrialSample]) -> None:
    """Check that the trials' values are valid.

    Raises:
        ValueError: a value is not finite, a deviation negative, or a trial has no step.
    """
    for trial in trials:
        if not math.isfinite(trial.log_median):
            raise ValueError(f"a trial's log_median is {trial.log_median}; it must be finite")
        if not 0 <= trial.mad < math.inf:
            raise ValueError(f"a trial's mad is {trial.mad}; it must be finite and not negative")
        if trial.steps < 1:
            raise ValueError(f"a trial has {trial.steps} steps; it must have at least 1")


def centre(values: Sequence[float], variances: Sequence[float]) -> Centre:
    """Return the centre of values whose errors have these variances, most of which are good.

    The weight of each value is the probability that it is good and not broken, which is one half at `OUTLIER_SDS`.
    Three rounds of reweighting, starting from the median, converge. If two values are far apart, both lose weight, and
    the variance grows.
    Source: iteratively reweighted M-estimation, Huber and Ronchetti 2009, chapter 6.
    """
    middle = median(values)
    weights = [1.0] * len(values)
    total = 0.0
    for _ in range(3):
        weights = [
            1.0 / (1.0 + math.exp(min(60.0, 0.5 * ((value - middle) ** 2 / variance - OUTLIER_SDS**2))))
            for value, variance in zip(values, variances, strict=True)
        ]
        total = sum(weight / variance for weight, variance in zip(weights, variances, strict=True))
        middle = (
            sum(weight * value / variance for value, weight, variance in zip(values, weights, variances, strict=True))
            / total
        )
    return Centre(log_value=middle, variance=1.0 / total, weights=tuple(weights))


CLIP_SDS = 3.0
"""Deviations are clipped here when the noise is learned: one normal night in 370 lies beyond it."""
_PHIS = np.array([-0.3, 0.0, 0.3, 0.55, 0.75, 0.9])
"""Correlations between successive nights that are weighed. For a value between two of them a filter loses little."""
_PHI_EDGES = (-1.0, *((_PHIS[1:] + _PHIS[:-1]) / 2).tolist(), 1.0)
"""Each correlation stands for the interval of correlations nearest to it."""
_SHARES = np.array([0.03, 0.1, 0.2, 0.35, 0.55, 0.8, 1.1, 1.5, 2.2])
"""Candidate variances of each night's innovation, as shares of the deviations' variance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesNoise:
    """Models of the noise, one for each correlation, with their probabilities and their means.

    night_variance: of the night effect. correlation: between the effects of successive nights. nights: number that the
    noise was learned from. long_run_variance: variance of a mean over many nights, times their number. outlier_rate:
    share of nights. outlier_variance: square of the scale of outliers. weights, phis, night_variances,
    long_run_variances: of the models.
    """

    night_variance: float
    correlation: float
    long_run_variance: float
    outlier_rate: float
    outlier_variance: float
    nights: int
    weights: NDArray[np.float64]
    phis: NDArray[np.float64]
    night_variances: NDArray[np.float64]
    long_run_variances: NDArray[np.float64]


@lru_cache(maxsize=256)
def _shapes(count: int, regimes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how autoregressions with `_PHIS` appear in `count` nights from which the levels are also estimated.

    Returns their spectra for innovation variance 1, (correlation, 1, frequency), and the innovation's share of
    variance.
    """
    # Subtracting estimated levels lowers a correlation, by this much to first order (Kendall 1954).
    seen = np.maximum(_PHIS - (1 + 3 * _PHIS) * regimes / count, -0.9)
    # Frequency 0 is the level itself; the level of each further regime removes one more of the lowest frequencies.
    omega = 2 * np.pi * np.arange(regimes, (count - 1) // 2 + 1) / count
    seen = seen[:, None, None]
    return 1 / (1 - 2 * seen * np.cos(omega) + seen**2), 1 - _PHIS**2


@lru_cache(maxsize=8)
def _phi_prior(mean: float, sd: float) -> NDArray[np.float64]:
    """Return the normal prior's probability of the interval that each of `_PHIS` stands for."""
    below = [0.5 * math.erf((edge - mean) / (sd * math.sqrt(2))) for edge in _PHI_EDGES]
    return np.diff(below)


def learn(regimes: Sequence[Sequence[float]], error_variance: float, settings: DetectorSettings) -> SeriesNoise:
    """Return the noise of nights, given the values of each regime's nights, in order.

    error_variance: the part of the variance that comes from trials, not from the night. Missing nights are ignored.
    Source: Whittle 1953.
    """
    deviations: list[float] = []
    for values_of_regime in regimes:
        middle = median(values_of_regime)
        deviations += [value - middle for value in values_of_regime]
    values = np.array(deviations)
    count = len(values)
    # Nights with a spike are clipped to a size that an ordinary night may have.
    sd = robust_sd(values)
    outliers = int((np.abs(values) > CLIP_SDS * sd).sum())
    values.clip(-CLIP_SDS * sd, CLIP_SDS * sd, out=values)
    variance = max(float(values @ values) / max(1, count - len(regimes)), RESOLUTION**2)
    lowest = min(len(regimes), (count - 1) // 2)
    shapes, innovations = _shapes(count, lowest)
    power = np.abs(np.fft.rfft(values)[lowest : lowest + shapes.shape[2]]) ** 2 / count
    # Spectrum of each pair of correlation and variance, (correlation, share, frequency), and its log-likelihood. The
    # innovation's variance is the same for every correlation; the night variance follows from both.
    night_variances = _SHARES * variance / innovations[:, None]
    spectrum = (_SHARES * variance)[None, :, None] * shapes + error_variance
    log_weights = -(np.log(spectrum) + power / spectrum).sum(axis=2)
    log_weights += np.log(_phi_prior(settings.phi_prior_mean, settings.phi_prior_sd))[:, None]
    weights = np.exp(log_weights - log_weights.max())
    weights = np.maximum(weights / weights.sum(), 1e-12)
    of_phi = weights.sum(axis=1)
    night_variance = np.maximum((weights * night_variances).sum(axis=1) / of_phi, RESOLUTION**2)
    long_run = night_variance * (1 + _PHIS) / (1 - _PHIS) + error_variance
    return SeriesNoise(
        night_variance=float(of_phi @ night_variance),
        correlation=float(of_phi @ _PHIS),
        long_run_variance=float(of_phi @ long_run),
        # As if the settings' rate had been observed over `outlier_nights` earlier nights.
        outlier_rate=(outliers + settings.outlier_rate * settings.outlier_nights) / (count + settings.outlier_nights),
        outlier_variance=settings.outlier_sd**2 + CLIP_SDS**2 * variance,
        nights=count,
        weights=of_phi,
        phis=_PHIS,
        night_variances=night_variance,
        long_run_variances=long_run,
    )


def robust_sd(deviations: NDArray[np.float64]) -> float:
    """Return the deviation of ordinary nights: the larger of its estimates by the median and by the 80 % quantile.

    The quantile is for values that are mostly equal, as rounded values are, and for values with two modes.
    """
    ordered = np.sort(np.abs(deviations))
    return max(1.4826 * _quantile(ordered, 0.5), 0.7803 * _quantile(ordered, 0.8), RESOLUTION)


def _quantile(ordered: NDArray[np.float64], share: float) -> float:
    """Return numpy's quantile of ordered values without its checks, which take ten times as long as the calculation."""
    place = share * (len(ordered) - 1)
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    return low + (place - below) * (high - low)


_SPREAD_LIMIT = 2.0
"""A night's variance is clipped at this multiple of the usual one: up to a third of nights may have a broken trial."""


@lru_cache(maxsize=64)
def _cut_mean(freedom: int) -> float:
    """Return the mean of a chi-square variable divided by its degrees of freedom, clipped at `_SPREAD_LIMIT`."""
    from scipy.special import chdtr, chdtrc  # Imported here: reading states needs no scipy.

    limit = _SPREAD_LIMIT * freedom
    return float(chdtr(freedom + 2, limit) + _SPREAD_LIMIT * chdtrc(freedom, limit))


def trial_variance(spreads: Sequence[tuple[float, int]]) -> float:
    """Return the variance of one trial, given the variance and the number of trials of each night.

    This is the mean over nights, weighted by their degrees of freedom, with each night clipped at `_SPREAD_LIMIT` times
    the result. With two trials a night and twelve nights, a median would be uncertain by two thirds, this mean by half.
    Source: Huber 1964, proposal 2.
    """
    if not spreads:
        return RESOLUTION**2
    counts = Counter(trials - 1 for _, trials in spreads)
    expected = sum(nights * count * _cut_mean(count) for count, nights in counts.items())
    result, total, cut = 0.0, sum(variance * (trials - 1) for variance, trials in spreads), 0
    # The sum of min(variance, limit * result) must be expected * result: clip the largest until the next is within the
    # limit.
    for variance, trials in sorted(spreads, reverse=True):
        result = total / (expected - _SPREAD_LIMIT * cut)
        if variance <= _SPREAD_LIMIT * result:
            break
        total -= variance * (trials - 1)
        cut += trials - 1
    return max(result, RESOLUTION**2)
