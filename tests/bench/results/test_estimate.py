"""Estimates and ratios against experiments whose truth is known, and against scipy's own Welch interval."""

from __future__ import annotations

import math
from statistics import median

import msgspec
import numpy as np
import pytest
import scipy  # Whose statistics take a second to load, and do when they are first asked.

from bench.results.estimate import Estimate, estimate, estimate_part, estimate_share, ratio, spread
from bench.results.two_sides import in_groups
from collectors.metrics.results import RUN_OVERLAP_RATIO, RUN_PEAK_MEMORY_BYTES, RUN_PHASE_SECONDS, RUN_STEP_SECONDS
from tests.bench.results.comparison.experiments import slow_modes

EXPERIMENTS = 2000


def _estimate(*trials: float) -> Estimate:
    return estimate(RUN_STEP_SECONDS, trials)


def _holds(low: float | None, high: float | None, truth: float) -> bool:
    assert low is not None
    assert high is not None
    return low <= truth <= high


@pytest.mark.parametrize("trials", [3, 5])
def test_the_interval_holds_the_truth_in_95_of_100_experiments(trials: int) -> None:
    truth_s = 0.02
    experiments = truth_s * np.random.default_rng(7).lognormal(0.0, 0.1, size=(EXPERIMENTS, trials))
    found = [_estimate(*experiment) for experiment in experiments.tolist()]
    held = sum(_holds(one.low, one.high, truth_s) for one in found) / EXPERIMENTS
    assert 0.93 <= held <= 0.97


@pytest.mark.parametrize(("above", "below"), [(3, 3), (5, 3), (5, 5)])
def test_the_interval_of_a_ratio_holds_the_truth_when_the_noises_differ(above: int, below: int) -> None:
    random = np.random.default_rng(11)
    numerators = 3.0 * random.lognormal(0.0, 0.1, size=(EXPERIMENTS, above))
    denominators = 2.0 * random.lognormal(0.0, 0.07, size=(EXPERIMENTS, below))
    found = [
        ratio(_estimate(*numerator), _estimate(*denominator))
        for numerator, denominator in zip(numerators.tolist(), denominators.tolist(), strict=True)
    ]
    held = sum(_holds(one.low, one.high, 1.5) for one in found) / EXPERIMENTS
    assert 0.93 <= held <= 0.985  # Welch's test is known to be somewhat cautious with so few.


def test_an_interval_is_students_on_the_logarithms() -> None:
    trials = (0.9, 1.0, 1.3)
    found = _estimate(*trials)
    logarithms = np.log(trials)
    expected = scipy.stats.t.interval(0.95, 2, loc=logarithms.mean(), scale=scipy.stats.sem(logarithms))
    assert (found.low, found.high) == pytest.approx(tuple(np.exp(expected)))
    assert found.median == 1.0


def test_a_ratio_is_the_difference_of_two_groups_of_logarithms() -> None:
    above, below = (2.1, 2.0, 2.6, 2.2), (1.0, 1.1, 0.7)
    found = ratio(_estimate(*above), _estimate(*below))
    expected = in_groups(np.log(below).tolist(), np.log(above).tolist(), slower=1)
    assert (found.low, found.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert found.value == median(above) / median(below)
    assert (found.numerator_trials, found.denominator_trials) == (4, 3)


@pytest.mark.parametrize("trials", [10, 20])
def test_the_interval_holds_the_median_where_three_of_ten_trials_are_slow(trials: int) -> None:
    """Student's interval alone holds it in 74 and 53 % of experiments."""
    logarithms = slow_modes(np.random.default_rng(23), 0.3, (EXPERIMENTS // 4, trials), 0.01)
    found = [_estimate(*experiment) for experiment in np.exp(logarithms).tolist()]
    truth = math.exp(0.01 * scipy.stats.norm.ppf(0.5 / 0.7))
    assert sum(_holds(one.low, one.high, truth) for one in found) / len(found) >= 0.93


def test_one_trial_has_no_interval() -> None:
    found = _estimate(0.5)
    assert (found.median, found.low, found.high) == (0.5, None, None)
    assert found.why_no_interval == "one trial has no interval"


def test_one_trial_on_either_side_leaves_a_ratio_without_interval() -> None:
    for found in (ratio(_estimate(2.0), _estimate(1.0, 1.1)), ratio(_estimate(2.0, 2.1), _estimate(1.0))):
        assert (found.low, found.high) == (None, None)
        assert found.why_no_interval == "one trial has no interval"


def test_equal_trials_have_no_interval_rather_than_one_of_no_width() -> None:
    found = estimate(RUN_PEAK_MEMORY_BYTES, (1 << 20,) * 3, account="resident")
    assert (found.low, found.high) == (None, None)
    assert found.why_no_interval is not None
    assert found.why_no_interval.startswith("equal trials have no interval")


def test_a_ratio_of_equal_trials_on_both_sides_has_no_interval() -> None:
    found = ratio(_estimate(2.0, 2.0), _estimate(1.0, 1.0))
    assert (found.value, found.low, found.high) == (2.0, None, None)
    assert found.why_no_interval is not None


def test_equal_trials_on_one_side_leave_the_noise_of_the_other() -> None:
    found = ratio(_estimate(2.0, 2.0), _estimate(1.0, 1.1, 1.05))
    other = _estimate(1.0, 1.1, 1.05)
    assert other.low is not None
    assert found.low is not None
    assert found.high == pytest.approx(2.0 / other.low)
    assert found.low < 2.0 / 1.1  # Further out than by t: the noisier side may be slower than it was seen.
    assert found.why_no_interval is None


def test_skew_cannot_push_the_median_out_of_its_interval() -> None:
    trials = (1.0,) * 6 + (2.0,) * 4
    logarithms = np.log(trials)
    plain = scipy.stats.t.interval(0.95, 9, loc=logarithms.mean(), scale=scipy.stats.sem(logarithms))
    assert math.exp(plain[0]) > median(trials)  # It would, by Student alone.
    assert _estimate(*trials).low == median(trials)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_value_that_is_not_positive_and_finite_is_refused_by_name(value: float) -> None:
    with pytest.raises(ValueError, match=r"observatory_run_step_seconds: .* must be positive and finite"):
        _estimate(1.0, value)


def test_no_trial_is_refused() -> None:
    with pytest.raises(ValueError, match="observatory_run_step_seconds: there is no trial"):
        _estimate()


def test_labels_are_those_of_the_metric() -> None:
    assert estimate(RUN_PHASE_SECONDS, [1.0], phase="forward").labels == {"phase": "forward"}
    with pytest.raises(ValueError, match="missing: phase"):
        estimate(RUN_PHASE_SECONDS, [1.0])


def test_an_estimate_survives_json() -> None:
    found = estimate(RUN_PHASE_SECONDS, [1.0, 1.5], phase="forward")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Estimate) == found


def test_spread_is_the_median_deviation_as_a_share_of_the_median() -> None:
    assert spread([8.0, 9.0, 10.0, 11.0, 100.0]) == 0.1  # Deviations 2, 1, 0, 1, 90; one outlier does not count.


def test_the_spread_of_no_step_is_refused() -> None:
    with pytest.raises(ValueError, match="the spread of 0 steps"):
        spread([])


def test_a_share_may_be_zero_and_its_interval_stays_among_shares() -> None:
    found = estimate_share(RUN_OVERLAP_RATIO, [0.0, 0.0, 0.3])
    assert found.median == 0.0
    assert found.low == 0.0
    assert found.high is not None
    assert 0.3 < found.high <= 1.0


def test_the_interval_of_shares_far_from_0_and_1_is_students_on_their_logits() -> None:
    trials = [0.5, 0.52, 0.56, 0.51]
    found = estimate_share(RUN_OVERLAP_RATIO, trials)
    logits = np.log(trials) - np.log1p(-np.array(trials))
    ends = scipy.stats.t.interval(0.95, len(trials) - 1, loc=logits.mean(), scale=scipy.stats.sem(logits))
    assert (found.low, found.high) == pytest.approx(tuple(1 / (1 + np.exp(-np.array(ends)))))


@pytest.mark.parametrize("trials", [3, 5, 10])
@pytest.mark.parametrize(("nothing", "all_of_it"), [(0.5, 20), (2, 8), (20, 80), (20, 0.5)])
def test_93_of_100_intervals_hold_mean_and_median_of_shares_however_near_an_end(
    nothing: float, all_of_it: float, trials: int
) -> None:
    truth = scipy.stats.beta(nothing, all_of_it)
    experiments = truth.rvs((EXPERIMENTS // 2, trials), random_state=np.random.default_rng(19))
    found = [estimate_share(RUN_OVERLAP_RATIO, experiment) for experiment in experiments.tolist()]
    for value in (float(truth.mean()), float(truth.median())):
        assert 0.93 <= sum(_holds(one.low, one.high, value) for one in found) / len(found) <= 0.995


def test_the_interval_of_shares_does_not_care_which_side_is_called_nothing() -> None:
    trials = [0.01, 0.02, 0.002, 0.0]
    found = estimate_share(RUN_OVERLAP_RATIO, trials)
    turned = estimate_share(RUN_OVERLAP_RATIO, [1 - share for share in trials])
    assert found.low is not None
    assert found.high is not None
    assert (turned.low, turned.high) == pytest.approx((1 - found.high, 1 - found.low))


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_what_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        estimate_share(RUN_OVERLAP_RATIO, [0.5, value])


def test_a_part_may_be_below_0_and_its_interval_holds_what_stands_for_the_median() -> None:
    trials = [-0.1, 0.0, 0.1]
    found = estimate_part(RUN_OVERLAP_RATIO, trials, middle=0.4)
    low, high = scipy.stats.t.interval(0.95, 2, loc=0.0, scale=scipy.stats.sem(trials))
    assert found.median == 0.4
    assert (found.low, found.high) == pytest.approx((low, max(high, 0.4)))
    assert found.trials == (-0.1, 0.0, 0.1)


def test_equal_parts_have_no_interval() -> None:
    assert estimate_part(RUN_OVERLAP_RATIO, [0.2, 0.2], middle=0.2).low is None


@pytest.mark.parametrize(("trials", "middle"), [([math.inf], 0.0), ([0.0], math.nan), ([], 0.0)])
def test_a_part_that_is_no_number_is_refused(trials: list[float], middle: float) -> None:
    with pytest.raises(ValueError, match=r"must be finite|no trial"):
        estimate_part(RUN_OVERLAP_RATIO, trials, middle=middle)
