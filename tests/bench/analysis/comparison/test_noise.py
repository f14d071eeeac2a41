"""Deviations within and between nights against simulated series of known noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.analysis.mfu import Absent
from bench.analysis.noise import (
    Noise,
    deviation_of,
    nights_needed,
    noise_of,
    smallest_of_night,
    trials_a_night,
)


def _series(
    seed: int, *, nights: int = 60, trials: int = 3, trial: float = 0.02, night: float = 0.01
) -> list[list[float]]:
    random = np.random.default_rng(seed)
    levels = random.normal(0.0, night, size=(nights, 1))
    values: list[list[float]] = (0.05 * np.exp(levels + random.normal(0.0, trial, size=(nights, trials)))).tolist()
    return values


def _noise(nights: list[list[float]]) -> tuple[float, float]:
    found = noise_of(nights)
    assert isinstance(found, Noise)
    assert isinstance(found.night, float)
    return found.trial, found.night


def test_both_deviations_are_found_again() -> None:
    found = np.array([_noise(_series(seed)) for seed in range(60)])
    assert np.median(found[:, 0]) == pytest.approx(0.02, rel=0.05)
    assert np.median(found[:, 1]) == pytest.approx(0.01, rel=0.15)


def test_without_a_deviation_of_nights_little_is_found() -> None:
    found = [_noise(_series(seed, night=0.0))[1] for seed in range(60)]
    assert float(np.median(found)) < 0.005


@pytest.mark.parametrize("seed", range(3))
def test_bad_trials_spikes_and_a_change_of_level_move_them_little(seed: int) -> None:
    nights = _series(seed)
    worse = [list(values) for values in nights]
    worse[7][1] *= 3
    worse[20] = [2 * value for value in worse[20]]
    worse[40:] = [[1.3 * value for value in values] for values in worse[40:]]
    plain, damaged = _noise(nights), _noise(worse)
    assert damaged[0] == pytest.approx(plain[0], rel=0.1)
    assert damaged[1] == pytest.approx(plain[1], abs=0.01)  # By variances it would be a tenth.


def test_the_deviation_of_differences_is_that_of_the_values() -> None:
    values = np.random.default_rng(3).normal(5.0, 0.7, size=(4000, 2))
    assert deviation_of((values[:, 1] - values[:, 0]).tolist()) == pytest.approx(0.7, rel=0.05)


def test_runs_beside_tell_of_trials_and_not_of_nights() -> None:
    found = noise_of([[1.0, 1.02], [1.5, 1.53]], [[0.9, 0.918], [0.7, 0.714]])
    assert isinstance(found, Noise)
    assert found.trial == pytest.approx(deviation_of([math.log(1.02)]))
    assert (found.trials, found.nights) == (8, 2)
    assert found.night == Absent(reason="2 night(s) in the history, of 3 that are needed")
    assert smallest_of_night(found, 3) == trials_a_night(found) == found.night


def test_single_trials_tell_nothing() -> None:
    assert noise_of([[1.0], [1.1]]) == Absent(reason="no run of it has two trials")


@pytest.mark.parametrize(("trials", "seed"), [(3, 1), (10, 2)])
def test_the_smallest_change_of_a_night_is_shown_in_80_of_100_nights(trials: int, seed: int) -> None:
    """By a two-sided test at 5 % against a level that is known."""
    noise = Noise(trial=0.02, night=0.008, trials=100, nights=50)
    change = smallest_of_night(noise, trials)
    assert isinstance(change, float)
    deviation = math.hypot(0.008, 0.02 / math.sqrt(trials))
    random = np.random.default_rng(seed)
    nights = [
        np.mean(math.log1p(change) + random.normal(0.0, 0.008) + random.normal(0.0, 0.02, trials)) for _ in range(4000)
    ]
    assert np.mean(np.abs(nights) > 1.959964 * deviation) == pytest.approx(0.8, abs=0.02)


def test_as_many_trials_a_night_are_told_as_show_the_change() -> None:
    noise = Noise(trial=0.02, night=0.005, trials=100, nights=50)
    needed = trials_a_night(noise, 0.03)
    assert isinstance(needed, int)
    shown = [smallest_of_night(noise, count) for count in (needed - 1, needed)]
    assert isinstance(shown[0], float)
    assert isinstance(shown[1], float)
    assert shown[1] <= 0.03 < shown[0]


def test_where_nights_differ_too_much_no_number_of_trials_is_told_but_nights_are() -> None:
    noise = Noise(trial=0.01, night=0.02, trials=100, nights=50)
    found = trials_a_night(noise, 0.03)
    assert isinstance(found, Absent)
    assert found.reason == ("nights differ by 2.0 %, so that no number of trials shows 3 % in one night; 4 nights do")
    assert nights_needed(noise, 0.03) == 4
