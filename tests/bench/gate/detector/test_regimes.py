"""Regimes of whole series against truths."""

from __future__ import annotations

import math
import random

import pytest

from bench.gate.detector.night import Night
from bench.gate.detector.regimes import regimes
from tests.bench.gate.detector.made_nights import QUIET, Noise, made, trial


def test_noiseless_regimes_have_exact_onsets_and_levels() -> None:
    found = regimes(made([0.0] * 25 + [0.05] * 20 + [0.02] * 15, QUIET))
    assert [(one.first, one.last, one.nights) for one in found] == [(0, 24, 25), (25, 44, 20), (45, 59, 15)]
    assert [(one.onset_low, one.onset_high) for one in found] == [(0, 0), (25, 25), (45, 45)]
    assert [one.log_level for one in found] == pytest.approx([0.0, 0.05, 0.02])
    assert all(one.log_level_low < one.log_level < one.log_level_high for one in found)


def test_ranges_of_onsets_hold_the_truth_as_often_as_stated() -> None:
    noise = Noise(night_sd=0.01, trial_sd=0.005)
    held = 0
    for seed in range(20):
        found = regimes(made([0.0] * 25 + [0.025] * 25, noise, seed))
        held += any(one.onset_low <= 25 <= one.onset_high for one in found[1:])
    assert held >= 16  # 19 expected of 20; fewer than 16 has probability 0.003.


def test_a_series_without_change_is_one_regime() -> None:
    found = [len(regimes(made([0.0] * 80, Noise(), seed))) for seed in range(6)]
    assert found == [1] * 6


def test_a_spike_is_no_regime() -> None:
    assert len(regimes(made([0.0] * 30 + [0.1] * 2 + [0.0] * 30, Noise()))) == 1


def test_nights_are_numbers_where_some_are_missing() -> None:
    nights = [night for night in made([0.0] * 30 + [0.05] * 30, QUIET) if night.number % 5 != 2]
    found = regimes(nights)
    assert [(one.first, one.last) for one in found] == [(0, 29), (30, 59)]


def test_a_slower_placement_is_no_regime() -> None:
    nights = []
    for night in made([0.0] * 80, Noise(night_sd=0.003, trial_sd=0.003)):
        slow = 40 <= night.number < 46 or night.number in (12, 25, 60)
        trials = tuple(trial(one.log_median + 0.04 * slow, "slow" if slow else "fast") for one in night.trials)
        nights.append(Night(number=night.number, trials=trials))
    assert len(regimes(nights)) == 1


def test_few_nights_have_no_regime() -> None:
    assert regimes(made([0.0] * 5, QUIET)) == ()
    assert regimes([]) == ()


def test_scale_and_sign_change_no_onset() -> None:
    nights = made([0.0] * 30 + [0.03] * 30, Noise())
    mirrored = [
        Night(number=night.number, trials=tuple(trial(3.0 - one.log_median) for one in night.trials))
        for night in nights
    ]
    assert [one.first for one in regimes(nights)] == [one.first for one in regimes(mirrored)]
    assert math.isclose(regimes(nights)[0].log_level, 3.0 - regimes(mirrored)[0].log_level, abs_tol=1e-6)


def test_noise_that_grows_begins_no_regime() -> None:
    for seed in range(4):
        noisy = made([0.0] * 50, Noise(night_sd=0.03, trial_sd=0.01), seed)
        nights = made([0.0] * 50, Noise(), seed + 50) + [
            Night(number=night.number + 50, trials=night.trials) for night in noisy
        ]
        assert len(regimes(nights)) == 1


def test_a_large_step_after_few_noisy_nights_is_one_regime_with_a_noise_of_its_own() -> None:
    for seed in range(4):
        before = made([math.log(40)] * 12, Noise(night_sd=0.4, trial_sd=0.1), seed)
        after = made([math.log(734)] * 8, Noise(night_sd=0.01, trial_sd=0.005), seed + 50)
        found = regimes(before + [Night(number=night.number + 12, trials=night.trials) for night in after])
        assert [one.first for one in found] == [0, 12]
        assert found[0].log_level_high - found[0].log_level > 0.1
        assert found[1].log_level_high - found[1].log_level < 0.05
        assert found[1].log_level == pytest.approx(math.log(734), abs=0.02)


def test_a_mixture_that_shifts_is_two_regimes_of_nights() -> None:
    for seed in range(4):
        generator = random.Random(seed)
        levels = [0.26 * (generator.random() < (0.1 if number < 40 else 0.9)) for number in range(80)]
        found = regimes(made(levels, Noise(night_sd=0.01), seed))
        assert len(found) == 2
        assert abs(found[1].first - 40) <= 3
        assert found[1].log_level - found[0].log_level == pytest.approx(0.26, abs=0.03)


def test_every_second_night_is_one_regime_between_its_levels() -> None:
    found = regimes(made([0.0] * 40 + [0.26 * (number % 2) for number in range(40)], Noise()))
    assert len(found) == 2
    assert found[1].log_level == pytest.approx(0.13, abs=0.02)
