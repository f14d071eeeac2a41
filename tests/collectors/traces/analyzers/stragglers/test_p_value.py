"""How lucky a rank must be is never told too low."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.analyzers.stragglers import observations_needed, p_value_bound


def _alone(steps: int, ranks: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """One rank is late by as much in each step, and no other."""
    delays_ns = np.zeros((steps, ranks), dtype=np.int64)
    delays_ns[:, ranks // 2] = 50_000_000
    return delays_ns


@pytest.mark.parametrize(("ranks", "steps"), [(4, 4), (8, 3), (2, 7), (64, 2)])
def test_a_rank_that_is_late_alone_is_as_lucky_as_dice_say(ranks: int, steps: int) -> None:
    assert p_value_bound(_alone(steps, ranks)) == pytest.approx(ranks * (1 / ranks) ** steps, rel=1e-6)


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4))
def test_the_bound_is_above_the_share_of_all_orders_in_which_a_rank_is_as_late(delays: list[list[int]]) -> None:
    delays_ns = np.array(delays, dtype=np.int64)
    if not delays_ns.any():
        return
    largest = delays_ns.sum(axis=0).max()
    orders = list(product(*(list(permutations(step)) for step in delays)))
    reached = sum(any(sum(step[rank] for step in order) >= largest for rank in range(3)) for order in orders)
    assert p_value_bound(delays_ns) >= reached / len(orders) * (1 - 1e-9)


def test_steps_in_which_all_are_late_alike_change_nothing() -> None:
    both = np.concatenate((_alone(4, 8), np.full((50, 8), 30_000_000)))
    assert p_value_bound(both) == pytest.approx(p_value_bound(_alone(4, 8)), rel=1e-6)


def test_lateness_that_goes_round_is_no_news() -> None:
    assert p_value_bound(np.eye(4, dtype=np.int64)) == 1.0


@pytest.mark.parametrize(("ranks", "steps"), [(2, 7), (4, 4), (8, 3)])
def test_the_observations_needed_are_just_enough(ranks: int, steps: int) -> None:
    assert observations_needed(ranks, 0.02) == steps
    assert p_value_bound(_alone(steps, ranks)) <= 0.02 < p_value_bound(_alone(steps - 1, ranks))
