"""A histogram counts each value in the bucket whose bounds hold it, natively and classically."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import accumulate, pairwise
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.metrics.metric import NODE
from collectors.prometheus.histogram import (
    CLASSIC_BOUNDS,
    ZERO_THRESHOLD,
    Observations,
    classic_bucket,
    histogram_of,
    native_bucket,
    upper_bound,
)

TIME = NODE.histogram("x_time_seconds{slot}", "A time.")
DURATIONS = st.floats(min_value=ZERO_THRESHOLD, max_value=1e9, exclude_min=True)


def _observed(*values: float) -> Observations:
    observations = Observations()
    for value in values:
        observations.observe(value)
    return observations


def test_native_bounds_are_those_of_prometheus_own_client() -> None:
    # client_golang, nativeHistogramBounds of schema 3; there and here times 2 for the buckets up to 1.
    expected = [0.5, 0.5452538663326288, 0.5946035575013605, 0.6484197773255048]
    expected += [0.7071067811865475, 0.7711054127039704, 0.8408964152537144, 0.9170040432046711]
    assert [upper_bound(bucket) for bucket in range(-8, 0)] == pytest.approx(expected, rel=1e-15)
    assert [upper_bound(bucket) for bucket in (-80, -8, 0, 8, 56)] == [2**-10, 0.5, 1, 2, 128]


@given(DURATIONS)
def test_a_value_is_above_the_bound_below_its_native_bucket_and_not_above_its_own(value: float) -> None:
    bucket = native_bucket(value)
    assert upper_bound(bucket - 1) < value <= upper_bound(bucket)


@given(st.integers(-200, 200))
def test_a_bound_belongs_to_its_bucket_and_what_follows_it_to_the_next(bucket: int) -> None:
    bound = upper_bound(bucket)
    assert (native_bucket(bound), native_bucket(math.nextafter(bound, math.inf))) == (bucket, bucket + 1)


def test_classic_bounds_go_from_a_millisecond_to_two_minutes_by_the_root_of_two() -> None:
    assert len(CLASSIC_BOUNDS) == 35
    assert (CLASSIC_BOUNDS[0], CLASSIC_BOUNDS[20], CLASSIC_BOUNDS[-1]) == (2**-10, 1.0, 128.0)
    ratios = [after / before for before, after in pairwise(CLASSIC_BOUNDS)]
    assert ratios == pytest.approx([math.sqrt(2)] * 34)


@given(DURATIONS)
def test_a_classic_bucket_holds_the_native_one_of_each_value(value: float) -> None:
    by_hand = sum(bound < value for bound in CLASSIC_BOUNDS)
    assert classic_bucket(native_bucket(value)) == by_hand == Observations().observe(value)


@given(st.lists(st.floats(min_value=0, max_value=1e9)))
def test_classic_counts_are_how_many_values_are_at_most_each_bound(values: list[float]) -> None:
    histogram = histogram_of(TIME, [_observed(*values)], slot="0")
    by_hand = [sum(value <= bound for value in values) for bound in (*CLASSIC_BOUNDS, math.inf)]
    assert histogram.classic_counts() == by_hand
    assert histogram.value == len(values) == histogram.zeros + sum(histogram.buckets.values())
    assert histogram.total == pytest.approx(math.fsum(values))


@pytest.mark.parametrize("value", [-0.001, math.inf, math.nan])
def test_what_is_no_duration_is_refused_and_not_counted(value: float) -> None:
    observations = Observations()
    with pytest.raises(ValueError, match="is no duration"):
        observations.observe(value)
    assert histogram_of(TIME, [observations], slot="0").value == 0


def test_parts_add_up() -> None:
    histogram = histogram_of(TIME, [_observed(1.0, 0.25), _observed(1.0, 4.0, 0.0)], slot="0")
    assert histogram.buckets == {-16: 1, 0: 2, 16: 1}
    assert (histogram.value, histogram.total, histogram.zeros) == (5, 6.25, 1)


def test_a_value_that_came_several_times_counts_so_often() -> None:
    observations = Observations()
    observations.observe(2.0, 3)
    observations.observe(0.0, 2)
    assert histogram_of(TIME, [observations], slot="0").buckets == {8: 3}
    assert (observations.total, observations.zeros) == (6.0, 2)


def test_a_histogram_has_its_metrics_labels() -> None:
    assert histogram_of(TIME, [], slot="0").labels == {"slot": "0"}
    with pytest.raises(ValueError, match="missing: slot"):
        histogram_of(TIME, [])


def test_quantiles_of_ten_thousand_durations_are_in_the_bucket_that_the_counts_say() -> None:
    random_ = random.Random(7)
    values = [random_.lognormvariate(math.log(0.1), 0.3) for _ in range(10_000)]
    histogram = histogram_of(TIME, [_observed(*values)], slot="0")
    assert histogram.buckets == dict(sorted(Counter(map(native_bucket, values)).items()))
    for percent in (50, 99):
        true = quantiles(values, n=100)[percent - 1]
        below = zip(histogram.buckets, accumulate(histogram.buckets.values()), strict=True)
        bucket = next(bucket for bucket, seen in below if seen >= percent * 100)
        assert upper_bound(bucket - 1) <= true <= upper_bound(bucket)
