"""Differences of two sides against scipy's own tests, and how often they are false or missed whatever the shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import pytest
import scipy  # Whose statistics take a second to load, and do when they are first asked.

from bench.results.two_sides import (
    LEAST_APART,
    LEAST_RANKED_PAIRS,
    Difference,
    KnownNoise,
    Slower,
    in_groups,
    in_pairs,
    known_noise,
    ordered_ends,
)
from tests.bench.results.comparison.experiments import Floats, Shape, slow_modes, trials_of

EXPERIMENTS = 1000
MOST_FALSE = 0.08
"""docs/measured/coverage.md has the shares of many more experiments."""
CHANCE = 2 * math.sqrt(MOST_FALSE * (1 - MOST_FALSE) / EXPERIMENTS)
"""By which so many experiments may miss their share: 1.7 %."""


class SidesTest(Protocol):
    """`in_groups` or `in_pairs`."""

    def __call__(self, a: Sequence[float], b: Sequence[float], *, slower: Slower = 0) -> Difference: ...


def _shown(test: SidesTest, a: Floats, b: Floats) -> float:
    """The share of experiments in which the test shows a difference; its interval says the same as its p-value."""
    shown = 0
    for of_a, of_b in zip(a.tolist(), b.tolist(), strict=True):
        found = test(of_a, of_b, slower=1)
        shown += found.p_value < 0.05 and not found.low <= 0 <= found.high
    return shown / len(a)


# Against scipy


def test_groups_of_equal_noise_have_welchs_interval_and_p_value() -> None:
    """Ranks say more than t here, so that t decides."""
    a, b = [0.0, 1.0, 2.0, 3.0, 4.0], [2.5, 3.5, 4.5, 5.5, 6.5]
    found, welch = in_groups(a, b), scipy.stats.ttest_ind(b, a, equal_var=False)
    interval = welch.confidence_interval(0.95)
    assert found.p_value == pytest.approx(max(welch.pvalue, scipy.stats.brunnermunzel(a, b).pvalue))
    assert found.low == pytest.approx(min(interval.low, found.low))
    assert found.high == pytest.approx(max(interval.high, found.high))
    assert (found.error(5), found.freedom(5)) == pytest.approx((math.sqrt(2 * 2.5 / 5), 8))


def test_where_a_lone_noisy_side_seems_faster_the_end_that_shows_it_lies_further_out() -> None:
    """By a factor of 2.7 with 3 trials: its slow ones may be those that it has not shown."""
    a, b = [2.0, 2.0, 2.0], [1.0, 1.6, 1.3]
    half_width = float(scipy.stats.t.ppf(0.975, 2)) * scipy.stats.sem(b)
    times, rates, unknown = (in_groups(a, b, slower=slower) for slower in (1, -1, 0))
    assert (times.low, times.high) == pytest.approx((-0.7 - half_width, -0.7 + 2.7 * half_width))
    assert (rates.low, rates.high) == pytest.approx((-0.7 - 2.7 * half_width, -0.7 + half_width))
    assert (unknown.low, unknown.high) == pytest.approx((rates.low, times.high))
    statistic = 0.7 / scipy.stats.sem(b)
    assert times.p_value == pytest.approx(2 * scipy.stats.t.sf(statistic / 2.7, 2))
    assert rates.p_value == pytest.approx(2 * scipy.stats.t.sf(statistic, 2))


def test_the_order_of_two_groups_is_tested_by_brunner_and_munzel() -> None:
    """Three of eight far trials make the means differ; which side is larger more often stays open, and decides."""
    a = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    b = [0.05, 0.15, 0.25, 0.35, 0.45, 30.0, 31.0, 32.0, 33.0, 34.0]
    found = in_groups(a, b)
    assert scipy.stats.ttest_ind(b, a, equal_var=False).pvalue < 0.05
    assert found.p_value == pytest.approx(scipy.stats.brunnermunzel(a, b).pvalue)
    assert found.p_value > 0.05
    assert found.low <= 0


def test_the_interval_holds_each_shift_that_the_order_allows() -> None:
    random = np.random.default_rng(3)
    a, b = random.normal(0, 1, 9), random.exponential(1, 7)
    found = in_groups(a.tolist(), b.tolist())
    shifts = np.linspace(-1, 2.9, 391)  # All within the sides' overlap, without which scipy has no p-value.
    allowed = [shift for shift in shifts if scipy.stats.brunnermunzel(a + shift, b).pvalue >= 0.05]
    assert found.low <= min(allowed)
    assert max(allowed) <= found.high


def test_many_pairs_are_also_tested_by_signed_ranks() -> None:
    """A third of the pairs is far off, which makes their mean differ; the others say nothing."""
    b = [-0.1, 0.11, -0.12, 0.13, -0.14, 0.15, -0.16, 1.0, 1.1, 1.2, 1.3]
    found = in_pairs([0.0] * len(b), b, slower=1)
    assert len(b) >= LEAST_RANKED_PAIRS
    assert scipy.stats.ttest_1samp(b, 0).pvalue < 0.05
    assert found.p_value == pytest.approx(scipy.stats.wilcoxon(b, method="exact").pvalue)
    assert found.low <= 0


def test_a_hundred_pairs_have_scipys_normal_approximation() -> None:
    b = np.random.default_rng(4).exponential(1.0, 100) - 0.95
    expected = scipy.stats.wilcoxon(b, method="approx", correction=True).pvalue
    found = in_pairs([0.0] * 100, b.tolist(), slower=-1)
    assert found.p_value == pytest.approx(max(expected, scipy.stats.ttest_1samp(b, 0).pvalue), rel=0.02)


def test_pairs_of_equally_noisy_sides_have_students_interval_whatever_disturbs_both() -> None:
    drift = np.array([4.0, 4.0, -4.0, -4.0])
    a, b = drift + np.array([1.0, -1.0, 1.0, -1.0]), drift + np.array([1.0, -1.0, -1.0, 1.0]) + 3
    found, student = in_pairs(a.tolist(), b.tolist()), scipy.stats.ttest_rel(b, a)
    interval = student.confidence_interval(0.95)
    assert (found.low, found.high, found.p_value) == pytest.approx((interval.low, interval.high, student.pvalue))


def test_the_median_of_six_trials_lies_between_the_least_and_the_largest() -> None:
    assert ordered_ends([3.0, 1.0, 2.0, 5.0, 4.0]) == ()
    assert ordered_ends([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == (1.0, 6.0)
    assert ordered_ends([float(value) for value in range(20)]) == (5.0, 14.0)
    outside = 2 * scipy.stats.binom.cdf(5, 20, 0.5)
    assert outside <= 0.1 < 2 * scipy.stats.binom.cdf(6, 20, 0.5)


def test_a_group_has_the_larger_noise_of_its_trials_and_of_its_series() -> None:
    a, b = [0.0, 1.0, 2.0], [1.0, 1.1, 0.9]
    found = in_groups(a, b, slower=-1, known=(KnownNoise(variance=0.5, freedom=40), KnownNoise(variance=4, freedom=30)))
    squares = np.array([1.0, 4.0]) / 3
    freedom = squares.sum() ** 2 / (squares**2 / [2, 30]).sum()
    assert found.p_value == pytest.approx(1.0)
    assert found.high == pytest.approx(scipy.stats.t.ppf(0.975, freedom) * math.sqrt(squares.sum()))


def test_the_noise_of_a_series_is_that_within_its_runs_without_the_noisiest_tenth() -> None:
    runs = [(level, level + 2.0, level + 1.0) for level in range(12)]
    assert known_noise(runs) == KnownNoise(variance=1.0, freedom=20)
    assert known_noise([*runs[:11], (0.0, 90.0, 5.0)]) == KnownNoise(variance=1.0, freedom=20)
    assert known_noise(runs[:11]) is None
    assert known_noise([*runs[:11], (1.0,)]) is None


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0, 2.0]), ([1.0, 1.0], [2.0, 2.0])])
def test_sides_without_noise_or_a_second_trial_are_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match=r"2 or more of each|no noise to test by"):
        in_groups(a, b)


# False differences: nothing differs but the noise, 1 % on one side and 5 % on the other


@pytest.mark.parametrize("trials", [3, 5])
def test_skew_of_one_noisy_side_rarely_shows_a_difference_of_means(trials: int) -> None:
    """Welch alone shows one in 12 to 13 % of such experiments."""
    random = np.random.default_rng(31)
    quiet, noisy = (
        deviation * trials_of(random, "exponential", (EXPERIMENTS, trials), "mean") for deviation in (0.01, 0.05)
    )
    assert _shown(in_groups, quiet, noisy) <= MOST_FALSE + CHANCE
    drift = random.normal(0.0, 0.05, quiet.shape)
    assert _shown(in_pairs, quiet + drift, noisy + drift) <= MOST_FALSE + CHANCE


@pytest.mark.parametrize(("shape", "trials"), [("exponential", 20), ("modes 30 %", 10)])
def test_slow_trials_on_one_side_show_no_difference_of_medians(shape: Shape, trials: int) -> None:
    """Welch alone shows one in 17 to 45 % of such experiments with two modes."""
    random = np.random.default_rng(37)
    quiet, noisy = (
        deviation * trials_of(random, shape, (EXPERIMENTS // 2, trials), "median") for deviation in (0.01, 0.05)
    )
    assert _shown(in_groups, quiet, noisy) <= MOST_FALSE
    drift = random.normal(0.0, 0.05, quiet.shape)
    assert _shown(in_pairs, quiet + drift, noisy + drift) <= MOST_FALSE


@pytest.mark.parametrize(
    ("shape", "about", "trials"),
    [("modes 50 %", "median", 3), ("modes 50 %", "median", LEAST_APART - 1), ("modes 10 %", "mean", 8)],
)
def test_a_mode_that_few_trials_lack_shows_no_difference_where_other_runs_have_it(
    shape: Shape, about: Literal["median", "mean"], trials: int
) -> None:
    """Without the other runs 11 to 41 % of such experiments show one."""
    random = np.random.default_rng(47)
    quiet, noisy = (deviation * trials_of(random, shape, (400, 13, trials), about) for deviation in (0.01, 0.05))
    shown = 0
    for a, b in zip(quiet.tolist(), noisy.tolist(), strict=True):
        found = in_groups(a[0], b[0], slower=1, known=(known_noise(a[1:]), known_noise(b[1:])))
        shown += found.p_value < 0.05 and not found.low <= 0 <= found.high
    assert shown / 400 <= MOST_FALSE


@pytest.mark.parametrize("test", [in_groups, in_pairs])
def test_two_modes_on_both_sides_rarely_show_a_difference(test: SidesTest) -> None:
    random = np.random.default_rng(41)
    for slow in (0.1, 0.3, 0.5):
        quiet, noisy = (slow_modes(random, slow, (EXPERIMENTS // 2, 5), jitter) for jitter in (0.01, 0.05))
        assert _shown(test, quiet, noisy) <= MOST_FALSE


@pytest.mark.parametrize(("trials", "change", "most"), [(5, 2.1, 0.08), (10, 1.32, 0.06)])
def test_normal_noise_costs_little_power(trials: int, change: float, most: float) -> None:
    """Of changes that t alone shows in 70 to 80 % of experiments; the second tests cost up to `most` of these."""
    random = np.random.default_rng(43)
    a, b = random.normal(size=(EXPERIMENTS, trials)), random.normal(change, size=(EXPERIMENTS, trials))
    welch, student = scipy.stats.ttest_ind(b, a, axis=1, equal_var=False), scipy.stats.ttest_rel(b, a, axis=1)
    assert _shown(in_groups, a, b) >= np.mean(welch.pvalue < 0.05) - most
    assert _shown(in_pairs, a, b) >= np.mean(student.pvalue < 0.05) - most
