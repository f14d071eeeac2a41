"""Which leg of an efficiency changed: the run's own rate, or its baseline's."""

from __future__ import annotations

import pytest

from bench.gate.cause.legs import LEG_NIGHTS, is_of_the_baseline, legs_changed, middle_legs

NIGHTS = [(number, 1000 * number) for number in range(4)]
"""Number and time."""


@pytest.mark.parametrize(
    ("own_ratio", "baseline_ratio", "is_so"),
    [
        (1.0, 1.1, True),
        (0.97, 1.08, True),  # Both, and more of it is the baseline's gain.
        (0.92, 1.03, False),
        (1.02, 1.08, True),  # The run gained, too.
        (1.02, 1.01, True),
        (0.9, 1.0, False),
        (0.9, 0.95, False),
        (None, 1.1, False),
        (0.9, None, False),
    ],
)
def test_the_leg_that_changed_more_is_the_one(
    own_ratio: float | None, baseline_ratio: float | None, is_so: bool
) -> None:
    assert is_of_the_baseline(own_ratio, baseline_ratio) == is_so


def test_the_night_of_a_change_is_not_one_of_those_before_it() -> None:
    legs = [(100.0, 50.0), (100.0, 50.0), (60.0, 75.0), (60.0, 75.0)]
    assert legs_changed(legs, NIGHTS, since_ns=2000) == (0.6, 1.5)
    assert legs_changed(legs[1:3], NIGHTS[1:3], since_ns=2000) == (0.6, 1.5)


def test_without_a_night_before_the_change_no_leg_is_known() -> None:
    assert legs_changed([(60.0, 75.0)], NIGHTS[2:3], since_ns=2000) == (None, None)
    assert legs_changed([(60.0, 75.0)], NIGHTS[2:3], since_ns=None) == (None, None)


def test_legs_are_of_the_newest_nights_and_from_the_asked_one_on() -> None:
    legs = [(1.0, 2.0), (10.0, 20.0), (30.0, 40.0)]  # Of the last three nights: older ones had no efficiency.
    assert middle_legs(legs, NIGHTS) == (10.0, 20.0)
    assert middle_legs(legs, NIGHTS, since_number=2) == (20.0, 30.0)
    assert middle_legs(legs, NIGHTS, since_number=4) is None
    many = [(float(number), 1.0) for number in range(LEG_NIGHTS + 10)]
    nights = [(number, number) for number in range(LEG_NIGHTS + 10)]
    middle = middle_legs(many, nights)
    assert middle is not None
    assert middle[0] == 10 + (LEG_NIGHTS - 1) / 2
