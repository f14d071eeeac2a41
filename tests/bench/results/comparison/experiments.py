"""Simulated experiments of trials and steps with a known truth, and bootstraps of them, to judge intervals by."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def steps_of(
    random: np.random.Generator,
    *,
    experiments: int,
    trials: int,
    steps: int,
    median_s: float,
    trial_deviation: float = 0.03,
    step_deviation: float = 0.05,
) -> Floats:
    """Step times by experiment, trial and step: each trial has conditions of its own, which all of its steps share."""
    of_trial = random.normal(0.0, trial_deviation, size=(experiments, trials, 1))
    of_step = random.normal(0.0, step_deviation, size=(experiments, trials, steps))
    times_s: Floats = median_s * np.exp(of_trial + of_step)
    return times_s


def centre(steps_s: Floats) -> Floats:
    """The mean of the trials' log medians, over the last two axes: trials and steps."""
    found: Floats = np.log(np.median(steps_s, axis=-1)).mean(axis=-1)
    return found


def over_trials_then_steps(random: np.random.Generator, steps_s: Floats, resamples: int) -> Floats:
    """Centres of one side's (trials, steps), resampled as they were drawn: trials, and within each its steps."""
    trials, steps = steps_s.shape
    chosen = random.integers(trials, size=(resamples, trials, 1))
    within = random.integers(steps, size=(resamples, trials, steps))
    return centre(steps_s[chosen, within])


def over_steps_alone(random: np.random.Generator, steps_s: Floats, resamples: int) -> Floats:
    """Centres of one side's (trials, steps), resampled as if all its steps were independent draws: they are not."""
    trials, steps = steps_s.shape
    chosen = random.integers(trials * steps, size=(resamples, trials, steps))
    return centre(steps_s.reshape(-1)[chosen])


def interval(above: Floats, below: Floats) -> tuple[float, float]:
    """The middle 95 % of the ratio of two sides' resampled centres."""
    low, high = np.quantile(above - below, (0.025, 0.975))
    return float(np.exp(low)), float(np.exp(high))


# Trials of a shape: 0 is their median or their mean, and 1 their standard deviation


Shape = Literal["normal", "lognormal", "exponential", "modes 10 %", "modes 30 %", "modes 50 %"]
"""lognormal: of log deviation 0.6, a skewness of 2.3. modes: this share of trials is slow, with a jitter of a twentieth
of the distance between both modes."""
SHAPES: tuple[Shape, ...] = get_args(Shape)
SKEWED: tuple[Shape, ...] = ("lognormal", "exponential")
_LOG_DEVIATION, _JITTER = 0.6, 0.05


def trials_of(
    random: np.random.Generator, shape: Shape, size: tuple[int, ...], about: Literal["median", "mean"]
) -> Floats:
    """Trials of this shape, as far from their median or mean as their standard deviation is 1."""
    if shape == "normal":
        return random.normal(size=size)
    if shape == "exponential":
        return random.exponential(size=size) - (math.log(2) if about == "median" else 1)
    if shape == "lognormal":
        square = math.exp(_LOG_DEVIATION**2)
        above = random.lognormal(0.0, _LOG_DEVIATION, size) - (1 if about == "median" else math.sqrt(square))
        return np.asarray(above / math.sqrt(square * (square - 1)))
    slow = {"modes 10 %": 0.1, "modes 30 %": 0.3, "modes 50 %": 0.5}[shape]
    values = (random.random(size) < slow) + random.normal(0.0, _JITTER, size)
    # The median lies in the faster mode where that has more than half: at so much of its own distribution.
    median = 0.5 if slow == 0.5 else _JITTER * NormalDist().inv_cdf(0.5 / (1 - slow))
    return np.asarray((values - (median if about == "median" else slow)) / math.sqrt(slow * (1 - slow) + _JITTER**2))


def slow_modes(random: np.random.Generator, slow: float, size: tuple[int, ...], jitter: float) -> Floats:
    """Logarithms of trials of which this share takes 20 % longer, with a jitter about both modes."""
    return np.asarray(math.log(1.2) * (random.random(size) < slow) + random.normal(0.0, jitter, size))
