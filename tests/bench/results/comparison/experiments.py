"""Simulated experiments of trials and steps with a known truth, and bootstraps of them, to judge intervals by."""

from __future__ import annotations

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
