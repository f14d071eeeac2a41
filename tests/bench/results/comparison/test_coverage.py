"""Intervals of ratios over trials and steps against a known truth: which may be trusted, and which may not."""

from __future__ import annotations

import numpy as np
import pytest

from bench.results.estimate import estimate, ratio
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.results.comparison.experiments import (
    Floats,
    interval,
    over_steps_alone,
    over_trials_then_steps,
    steps_of,
)

EXPERIMENTS, RESAMPLES = 300, 200
TRUTH = 1.1


def _of_figures(above: Floats, below: Floats) -> tuple[float, float]:
    """The interval that figures have: of the trials' medians."""
    sides = [estimate(RUN_STEP_SECONDS, np.median(side, axis=-1).tolist()) for side in (above, below)]
    found = ratio(*sides)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


@pytest.fixture(scope="module")
def covered() -> dict[str, float]:
    """The share of experiments whose interval holds the truth, by the way to make one."""
    random = np.random.default_rng(17)
    pairs = zip(
        steps_of(random, experiments=EXPERIMENTS, trials=8, steps=20, median_s=0.02 * TRUTH, step_deviation=0.03),
        steps_of(random, experiments=EXPERIMENTS, trials=8, steps=20, median_s=0.02, step_deviation=0.03),
        strict=True,
    )
    held = {"figures": 0, "trials then steps": 0, "steps alone": 0}
    for above, below in pairs:
        intervals = {
            "figures": _of_figures(above, below),
            "trials then steps": interval(
                over_trials_then_steps(random, above, RESAMPLES), over_trials_then_steps(random, below, RESAMPLES)
            ),
            "steps alone": interval(
                over_steps_alone(random, above, RESAMPLES), over_steps_alone(random, below, RESAMPLES)
            ),
        }
        for name, (low, high) in intervals.items():
            held[name] += low <= TRUTH <= high
    return {name: count / EXPERIMENTS for name, count in held.items()}


def test_the_interval_of_figures_holds_the_truth(covered: dict[str, float]) -> None:
    assert 0.92 <= covered["figures"] <= 0.99


def test_a_bootstrap_over_trials_then_steps_holds_it_nearly_as_often(covered: dict[str, float]) -> None:
    assert 0.90 <= covered["trials then steps"] <= covered["figures"]


def test_a_bootstrap_over_steps_alone_is_wrong_half_of_the_time(covered: dict[str, float]) -> None:
    """Steps of one trial share its conditions: counted as independent, they make the interval far too narrow."""
    assert covered["steps alone"] <= 0.65


def test_the_bootstrap_and_figures_agree_on_one_experiment() -> None:
    random = np.random.default_rng(23)
    above, below = (
        steps_of(random, experiments=1, trials=40, steps=20, median_s=median_s)[0] for median_s in (0.022, 0.020)
    )
    of_figures = _of_figures(above, below)
    resampled = interval(over_trials_then_steps(random, above, 2000), over_trials_then_steps(random, below, 2000))
    assert resampled == pytest.approx(of_figures, rel=0.005)
