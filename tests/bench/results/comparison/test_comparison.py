"""Changes and their outcomes against scipy's own tests, hand-made answers and simulated experiments of known truth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import scipy  # Whose statistics take a second to load, and do when they are first asked.

from bench.results.comparison import (
    POWER,
    ChangeOutcome,
    FigureChange,
    JudgedChange,
    change,
    changes,
    counted,
    false_discovery,
    judge,
    power_of_equivalence,
    power_of_t,
    power_of_test,
    smallest_shown,
    trials_to_settle,
)
from bench.results.estimate import Estimate, estimate, estimate_share
from bench.results.two_sides import in_groups, in_pairs
from collectors.metrics.metric import Metric
from collectors.metrics.results import (
    RUN_COMMUNICATION_SECONDS,
    RUN_LOSS,
    RUN_OVERLAP_RATIO,
    RUN_PEAK_MEMORY_BYTES,
    RUN_PHASE_SECONDS,
    RUN_STEP_SECONDS,
    RUN_TOKENS_PER_SECOND,
)

EXPERIMENTS = 1000


def _change(
    a: Sequence[float], b: Sequence[float], metric: Metric = RUN_STEP_SECONDS, *, is_paired: bool = False
) -> FigureChange:
    return change(metric, estimate(metric, a), estimate(metric, b), is_paired=is_paired)


def _judged(
    a: Sequence[float], b: Sequence[float], metric: Metric = RUN_STEP_SECONDS, *, is_paired: bool = False
) -> JudgedChange:
    (found,) = judge([_change(a, b, metric, is_paired=is_paired)])
    return found


def _logarithms(values: Sequence[float]) -> list[float]:
    return [math.log(value) for value in values]


def _times(random: np.random.Generator, count: int, deviation: float, median_s: float = 0.02) -> list[float]:
    return [float(value) for value in median_s * np.exp(random.normal(0.0, deviation, count))]


# The change and its interval.


@pytest.mark.parametrize("b", [(2.1, 2.0, 2.6, 2.2), (2.1, 2.0, 2.6), (2.1, 2.0, 2.6, 2.2, 2.3)])
def test_two_groups_are_compared_on_the_logarithms(b: tuple[float, ...]) -> None:
    a = (1.0, 1.1, 0.7, 0.9)
    found, expected = _change(a, b), in_groups(_logarithms(a), _logarithms(b), slower=1)
    assert found.p_value == expected.p_value
    assert (found.low, found.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert found.value == pytest.approx(np.median(b) / np.median(a))


def test_trials_in_turn_are_compared_in_pairs_on_the_logarithms() -> None:
    a, b = (1.0, 1.5, 0.7, 1.2), (1.12, 1.6, 0.8, 1.3)
    found, expected = _change(a, b, is_paired=True), in_pairs(_logarithms(a), _logarithms(b), slower=1)
    assert found.p_value == expected.p_value
    assert (found.low, found.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert found.value == pytest.approx(math.exp(np.median(np.log(b) - np.log(a))))


def test_of_rates_the_slower_side_is_the_one_with_less() -> None:
    """B is noisier and has more tokens each second: slow trials that it has not shown could undo that."""
    a, b = (1.0, 1.001, 0.999), (1.1, 1.22, 1.16)
    times, rates = _change(a, b), _change(a, b, RUN_TOKENS_PER_SECOND)
    assert times.p_value is not None
    assert rates.p_value is not None
    assert times.p_value < 0.05 < rates.p_value


def test_pairs_show_what_a_drift_of_the_machine_hides_from_two_groups() -> None:
    a = (1.00, 1.20, 1.45, 1.70)
    b = (1.051, 1.259, 1.524, 1.786)  # About 5 % more in each pair.
    assert _judged(a, b, is_paired=True).outcome == "worse"
    assert _judged(a, b).outcome == "unsure"


def test_pairs_are_as_many_as_the_side_that_was_ended_early_has() -> None:
    found = _change((1.0, 1.5, 0.7), (1.1, 1.6), is_paired=True)
    assert found.trials == (2, 2)
    assert found.p_value == in_pairs(_logarithms((1.0, 1.5)), _logarithms((1.1, 1.6)), slower=1).p_value


def test_shares_are_compared_by_their_difference() -> None:
    a, b = (0.0, 0.1, 0.05, 0.07, 0.03), (0.5, 0.6, 0.55, 0.57, 0.53)  # Equally noisy, so that this is Welch's test.
    sides = [estimate_share(RUN_OVERLAP_RATIO, side) for side in (a, b)]
    found = change(RUN_OVERLAP_RATIO, *sides, is_paired=False)
    interval = scipy.stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    assert found.scale == "difference"
    assert found.value == pytest.approx(0.5)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert judge([found])[0].outcome == "better"


@pytest.mark.parametrize("is_paired", [False, True])
def test_the_interval_holds_the_true_change_in_95_of_100_experiments(is_paired: bool) -> None:
    random = np.random.default_rng(5)
    held = 0
    for _ in range(EXPERIMENTS):
        drift = random.normal(0.0, 0.1, 5) if is_paired else np.zeros(5)
        a, b = (median_s * np.exp(drift + random.normal(0.0, 0.02, 5)) for median_s in (0.02, 0.021))
        found = _change(a.tolist(), b.tolist(), is_paired=is_paired)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.05 <= found.high
    assert 0.93 <= held / EXPERIMENTS <= 0.975


# The outcome.


@pytest.mark.parametrize(
    ("metric", "factor", "outcome"),
    [
        (RUN_STEP_SECONDS, 1.2, "worse"),
        (RUN_STEP_SECONDS, 0.8, "better"),
        (RUN_TOKENS_PER_SECOND, 1.2, "better"),
        (RUN_TOKENS_PER_SECOND, 0.8, "worse"),
    ],
)
def test_the_metric_says_which_direction_is_better(metric: Metric, factor: float, outcome: ChangeOutcome) -> None:
    a = (1.0, 1.01, 0.99, 1.005, 0.995)
    assert _judged(a, [factor * value for value in a], metric).outcome == outcome


def test_an_interval_within_the_margin_is_the_same_even_where_it_excludes_no_change() -> None:
    a, b = (1.0, 1.001, 0.999, 1.0, 1.0005), (1.006, 1.007, 1.005, 1.006, 1.0065)
    (found,) = judge([_change(a, b)], margin=0.02)
    assert found.adjusted_p is not None
    assert found.adjusted_p < 0.05
    assert found.outcome == "same"
    assert judge([_change(a, b)], margin=0.004)[0].outcome == "worse"


def test_what_shows_neither_a_difference_nor_sameness_is_unsure() -> None:
    found = _judged((1.0, 1.1, 0.9), (1.05, 1.2, 0.95))
    assert found.outcome == "unsure"
    assert found.more_trials is not None


def test_few_trials_show_a_difference_only_where_their_series_says_that_they_are_typical() -> None:
    """Three trials that lie close together may all belong to one of two modes; only other runs show the second one."""
    sides = [estimate(RUN_STEP_SECONDS, trials) for trials in ((1.0, 1.001, 0.999), (1.03, 1.032, 1.029))]
    calm, modal = [(1.0, 1.002, 0.998)] * 12, [(1.0, 1.06, 1.001), (1.06, 1.002, 1.061)] * 6

    def judged(*earlier: Sequence[Sequence[float]]) -> JudgedChange:
        found = change(RUN_STEP_SECONDS, *sides, is_paired=False, earlier=(earlier[0], earlier[1]))
        return judge([found])[0]

    alone = judged((), calm)
    assert (alone.outcome, alone.more_trials, alone.change.is_short) == ("unsure", 2, True)
    assert alone.change.reason is not None
    assert (judged(calm, calm).outcome, judged(calm, calm).change.reason) == ("worse", None)
    assert judged(calm, modal).outcome == "unsure"
    assert judged(calm[:11], calm).change.is_short


@pytest.mark.parametrize(
    ("slower", "outcome"), [(2.0, "worse"), (1 / 2.0, "better"), (1.52, "unsure"), (1.4, "unsure")]
)
def test_few_trials_show_a_large_difference(slower: float, outcome: str) -> None:
    """At 1.52 the interval reaches below a factor of 1.5."""
    b = (slower, 1.03 * slower, 0.97 * slower)
    found = _judged((1.0, 1.02, 0.98), b)
    assert (found.outcome, found.change.is_short) == (outcome, True)


@pytest.mark.parametrize(("a", "b", "side"), [((1.0,), (1.0, 1.1), "A has"), ((1.0,), (1.1,), "A and B have")])
def test_one_trial_is_too_little(a: tuple[float, ...], b: tuple[float, ...], side: str) -> None:
    found = _judged(a, b)
    assert found.outcome == "insufficient_data"
    assert found.change.reason == f"{side} one trial, which has no interval"


@pytest.mark.parametrize(("size", "outcome"), [(1000.0, "same"), (1001.0, "worse"), (999.0, "better")])
@pytest.mark.parametrize("is_paired", [False, True])
def test_equal_trials_are_compared_exactly(size: float, outcome: ChangeOutcome, is_paired: bool) -> None:
    sides = [estimate(RUN_PEAK_MEMORY_BYTES, [value] * 3, account="live_tensors") for value in (1000.0, size)]
    (found,) = judge([change(RUN_PEAK_MEMORY_BYTES, *sides, is_paired=is_paired)])
    assert (found.outcome, found.change.is_exact) == (outcome, True)
    assert found.change.low is None


def test_only_measured_figures_with_a_direction_that_both_sides_have_are_compared() -> None:
    side = [
        estimate(RUN_STEP_SECONDS, (1.0, 1.1)),
        estimate(RUN_PHASE_SECONDS, (1.0, 1.1), phase="forward"),
        estimate(RUN_COMMUNICATION_SECONDS, (1.0, 1.1), account="traced"),
        estimate(RUN_COMMUNICATION_SECONDS, (1.0, 1.1), account="expected"),
        estimate(RUN_LOSS, (1.0, 1.1)),
        Estimate(metric="observatory_of_another_version", labels={}, median=1, low=None, high=None, trials=(1, 2)),
    ]
    found = changes(side, [side[-1], *side[2:4], side[4], side[0]], is_paired=False)
    assert [one.a for one in found] == [side[0], side[2]]


# Many figures at once.


def test_the_adjusted_p_values_are_scipys() -> None:
    random = np.random.default_rng(1)
    p_values = [*random.uniform(0, 1, 30).tolist(), *random.uniform(0, 0.01, 10).tolist(), 0.02, 0.02]
    assert false_discovery(p_values) == pytest.approx(scipy.stats.false_discovery_control(p_values).tolist())
    assert false_discovery([0.04, 0.01, 0.5, 0.03]) == pytest.approx([0.16 / 3, 0.04, 0.5, 0.16 / 3])
    assert false_discovery([]) == []


def test_of_series_without_change_a_night_has_a_discovery_no_more_often_than_the_rate() -> None:
    random = np.random.default_rng(0)
    nights = [min(false_discovery(random.uniform(0, 1, 50).tolist())) <= 0.1 for _ in range(300)]
    assert sum(nights) <= 50  # 30 expected; more than 50 has probability 0.0001.


def test_without_a_change_few_comparisons_of_many_figures_call_any_better_or_worse() -> None:
    """By single tests, half of the comparisons of 20 figures would."""
    random = np.random.default_rng(9)
    false = single = 0
    for _ in range(100):
        found = [_change(_times(random, 5, 0.02), _times(random, 5, 0.02)) for _ in range(20)]
        false += any(one.outcome in ("better", "worse") for one in judge(found, margin=1e-6))
        single += any(one.p_value is not None and one.p_value < 0.05 for one in found)
    assert false / 100 <= 0.09
    assert single / 100 >= 0.35


def test_the_other_figures_do_not_hide_a_change_of_a_main_one() -> None:
    main = _change((1.0, 1.01, 0.99, 1.0, 1.005), (1.06, 1.07, 1.04, 1.06, 1.065))
    others = [
        change(
            RUN_PHASE_SECONDS,
            *(estimate(RUN_PHASE_SECONDS, values, phase=f"p{number}") for values in ((1.0, 1.1), (1.0, 1.2))),
            is_paired=False,
        )
        for number in range(40)
    ]
    found = judge([*others, main])
    assert found[-1].outcome == "worse"
    assert counted(found) == {"worse": 1, "unsure": 40}


# Power.


@pytest.mark.parametrize(("trials", "effect"), [(3, 0.20), (5, 0.07), (10, 0.045)])
def test_the_power_of_the_test_is_as_often_as_it_shows_a_change(trials: int, effect: float) -> None:
    random = np.random.default_rng(trials)
    deviation = 0.03
    pairs = [
        (_times(random, trials, deviation), _times(random, trials, deviation, 0.02 * math.exp(effect)))
        for _ in range(EXPERIMENTS)
    ]
    found = [_change(a, b, is_paired=True) for a, b in pairs]
    shown = sum(one.p_value is not None and one.p_value < 0.05 for one in found) / EXPERIMENTS
    of_t = power_of_test(effect / (deviation * math.sqrt(2 / trials)), trials - 1)
    assert of_t - (power_of_t(trials) - POWER) - 0.04 <= shown <= of_t


def test_the_power_of_sameness_is_as_often_as_the_interval_is_within_the_margin() -> None:
    random = np.random.default_rng(31)
    deviation, trials, margin = 0.01, 8, 0.02
    same = sum(
        judge([_change(_times(random, trials, deviation), _times(random, trials, deviation))], margin=margin)[0].outcome
        == "same"
        for _ in range(EXPERIMENTS)
    )
    distance = math.log1p(margin) / (deviation * math.sqrt(2 / trials))
    assert same / EXPERIMENTS == pytest.approx(power_of_equivalence(distance, 2 * (trials - 1)), abs=0.05)


def test_the_smallest_change_shown_is_shown_with_80_percent_power() -> None:
    for trials in (2, 3, 5, 20, 200):
        distance = smallest_shown(trials, 0.03) / (0.03 * math.sqrt(2 / trials))
        assert power_of_test(distance, trials - 1) == pytest.approx(power_of_t(trials), abs=1e-3)
    with pytest.raises(ValueError, match="use 2 or more"):
        smallest_shown(1, 0.03)


def test_as_many_trials_as_are_told_settle_a_change_as_large_as_measured() -> None:
    one = _change((1.00, 1.06, 0.95, 1.02), (1.05, 1.12, 0.99, 1.04))
    needed = trials_to_settle(one, margin=0.01)
    assert needed is not None
    assert judge([one], margin=0.01)[0].more_trials == needed - 4
    powers = [
        power_of_test(math.log(one.value) / one.error(count), one.freedom(count)) for count in (needed - 1, needed)
    ]
    assert powers[0] < power_of_t(needed) <= powers[1]


def test_where_the_measured_change_is_within_the_margin_as_many_are_told_as_show_sameness() -> None:
    one = _change((1.00, 1.06, 0.95, 1.02), (1.002, 1.055, 0.96, 1.02))
    margin = math.log1p(0.02)
    needed = trials_to_settle(one, margin=margin)
    assert needed is not None
    powers = [power_of_equivalence(margin / one.error(count), one.freedom(count)) for count in (needed - 1, needed)]
    assert powers[0] < power_of_t(needed) <= powers[1]


def test_noise_beyond_any_number_of_trials_has_no_number() -> None:
    one = _change((1.0, 9.0, 0.1), (1.01, 8.0, 0.1))
    assert trials_to_settle(one, margin=math.log1p(0.001)) is None
    assert judge([one], margin=0.001)[0].more_trials is None
