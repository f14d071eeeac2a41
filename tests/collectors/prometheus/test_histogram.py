"""A histogram counts each value in the bucket whose bounds hold it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.metrics.metric import NODE
from collectors.prometheus.exposition import BOUNDS_S, Observations, histogram_of

TIME = NODE.histogram("x_time_seconds{slot}", "A time.")


def _observed(*values: float) -> Observations:
    observations = Observations()
    for value in values:
        observations.observe(value)
    return observations


def test_bounds_go_from_a_millisecond_to_two_minutes_by_the_root_of_two() -> None:
    assert len(BOUNDS_S) == 35
    assert (BOUNDS_S[0], BOUNDS_S[20], BOUNDS_S[-1]) == (2**-10, 1.0, 128.0)
    ratios = [after / before for before, after in pairwise(BOUNDS_S)]
    assert ratios == pytest.approx([math.sqrt(2)] * 34)


@given(st.floats(min_value=0, max_value=1e9))
def test_a_value_is_above_the_bound_below_its_bucket_and_not_above_its_own(value: float) -> None:
    assert Observations().observe(value) == sum(bound < value for bound in BOUNDS_S)


@pytest.mark.parametrize("place", range(35))
def test_a_bound_belongs_to_its_bucket_and_what_follows_it_to_the_next(place: int) -> None:
    bound = BOUNDS_S[place]
    observed = Observations()
    assert (observed.observe(bound), observed.observe(math.nextafter(bound, math.inf))) == (place, place + 1)


@given(st.lists(st.floats(min_value=0, max_value=1e9)))
def test_cumulative_counts_are_how_many_values_are_at_most_each_bound(values: list[float]) -> None:
    histogram = histogram_of(TIME, [_observed(*values)], slot="0")
    by_hand = [sum(value <= bound for value in values) for bound in (*BOUNDS_S, math.inf)]
    assert histogram.cumulative() == by_hand
    assert histogram.value == len(values)
    assert histogram.total == pytest.approx(math.fsum(values))


@pytest.mark.parametrize("value", [-0.001, math.inf, math.nan])
def test_what_is_no_duration_is_refused_and_not_counted(value: float) -> None:
    observations = Observations()
    with pytest.raises(ValueError, match="is no duration"):
        observations.observe(value)
    assert histogram_of(TIME, [observations], slot="0").value == 0


def test_parts_add_up() -> None:
    histogram = histogram_of(TIME, [_observed(1.0, 0.25), _observed(1.0, 4.0, 0.0)], slot="0")
    assert {BOUNDS_S[place]: count for place, count in enumerate(histogram.counts) if count} == {
        BOUNDS_S[0]: 1,
        0.25: 1,
        1.0: 2,
        4.0: 1,
    }
    assert (histogram.value, histogram.total) == (5, 6.25)


def test_a_value_that_came_several_times_counts_so_often() -> None:
    observations = Observations()
    bucket = observations.observe(2.0, 3)
    observations.observe(0.0, 2)
    assert (observations.total, observations.counts[bucket], observations.counts[0]) == (6.0, 3, 2)


def test_a_histogram_has_its_metrics_labels() -> None:
    assert histogram_of(TIME, [], slot="0").labels == {"slot": "0"}
    with pytest.raises(ValueError, match="missing: slot"):
        histogram_of(TIME, [])
