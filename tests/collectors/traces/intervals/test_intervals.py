"""The algebra agrees with counting nanoseconds one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.intervals import Times, clip, intersection, length_ns, union, union_of

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


def _set(spans: list[tuple[int, int]]) -> Times:
    start_ns = np.array([start for start, _ in spans], dtype=np.int64)
    return union(start_ns, start_ns + np.array([length for _, length in spans], dtype=np.int64))


def _moments(spans: list[tuple[int, int]]) -> set[int]:
    return {moment for start, length in spans for moment in range(start, start + length)}


@given(SPANS)
def test_a_union_lasts_as_long_as_the_moments_that_are_covered(spans: list[tuple[int, int]]) -> None:
    assert length_ns(_set(spans)) == len(_moments(spans))


@given(SPANS)
def test_a_union_is_sorted_and_disjoint_and_no_two_of_it_touch(spans: list[tuple[int, int]]) -> None:
    found = _set(spans)
    assert (found[:, 0] < found[:, 1]).all()
    assert (found[1:, 0] > found[:-1, 1]).all()


@given(SPANS, SPANS)
def test_an_intersection_lasts_as_long_as_the_moments_in_both(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    assert length_ns(intersection(_set(one), _set(other))) == len(_moments(one) & _moments(other))


@given(SPANS, st.integers(0, 80), st.integers(0, 80))
def test_clipping_keeps_the_moments_of_the_window(spans: list[tuple[int, int]], start: int, length: int) -> None:
    assert length_ns(clip(_set(spans), start, start + length)) == len(
        _moments(spans) & set(range(start, start + length))
    )


def test_nanoseconds_of_this_century_stay_exact() -> None:
    start = 1_795_187_272_350_042_681
    assert length_ns(union(np.array([start]), np.array([start + 3]))) == 3


@given(st.lists(SPANS, max_size=4))
def test_the_union_of_several_sets_is_that_of_all_their_intervals(spans: list[list[tuple[int, int]]]) -> None:
    found = union_of(_set(each) for each in spans)
    assert found.tolist() == _set([span for each in spans for span in each]).tolist()
