"""Intervals of an attribution, against the tables and formulas that they are said to follow."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from statistics import fmean, variance

import pytest

from bench.gate.cause.attribution import attribute, change_of_pairs

WILCOXON = {6: 0, 7: 2, 8: 3, 9: 5, 10: 8, 12: 13}
"""Critical values of signed ranks at 5 %, two-sided, by the number of pairs (Wilcoxon and Wilcox 1964)."""
STUDENT = {2: 12.7062, 3: 4.30265, 5: 2.77645}
"""The 97.5 % quantile of Student's t, by the number of nights: with one degree of freedom less."""


@pytest.mark.parametrize("pairs", WILCOXON)
def test_the_interval_of_pairs_leaves_out_as_many_means_as_the_table_says(pairs: int) -> None:
    differences = [0.01 * number**2 for number in range(pairs)]
    means = sorted(sum(two) / 2 for two in combinations_with_replacement(differences, 2))
    change = change_of_pairs([0.0] * pairs, differences)
    assert change is not None
    assert math.log(change.low) == pytest.approx(means[WILCOXON[pairs]])
    assert math.log(change.high) == pytest.approx(means[-1 - WILCOXON[pairs]])


def test_fewer_pairs_than_six_have_no_interval() -> None:
    assert change_of_pairs([0.0] * 5, [0.1] * 5) is None


@pytest.mark.parametrize("nights", STUDENT)
def test_the_environment_changed_by_what_the_good_tree_did_with_both_nights_errors(nights: int) -> None:
    good = [0.31, 0.29, 0.30, 0.32, 0.28, 0.33, 0.27, 0.30]
    before = [0.1, 0.13, 0.12, 0.08, 0.11][:nights]
    _, _, environment = attribute(good, good, before, suspected=0.2)
    assert environment is not None
    error = math.sqrt(variance(good) / 8 + variance(before) * (1 + 1 / nights))
    middle = fmean(good) - fmean(before)
    assert math.log(environment.ratio) == pytest.approx(middle)
    assert math.log(environment.low) == pytest.approx(middle - STUDENT[nights] * error, rel=1e-4)
    assert math.log(environment.high) == pytest.approx(middle + STUDENT[nights] * error, rel=1e-4)


def test_too_few_pairs_still_tell_what_the_environment_did() -> None:
    outcome, code, environment = attribute([0.3, 0.31], [0.3, 0.31], [0.1, 0.12, 0.11], suspected=0.2)
    assert (outcome, code) == ("unsure", None)
    assert environment is not None
    assert environment.ratio == pytest.approx(math.exp(0.305 - 0.11))


@pytest.mark.parametrize(("step", "suspected"), [(0.004, 0.02), (-0.004, 0.02), (0.004, -0.02), (-0.004, -0.02)])
def test_trees_are_equal_only_if_both_ends_of_the_interval_are_near(step: float, suspected: float) -> None:
    """The interval reaches from 0 to seven steps, up or down: further than half of the suspected change."""
    differences = [step * number for number in range(8)]
    outcome, *_ = attribute([0.0] * 8, differences, [0.0, 0.001], suspected)
    assert outcome != "environment"
