"""Deviations within and between nights against simulated series of known noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from bench.gate.detector.detector import judge
from bench.gate.detector.night import Night, TrialSample
from bench.gate.detector.settings import SETTINGS
from bench.gate.detector.state import SeriesState
from bench.results.noise import (
    TrialNoise,
    deviation_of,
    nights_needed,
    noise_of,
    smallest_of_night,
    trials_a_night,
)
from workloads.cost_models.absent import Absent


def _series(
    seed: int, *, nights: int = 60, trials: int = 3, trial: float = 0.02, night: float = 0.01
) -> list[list[float]]:
    random = np.random.default_rng(seed)
    levels = random.normal(0.0, night, size=(nights, 1))
    values: list[list[float]] = (0.05 * np.exp(levels + random.normal(0.0, trial, size=(nights, trials)))).tolist()
    return values


def _noise(nights: list[list[float]]) -> tuple[float, float]:
    found = noise_of(nights)
    assert isinstance(found, TrialNoise)
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
    assert isinstance(found, TrialNoise)
    assert found.trial == pytest.approx(deviation_of([math.log(1.02)]))
    assert (found.trials, found.nights) == (8, 2)
    assert found.night == Absent(reason="2 nights in the history, but 3 are needed")
    assert smallest_of_night(found, 3) == trials_a_night(found) == found.night


def test_single_trials_tell_nothing() -> None:
    assert noise_of([[1.0], [1.1]]) == Absent(reason="no run of it has two trials")


# What is promised of the gate, held by its own detector.

TRUE = TrialNoise(trial=0.01, night=0.004, trials=300, nights=100)
SERIES, FIRST_NIGHTS, CHANGED = 40, 20, 3


def _night(random: np.random.Generator, number: int, level: float) -> Night:
    assert isinstance(TRUE.night, float)
    trials = random.normal(random.normal(level, TRUE.night), TRUE.trial, size=3).tolist()
    return Night(number=number, trials=tuple(TrialSample(log_median=one, mad=0.0, steps=20) for one in trials))


@pytest.fixture(scope="module")
def settled() -> list[SeriesState]:
    """What the detector knows of series of a hundred nights that are alike but for this noise."""
    random = np.random.default_rng(1)
    states = []
    for _ in range(SERIES):
        state: SeriesState | None = None
        for number in range(SETTINGS.memory_nights):
            state = judge(state, _night(random, number, 0.0)).state
        assert state is not None
        states.append(state)
    return states


def _is_within_its_interval(found: int, of: int) -> bool:
    """Whether so many successes are what a chance of 80 % gives, in the middle 95 %."""
    low, high = binom.interval(0.95, of, 0.8)
    return bool(low <= found <= high)


@pytest.mark.slow
def test_the_smallest_change_of_a_night_is_suspected_on_80_of_100_first_nights(settled: list[SeriesState]) -> None:
    change = smallest_of_night(TRUE, 3)
    assert isinstance(change, float)
    random = np.random.default_rng(2)
    nights = [
        judge(state, _night(random, SETTINGS.memory_nights, math.log1p(change)))
        for state in settled
        for _ in range(FIRST_NIGHTS)
    ]
    assert _is_within_its_interval(sum(one.verdict == "suspicion" for one in nights), len(nights))


def test_after_as_many_nights_as_are_told_a_change_is_confirmed(settled: list[SeriesState]) -> None:
    """Of the smallest change that takes no longer, in about four of five series."""
    nights = 6
    sizes = [size / 10_000 for size in range(50, 1000)]
    change = next(size for size in sizes if (nights_needed(TRUE, size) or 99) <= nights)
    random = np.random.default_rng(3)
    confirmed = 0
    for state in settled:
        for _ in range(CHANGED):
            now = state
            for number in range(SETTINGS.memory_nights, SETTINGS.memory_nights + nights):
                judged = judge(now, _night(random, number, math.log1p(change)))
                now = judged.state
                if judged.verdict == "page":
                    confirmed += 1
                    break
    assert _is_within_its_interval(confirmed, SERIES * CHANGED)


def test_as_many_trials_a_night_are_told_as_show_the_change() -> None:
    noise = TrialNoise(trial=0.02, night=0.005, trials=100, nights=50)
    needed = trials_a_night(noise, 0.03)
    assert isinstance(needed, int)
    shown = [smallest_of_night(noise, count) for count in (needed - 1, needed)]
    assert isinstance(shown[0], float)
    assert isinstance(shown[1], float)
    assert shown[1] <= 0.03 < shown[0]


def test_where_nights_differ_too_much_no_number_of_trials_is_told_but_nights_are() -> None:
    noise = TrialNoise(trial=0.01, night=0.02, trials=100, nights=50)
    found = trials_a_night(noise, 0.03)
    assert isinstance(found, Absent)
    assert found.reason == (
        "nights differ by 2.0 %, so no number of trials shows 3 % in one night; after 50 nights of history the gate"
        " would not confirm it either"
    )
    assert nights_needed(noise, 0.03) is None


def test_where_one_night_is_too_few_the_nights_are_told_after_which_the_gate_confirms_it() -> None:
    found = trials_a_night(TrialNoise(trial=0.01, night=0.01, trials=100, nights=50), 0.03)
    assert isinstance(found, Absent)
    assert found.reason == (
        "nights differ by 1.0 %, so no number of trials shows 3 % in one night; after 50 nights of history the gate"
        " confirms it within 5 nights"
    )


def test_a_short_history_takes_longer_to_confirm() -> None:
    known = [TrialNoise(trial=0.01, night=0.01, trials=90, nights=nights) for nights in (12, 30, 100)]
    nights = [nights_needed(noise, 0.03) or 99 for noise in known]
    assert nights == sorted(nights, reverse=True)
    assert nights[0] > nights[2]
