"""What a series shows when looked back upon, against series whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from msgspec.structs import replace as with_fields
from numpy.typing import NDArray

from bench.gate.detector.detector import judge, level
from bench.gate.detector.look_back import Standing, begun_again, look_back
from bench.gate.detector.state import SeriesState
from tests.bench.gate.detector.kept_nights import kept
from tests.bench.gate.detector.made_nights import Noise, made

SEEDS = range(10)


def drawn(seed: int, levels: NDArray[np.float64], sd: float = 0.01) -> NDArray[np.float64]:
    return levels + np.random.default_rng(seed).normal(0, sd, len(levels))


def shares(seed: int, *parts: tuple[int, float], gap: float = 0.26) -> NDArray[np.float64]:
    """Return levels of two kinds of nights: in each part so many nights, with this share of slow ones."""
    generator = np.random.default_rng([seed, 1])
    return np.concatenate([gap * (generator.random(nights) < share) for nights, share in parts])


def found_in(levels: list[NDArray[np.float64]]) -> list[Standing]:
    return [found for values in levels if (found := look_back(kept(values))) is not None]


def test_a_level_twice_as_slow_in_noise_of_thirty_percent_is_found_with_its_date_and_size() -> None:
    levels = np.repeat([0.0, math.log(2)], [30, 30])
    found = found_in([drawn(seed, levels, 0.3) for seed in SEEDS])
    assert len(found) >= 8
    assert {one.kind for one in found} == {"level"}
    assert sum(one.onset_low <= 30 <= one.onset_high for one in found) >= len(found) - 1
    assert sum(one.log_change_low < math.log(2) < one.log_change_high for one in found) >= len(found) - 1


def test_a_mixture_that_shifts_is_reported_with_the_share_of_its_slow_nights() -> None:
    found = found_in([drawn(seed, shares(seed, (50, 0.1), (40, 0.9))) for seed in SEEDS])
    assert len(found) == len(SEEDS)
    assert {one.kind for one in found} == {"mixture"}
    for one in found:
        assert one.before is not None
        assert one.after is not None
        assert one.log_gap == pytest.approx(0.26, abs=0.02)
        assert one.direction == 1
        assert abs(one.onset - 50) <= 5
    assert sum(one.before.low <= 0.1 <= one.before.high for one in found if one.before) >= 8
    assert sum(one.after.low <= 0.9 <= one.after.high for one in found if one.after) >= 8


def test_every_second_night_is_reported_so() -> None:
    levels = np.concatenate([np.zeros(50), 0.26 * (np.arange(24) % 2)])
    found = look_back(kept(drawn(1, levels)))
    assert found is not None
    assert found.reason.startswith("about every second night is 2")
    assert "% higher since {night}" in found.reason
    assert found.onset in (50, 51)


def test_a_mixture_for_the_better_is_reported_by_its_fast_nights() -> None:
    found = look_back(kept(drawn(0, shares(0, (40, 1.0), (30, 0.3)))))
    assert found is not None
    assert found.direction == -1
    assert "% of nights are 2" in found.reason
    assert "% lower since {night}" in found.reason


def test_four_percent_that_come_over_thirty_two_nights_are_found() -> None:
    levels = np.concatenate([np.zeros(60), 0.04 * np.arange(1, 33) / 32])
    found = found_in([drawn(seed, levels, 0.01) for seed in SEEDS])
    assert len(found) >= 9
    assert {one.direction for one in found} == {1}


def test_a_slow_climb_is_a_creep_from_where_it_began() -> None:
    levels = np.concatenate([np.zeros(40), 0.003 * np.arange(1, 21)])
    found = look_back(kept(drawn(0, levels, 0.0002)))
    assert found is not None
    assert found.kind == "creep"
    assert abs(found.onset - 40) <= 1
    assert found.log_change == pytest.approx(0.06, abs=0.004)


def test_a_level_that_came_and_went_does_not_stand() -> None:
    levels = np.repeat([0.0, 0.1, 0.0], [40, 12, 10])
    assert found_in([drawn(seed, levels) for seed in SEEDS]) == []


@pytest.mark.parametrize(
    "values",
    [
        lambda g: g.normal(0, 0.005, 160),
        lambda g: 0.005 * g.standard_t(3, 160),
        lambda g: 0.01 * g.exponential(1, 160),
        lambda g: 0.005 * g.normal(0, 1, 160) * np.where(np.arange(160) < 90, 1, 3),
        lambda g: g.normal(0, 0.005, 160) + 0.01 * (np.arange(160) % 7 > 4),
        lambda g: np.round(g.normal(0, 0.6, 160)) * 0.01,
        lambda g: g.normal(0, 0.005, 160) + 0.04 * (g.random(160) < 0.2),
        lambda g: np.convolve(g.normal(0, 0.005, 200), 0.6 ** np.arange(20))[20:180],
    ],
    ids=["normal", "heavy tails", "skew", "growing noise", "weekly", "rounded", "two modes", "correlated"],
)
def test_noise_without_a_change_stands_for_none(values: Callable[[np.random.Generator], NDArray[np.float64]]) -> None:
    # Every fourth night: neighbouring nights look back at nearly the same.
    found = []
    for seed in range(6):
        series = values(np.random.default_rng(seed))
        for newest in range(20, len(series), 4):
            found += [seed] if look_back(kept(series[:newest])) is not None else []
    assert found == []


def test_what_is_found_is_reported_once() -> None:
    noise = Noise(night_sd=0.01, trial_sd=0.005)
    nights = made([0.0] * 40 + [0.26 * (number % 2) for number in range(60)], noise, seed=1)
    state = kept(median(trial.log_median for trial in night.trials) for night in nights[:60])
    found = look_back(state)
    assert found is not None
    assert found.kind == "mixture"
    state = begun_again(state, found)
    assert state.regime_starts[-1] == found.onset
    now = level(state)
    assert now is not None
    assert now.low < 0.13 < now.high
    for night in nights[60:]:
        judged = judge(state, night)
        assert judged.verdict in ("no change", "suspicion", "insufficient data")
        state = judged.state
        assert look_back(state) is None


def test_a_creep_that_goes_on_is_reported_again_from_its_new_level() -> None:
    values = np.concatenate([np.zeros(40), 0.003 * np.arange(1, 60)])
    state = kept(values[:60], 1e-8)
    found = look_back(state)
    assert found is not None
    assert found.kind == "creep"
    again = begun_again(state, found)
    assert again.regime_starts[-1] == state.nights[-8].number
    assert look_back(again) is None
    later = look_back(with_fields(kept(values[:85], 1e-8), regime_starts=again.regime_starts))
    assert later is not None
    assert later.direction == 1


def test_nights_on_an_unknown_placement_are_no_level() -> None:
    state = kept(drawn(1, np.repeat([0.0, 0.03], [40, 16]), 0.004), 1e-6)
    unknown = tuple(with_fields(night, variance=1e-3) if night.number >= 40 else night for night in state.nights)
    assert look_back(state) is not None
    assert look_back(SeriesState(nights=unknown, regime_starts=(0,))) is None


@pytest.mark.parametrize("values", [[0.0] * 60, [], [1.0], [0.0] * 15 + [5.0]], ids=["constant", "none", "one", "few"])
def test_series_that_say_nothing_stand_for_nothing(values: list[float]) -> None:
    assert look_back(kept(values) if values else SeriesState()) is None


def test_a_constant_metric_that_steps_is_a_level_whatever_its_numbers() -> None:
    values = [0.0] * 30 + [0.02] * 20
    found = look_back(kept(values))
    assert found is not None
    assert (found.kind, found.onset, found.onset_low, found.onset_high) == ("level", 30, 30, 30)
    nights = kept(values).nights
    # A gap of years: its numbers are far apart, its nights are neighbours.
    nights = (*nights[:30], *(with_fields(night, number=night.number + 9000) for night in nights[30:]))
    later = look_back(SeriesState(nights=nights, regime_starts=(0,)))
    assert later is not None
    assert later.onset == 9030


@pytest.mark.parametrize("trials", [1, 3])
def test_a_gap_of_years_is_no_change_and_hides_none(trials: int) -> None:
    noise = Noise(night_sd=0.005, trial_sd=0.004)
    before = made([0.0] * 40, noise, trials=trials)
    after = made([0.0] * 30 + [0.06] * 12, noise, seed=1, trials=trials)
    state: SeriesState | None = None
    reported = []
    for night in [*before, *(replace(night, number=night.number + 9000) for night in after)]:
        judged = judge(state, night)
        state = judged.state
        found = look_back(state)
        if judged.verdict == "page" and judged.alert is not None:
            reported.append(judged.alert.onset)
        if found is not None:
            reported.append(found.onset)
            state = begun_again(state, found)
    assert reported == [9030]
