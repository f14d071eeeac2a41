"""False discoveries over the series of a night."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.analysis.regressions.discovery import discoveries


def test_the_procedure_of_benjamini_and_hochberg_by_hand() -> None:
    # Limits 0.1 * rank / 4 of the sorted p-values: 0.025, 0.05, 0.075, 0.1. The third lies below its own, so all up to
    # it are discoveries, though the second does not.
    assert discoveries([0.5, 0.02, 0.06, 0.07]) == (False, True, True, True)
    assert discoveries([0.5, 0.03, 0.06, 0.08]) == (False, False, False, False)


def test_a_series_without_a_verdict_is_no_discovery_and_does_not_count() -> None:
    assert discoveries([None, 0.04, None]) == (False, True, False)
    assert discoveries([None, None]) == (False, False)
    assert discoveries([]) == ()


def test_of_series_without_change_a_night_has_a_discovery_no_more_often_than_the_rate() -> None:
    generator = random.Random(0)
    nights = [any(discoveries([generator.random() for _ in range(50)])) for _ in range(300)]
    assert sum(nights) <= 50  # 30 expected; more than 50 has probability 0.0001.


@given(st.lists(st.floats(0, 1), max_size=20), st.floats(0.01, 0.5))
def test_what_is_found_at_a_rate_is_found_at_a_higher_one(p_values: list[float], rate: float) -> None:
    few, many = discoveries(p_values, rate), discoveries(p_values, 2 * rate * 0.99)
    assert all(after or not before for before, after in zip(few, many, strict=True))


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a p-value is 1\.5"):
        discoveries([0.1, 1.5])
    with pytest.raises(ValueError, match="rate of false discoveries is 0"):
        discoveries([0.1], 0)
