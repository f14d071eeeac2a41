"""Nights of a series: the trials of each, reduced to what the detector keeps, and their robust centre.

A series is one metric of one case, by one definition, on one kind of machine. A night is one visit to it, with some
trials; each trial is reduced to the median of the logarithms of its steps. Everything here is on logarithms, so that a
change of 1 % is 0.01 at any level, and a rate is the mirror image of a time. Knows neither store nor clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

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
