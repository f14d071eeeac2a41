"""Nights of a series: the trials of each, their robust centre, and the noise of the series.

A series is one metric of one case, by one definition, on one kind of machine. A night is one visit to it, with some
trials; each trial is reduced to the median of the logarithms of its steps. Everything here is on logarithms, so that a
change of 1 % is 0.01 at any level, and a rate is the mirror image of a time. Knows neither store nor clock.

`learn` finds the noise of a series. Night effects are a first-order autoregression: what makes a night slow is often
there on the next. Whittle's likelihood over a grid, averaged by its probability, gives their deviation and correlation.
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
"""Standard deviation, in logarithms, that no night is believed to be better than: 0.1 %. Rounded samples agree to the
last digit at times, and without it the next digit would then be a regression."""
OUTLIER_SDS = 3.0
"""Where a trial is as likely a broken one as a good one: a normal trial lies beyond once in 370."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSample:
    """One trial, reduced.

    log_median: median of the logarithms of its steps' values. mad: their median absolute deviation from it, unscaled.
    placement: what it ran on, such as a node pool or a list of hosts, "" where that is not known.
    """

    log_median: float
    mad: float
    steps: int
    placement: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """All trials of a series on one night.

    number: counts nights or days, from any beginning; missing numbers are nights on which the series was not run.
    """

    number: int
    trials: tuple[TrialSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Centre:
    """Robust centre of some trials, with the variance of its error; weights: how far each trial is believed, 0 to 1."""

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
    """Check what the trials hold.

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

    Each value is weighted by the odds that it is good, not broken, which are even at `OUTLIER_SDS`; three rounds of
    reweighting from the median settle it. Two values that are far apart are both doubted, and the variance says so.
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
"""Deviations are cut here where the noise is learned: those of normal nights lie beyond once in 370."""
_PHIS = np.array([-0.3, 0.0, 0.3, 0.55, 0.75, 0.9])
"""Correlations of two nights in a row that are weighed. Between two of them a filter loses little."""
_PHI_EDGES = (-1.0, *((_PHIS[1:] + _PHIS[:-1]) / 2).tolist(), 1.0)
"""Each stands for the correlations that are nearest to it."""
_SHARES = np.array([0.03, 0.1, 0.2, 0.35, 0.55, 0.8, 1.1, 1.5, 2.2])
"""Variances of what is new on each night that are tried, as shares of the deviations' variance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesNoise:
    """Models of the noise, one for each correlation, with their probabilities; and their means.

    night_variance: of the night effect. correlation: of the effects of two nights in a row. nights: how many it was
    learned from. long_run_variance: of a mean over many nights, times their number. outlier_rate: of nights.
    outlier_variance: the square of the scale of outliers. weights, phis, night_variances, long_run_variances: of the
    models.
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
    """Return how autoregressions of `_PHIS` look in so many nights, whose levels are taken from the same nights.

    Their spectra of innovation variance 1, (correlation, 1, frequency), and the innovation's share of the variance.
    """
    # What is taken away as level lowers a correlation, by this in the first order (Kendall 1954).
    seen = np.maximum(_PHIS - (1 + 3 * _PHIS) * regimes / count, -0.9)
    # Frequency 0 is the level itself, and each further regime's level takes one of the lowest away.
    omega = 2 * np.pi * np.arange(regimes, (count - 1) // 2 + 1) / count
    seen = seen[:, None, None]
    return 1 / (1 - 2 * seen * np.cos(omega) + seen**2), 1 - _PHIS**2


@lru_cache(maxsize=8)
def _phi_prior(mean: float, sd: float) -> NDArray[np.float64]:
    """Return the normal prior's probability of the correlations that each of `_PHIS` stands for."""
    below = [0.5 * math.erf((edge - mean) / (sd * math.sqrt(2))) for edge in _PHI_EDGES]
    return np.diff(below)


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
    sd = robust_sd(values)
    outliers = int((np.abs(values) > CLIP_SDS * sd).sum())
    values.clip(-CLIP_SDS * sd, CLIP_SDS * sd, out=values)
    variance = max(float(values @ values) / max(1, count - len(regimes)), RESOLUTION**2)
    lowest = min(len(regimes), (count - 1) // 2)
    shapes, innovations = _shapes(count, lowest)
    power = np.abs(np.fft.rfft(values)[lowest : lowest + shapes.shape[2]]) ** 2 / count
    # Spectrum of each pair of correlation and variance, (correlation, share, frequency), and its log-likelihood. What
    # is new on each night is the same whatever the correlation is believed to be: the variance follows from it.
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
        # As if the settings' rate had been seen over `outlier_nights` before.
        outlier_rate=(outliers + settings.outlier_rate * settings.outlier_nights) / (count + settings.outlier_nights),
        outlier_variance=settings.outlier_sd**2 + CLIP_SDS**2 * variance,
        nights=count,
        weights=of_phi,
        phis=_PHIS,
        night_variances=night_variance,
        long_run_variances=long_run,
    )


def robust_sd(deviations: NDArray[np.float64]) -> float:
    """Return the deviation of ordinary nights, by the median of all and by their 80 % quantile, whichever is larger.

    The quantile is for values of which most are equal, as rounded ones are, and for those with two modes.
    """
    ordered = np.sort(np.abs(deviations))
    return max(1.4826 * _quantile(ordered, 0.5), 0.7803 * _quantile(ordered, 0.8), RESOLUTION)


def _quantile(ordered: NDArray[np.float64], share: float) -> float:
    """Return numpy's own quantile of ordered values, without its checks, which take ten times as long as these few."""
    place = share * (len(ordered) - 1)
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    return low + (place - below) * (high - low)


_SPREAD_LIMIT = 2.0
"""Times the usual variance that one night's counts for at most: up to a third of the nights may have a broken trial."""


@lru_cache(maxsize=64)
def _cut_mean(freedom: int) -> float:
    """Return the mean of a chi-square variable divided by its degrees of freedom, cut at `_SPREAD_LIMIT`."""
    from scipy.special import chdtr, chdtrc  # Imported here: what only reads states needs no scipy.

    limit = _SPREAD_LIMIT * freedom
    return float(chdtr(freedom + 2, limit) + _SPREAD_LIMIT * chdtrc(freedom, limit))


def trial_variance(spreads: Sequence[tuple[float, int]]) -> float:
    """Return the variance of one trial, from the variance and the number of trials of each night.

    The mean over nights, weighted by their degrees of freedom, none of which counts for more than `_SPREAD_LIMIT` times
    the result: of two trials a night a median would leave it uncertain by two thirds after twelve nights, this by half.
    Source: Huber 1964, proposal 2.
    """
    if not spreads:
        return RESOLUTION**2
    counts = Counter(trials - 1 for _, trials in spreads)
    expected = sum(nights * count * _cut_mean(count) for count, nights in counts.items())
    result, kept, cut = 0.0, sum(variance * (trials - 1) for variance, trials in spreads), 0
    # The sum of min(variance, limit * result) is to be expected * result: cut the largest until the next is within it.
    for variance, trials in sorted(spreads, reverse=True):
        result = kept / (expected - _SPREAD_LIMIT * cut)
        if variance <= _SPREAD_LIMIT * result:
            break
        kept -= variance * (trials - 1)
        cut += trials - 1
    return max(result, RESOLUTION**2)
