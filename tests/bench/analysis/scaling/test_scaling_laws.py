"""Laws of scaling fitted to curves that follow them by construction: parameters, intervals, ceilings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from bench.analysis.scaling.laws import PARAMETERS, Bounded, Law, NoScalingFit, ScalingFit, WorldSize, fit


def _throughput(law: Law, parameters: Sequence[float], ranks: int) -> float:
    """The laws again, as their papers write them: one rank has a throughput of 1."""
    if law == "gustafson":
        return ranks - parameters[0] * (ranks - 1)
    if law == "amdahl":
        return 1 / (parameters[0] + (1 - parameters[0]) / ranks)
    sigma, kappa = parameters
    return ranks / (1 + sigma * (ranks - 1) + kappa * ranks * (ranks - 1))


def _points(
    law: Law,
    parameters: Sequence[float],
    ranks: Sequence[int],
    *,
    trials: int = 1,
    noise: float = 0.0,
    between: float = 0.0,
    seed: int = 0,
    scale: float = 700.0,
) -> list[WorldSize]:
    """A curve. noise: of trials around their point. between: of points around the law."""
    generator = np.random.default_rng(seed)
    points = []
    for one in ranks:
        of_point = scale * _throughput(law, parameters, one) * math.exp(generator.normal(0, between))
        of_trials = of_point * np.exp(generator.normal(0, noise, trials))
        points.append(WorldSize(ranks=one, throughputs=tuple(of_trials.tolist())))
    return points


def _fitted(law: Law, points: Sequence[WorldSize], base_ranks: int | None = None) -> ScalingFit:
    found = fit(law, points, base_ranks=base_ranks)
    assert isinstance(found, ScalingFit), found
    return found


def _holds(found: Bounded, truth: float) -> bool:
    low = -math.inf if found.low is None else found.low
    high = math.inf if found.high is None else found.high
    return low * (1 - 1e-9) <= truth <= high * (1 + 1e-9)


@pytest.mark.parametrize(
    ("law", "parameters", "ranks"),
    [
        ("amdahl", (0.03,), (1, 2, 4, 8)),
        ("amdahl", (0.5,), (8, 16)),
        ("gustafson", (0.2,), (1, 2, 4)),
        ("usl", (0.05, 0.002), (1, 2, 4, 8)),
        ("usl", (0.0, 0.01), (1, 2, 4)),
        ("usl", (1e-3, 1e-6), (8, 64, 512)),
    ],
)
def test_a_curve_without_noise_gives_its_parameters_back(
    law: Law, parameters: tuple[float, ...], ranks: tuple[int, ...]
) -> None:
    found = _fitted(law, _points(law, parameters, ranks))
    for name, truth in zip(PARAMETERS[law], parameters, strict=True):
        assert found.parameters[name].value == pytest.approx(truth, rel=1e-3, abs=1e-6)
    assert found.miss_ratio < 1e-6


def test_the_ceiling_of_amdahl_is_one_over_the_serial_fraction() -> None:
    found = _fitted("amdahl", _points("amdahl", [0.04], [1, 2, 4, 8]))
    assert found.most_speed_up.value == pytest.approx(25.0, rel=1e-4)
    assert found.peak_ranks is None


def test_the_ceiling_counts_from_the_base_where_that_has_several_ranks() -> None:
    found = _fitted("amdahl", _points("amdahl", [0.04], [4, 8, 16]))
    assert found.base_ranks == 4
    assert found.most_speed_up.value == pytest.approx(25.0 / _throughput("amdahl", [0.04], 4), rel=1e-4)


def test_the_peak_of_the_universal_law_is_where_its_formula_says() -> None:
    sigma, kappa = 0.05, 0.002
    found = _fitted("usl", _points("usl", [sigma, kappa], [1, 2, 4, 8, 16], trials=3, noise=0.005))
    peak = math.sqrt((1 - sigma) / kappa)
    assert found.peak_ranks is not None
    assert found.peak_ranks.value == pytest.approx(peak, rel=0.05)
    assert _holds(found.peak_ranks, peak)
    highest = max(_throughput("usl", [sigma, kappa], ranks) for ranks in range(1, 100))
    assert found.most_speed_up.value == pytest.approx(highest, rel=0.02)


def test_gustafson_has_no_ceiling_and_says_so() -> None:
    found = _fitted("gustafson", _points("gustafson", [0.1], [1, 2, 4], trials=3, noise=0.01))
    assert found.most_speed_up.value is None
    assert "the law has no ceiling" in str(found.most_speed_up.reason)


# Coverage: each experiment is a curve with noise of its own.

NOISE = 0.02


@cache
def _experiments(
    law: Law, parameters: tuple[float, ...], count: int, *, most_ranks: int = 8, between: float = 0.0
) -> list[ScalingFit]:
    ranks = [one for one in (1, 2, 4, 8, 16) if one <= most_ranks]
    return [
        _fitted(
            law,
            _points(law, parameters, ranks, trials=3, noise=NOISE if not between else 0.01, between=between, seed=seed),
        )
        for seed in range(1000, 1000 + count)
    ]


def _coverage(law: Law, parameters: tuple[float, ...], count: int, **curve: Any) -> dict[str, float]:
    return {
        name: sum(_holds(found.parameters[name], truth) for found in _experiments(law, parameters, count, **curve))
        / count
        for name, truth in zip(PARAMETERS[law], parameters, strict=True)
    }


@pytest.mark.parametrize(("law", "parameter"), [("amdahl", 0.05), ("gustafson", 0.1)])
def test_an_interval_holds_the_truth_in_95_of_100_experiments(law: Law, parameter: float) -> None:
    # The standard deviation of a share of 100 experiments is 2.2 %.
    assert _coverage(law, (parameter,), 100)["serial_fraction"] >= 0.93


@pytest.mark.parametrize("between", [0.03, 0.05])
def test_an_interval_of_three_points_holds_the_truth_where_they_differ_by_more_than_their_trials(
    between: float,
) -> None:
    """A test of whether they do finds it in few such curves, and left out of the others it makes intervals of noise."""
    assert _coverage("gustafson", (0.3,), 80, most_ranks=4, between=between)["serial_fraction"] >= 0.9


def test_both_intervals_of_the_universal_law_hold_the_truth() -> None:
    coverage = _coverage("usl", (0.05, 0.002), 30, most_ranks=16)
    assert all(one >= 0.93 for one in coverage.values()), coverage
    peak = math.sqrt(0.95 / 0.002)
    held = [
        found.peak_ranks is not None and _holds(found.peak_ranks, peak)
        for found in _experiments("usl", (0.05, 0.002), 30, most_ranks=16)
    ]
    assert sum(held) / 30 >= 0.93


def test_an_interval_holds_a_truth_that_lies_on_the_bound() -> None:
    # A one-sided chance: the interval errs in one direction only, so that it holds more than 95 %.
    assert _coverage("amdahl", (0.0,), 60)["serial_fraction"] >= 0.93


def test_a_curve_without_coherency_has_no_peak_in_most_experiments() -> None:
    found = _experiments("usl", (0.05, 0.0), 10, most_ranks=16)
    absent = [one.peak_ranks for one in found if one.peak_ranks is not None and one.peak_ranks.value is None]
    assert len(absent) >= 9
    assert all(one.reason == "no peak up to 16 ranks: kappa's interval includes 0" for one in absent)
    assert all(one.low is not None and one.low > 16 for one in absent)


def test_more_points_make_intervals_narrower() -> None:
    """More trials hardly do: they say little about how far points lie off the law."""
    few, many = (
        _fitted("amdahl", _points("amdahl", [0.05], ranks, trials=3, noise=NOISE))
        for ranks in ((1, 2, 4), (1, 2, 3, 4, 5, 6, 7, 8))
    )

    def width(found: ScalingFit) -> float:
        one = found.parameters["serial_fraction"]
        assert one.low is not None
        assert one.high is not None
        return one.high - one.low

    assert width(many) < width(few) / 2


# What cannot be known is absent


def test_two_numbers_of_ranks_are_too_few_for_the_universal_law() -> None:
    found = fit("usl", _points("usl", [0.1, 0.0], [1, 2], trials=3, noise=NOISE))
    assert isinstance(found, NoScalingFit)
    assert found.reason == "3 numbers of ranks are needed for its 3 parameters, and there are 2"


@pytest.mark.parametrize("trials", [1, 3])
def test_there_is_no_interval_where_the_law_meets_any_points(trials: int) -> None:
    found = _fitted("amdahl", _points("amdahl", [0.1], [1, 4], trials=trials, noise=NOISE))
    one = found.parameters["serial_fraction"]
    assert (one.low, one.high) == (None, None)
    assert one.reason == (
        "a law with 2 parameters fits 2 numbers of ranks exactly, so nothing shows how far points lie off it; measure"
        " one more"
    )
    assert found.most_speed_up.value is not None
    assert found.most_speed_up.low is None


def test_one_trial_a_point_gives_an_interval_where_the_law_may_miss_the_points() -> None:
    found = _fitted("amdahl", _points("amdahl", [0.1], [1, 2, 4, 8], noise=NOISE))
    assert found.parameters["serial_fraction"].low is not None


def test_equal_trials_have_no_interval() -> None:
    points = [
        WorldSize(ranks=ranks, throughputs=(throughput,) * 2) for ranks, throughput in ((1, 1.0), (2, 1.5), (4, 2.0))
    ]
    found = _fitted("amdahl", points)
    assert found.parameters["serial_fraction"].value == pytest.approx(1 / 3)
    assert "equal trials" in str(found.parameters["serial_fraction"].reason)


def test_perfect_scaling_has_no_ceiling() -> None:
    found = _fitted("amdahl", _points("amdahl", [0.0], [1, 2, 4, 8]))
    assert found.parameters["serial_fraction"].value == 0
    assert found.most_speed_up.value is None
    assert found.most_speed_up.reason == "no ceiling up to 8 ranks: the serial fraction is 0"


def test_a_law_that_misses_the_points_says_so_and_its_interval_is_wider() -> None:
    """The throughput falls from 4 to 16 ranks, which Amdahl's law cannot."""
    points = _points("usl", [0.02, 0.02], [1, 2, 4, 8, 16], trials=3, noise=0.001)
    found = _fitted("amdahl", points)
    assert any("the law misses the points by more than trials differ from each other" in note for note in found.notes)
    one = found.parameters["serial_fraction"]
    assert one.low is not None
    assert one.high is not None
    assert one.high - one.low > 0.05
    assert not _fitted("usl", points).notes


def test_equal_trials_of_points_off_the_law_have_the_interval_of_the_points() -> None:
    points = [
        WorldSize(ranks=ranks, throughputs=(throughput,) * 2) for ranks, throughput in ((1, 1.0), (2, 1.6), (4, 1.9))
    ]
    one = _fitted("amdahl", points).parameters["serial_fraction"]
    assert one.low is not None
    assert one.high is not None
    assert one.high - one.low > 0.02


def test_an_interval_wider_than_its_value_is_unsure() -> None:
    assert Bounded(value=0.1, low=0.0, high=0.3).is_unsure
    assert not Bounded(value=0.1, low=0.06, high=0.14).is_unsure
    assert not Bounded(value=0.1, reason="one trial").is_unsure


def test_the_unit_of_throughput_changes_nothing() -> None:
    small, large = (
        _fitted("usl", _points("usl", [0.1, 0.01], [1, 2, 4, 8], trials=3, noise=NOISE, scale=scale))
        for scale in (1.0, 1e6)
    )
    for name in PARAMETERS["usl"]:
        assert small.parameters[name].value == pytest.approx(large.parameters[name].value, rel=1e-4)
        assert small.parameters[name].high == pytest.approx(large.parameters[name].high, rel=1e-4)


@pytest.mark.parametrize("throughputs", [(0.0,), (math.nan,), (math.inf,), (-1.0,)])
def test_a_throughput_that_is_none_is_refused(throughputs: tuple[float, ...]) -> None:
    points = [WorldSize(ranks=1, throughputs=(1.0,)), WorldSize(ranks=2, throughputs=throughputs)]
    with pytest.raises(ValueError, match="not positive and finite"):
        fit("amdahl", points)


def test_a_number_of_ranks_that_comes_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="two points have the same ranks"):
        fit("amdahl", [WorldSize(ranks=2, throughputs=(1.0,))] * 2)
