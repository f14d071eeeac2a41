"""What intervals leave free is their complement."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.intervals import Times, gaps, intersection, length_ns, union, without

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def _set(rows: list[tuple[int, int]]) -> Times:
    pairs = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return union(pairs[:, 0], pairs[:, 1])


def test_gaps_lie_before_between_and_after() -> None:
    assert gaps(_set([(2, 4), (6, 8)]), 0, 10).tolist() == [[0, 2], [4, 6], [8, 10]]


def test_a_window_that_is_covered_has_no_gap() -> None:
    assert gaps(_set([(0, 20)]), 5, 10).tolist() == []


def test_a_window_without_intervals_is_one_gap() -> None:
    assert gaps(_set([]), 5, 10).tolist() == [[5, 10]]


@given(INTERVALS, INTERVALS)
def test_a_set_is_what_it_shares_with_another_and_what_it_does_not(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    mine, theirs = _set(one), _set(other)
    rest = without(mine, theirs)
    assert length_ns(rest) + length_ns(intersection(mine, theirs)) == length_ns(mine)
    assert not intersection(rest, theirs).size
