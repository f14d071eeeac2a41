"""The factors of a learning rate are those that the papers' rules give by hand."""

from __future__ import annotations

import pytest

from workloads.core.learning_rate import RateRule, factor, scale


@pytest.mark.parametrize(("rule", "expected"), [("base", 1.0), ("linear", 16.0), ("sqrt", 4.0)])
def test_a_rule_scales_with_sixteen_data_ranks_as_the_papers_say(rule: RateRule, expected: float) -> None:
    assert scale(rule, 16) == expected
    assert factor(rule, data_ranks=16, warm_up=0, step=0) == expected


@pytest.mark.parametrize("rule", ["base", "linear", "sqrt"])
def test_no_rule_changes_the_rate_of_one_data_rank(rule: RateRule) -> None:
    assert [factor(rule, data_ranks=1, warm_up=3, step=step) for step in range(5)] == [1.0] * 5


def test_warm_up_begins_with_the_rate_as_given_and_grows_in_equal_increments_to_the_scaled_one() -> None:
    factors = [factor("linear", data_ranks=5, warm_up=4, step=step) for step in range(7)]
    assert factors == [1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0]
