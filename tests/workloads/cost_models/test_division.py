"""Whole tensors go to who has least, the largest first, against answers made by hand and a bound."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.cost_models.terms import divide


def test_the_largest_goes_first_to_who_has_least() -> None:
    assert divide([3, 5, 4, 3, 3], 2) == (1, 0, 1, 0, 1)


def test_of_equal_ones_the_first_goes_first_to_the_first() -> None:
    assert divide([2, 2, 2], 3) == (0, 1, 2)


def test_there_may_be_more_holders_than_tensors() -> None:
    assert divide([1, 2], 4) == (1, 0)


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=30), data=st.data())
def test_nobody_has_a_tensor_more_than_the_mean_and_nobody_none_while_there_are_enough(
    sizes: list[int], data: st.DataObject
) -> None:
    holders = data.draw(st.integers(1, len(sizes)))
    holder_of = divide(sizes, holders)
    assert set(holder_of) == set(range(holders))
    held = [sum(size for size, one in zip(sizes, holder_of, strict=True) if one == holder) for holder in range(holders)]
    assert max(held) <= Fraction(sum(sizes), holders) + max(sizes)


def test_tensors_without_a_holder_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^holders is 0; it must be 1 or more$"):
        divide([1], 0)
