"""Figures keep two or three digits, however small."""

import pytest

from bench.report.format import digits, duration, in_units
from bench.results.estimate import Estimate


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.4, "1,234"),
        (6.9e13, "6.9e+13"),
        (20.46, "20.5"),
        (6.804, "6.80"),
        (0.1234, "0.123"),
        (0.0042, "0.0042"),
        (0.000412, "0.00041"),
        (4.2e-6, "4.2e-06"),
        (0.0, "0"),
        (-0.0, "0"),
        (-0.0042, "-0.0042"),
    ],
)
def test_a_figure_has_two_or_three_digits_and_only_0_is_0(value: float, text: str) -> None:
    assert digits(value) == text


def _estimate(median: float, low: float | None, high: float | None) -> Estimate:
    return Estimate(metric="any", labels={}, median=median, low=low, high=high, trials=(median,) * 3)


def test_each_end_of_an_interval_has_digits_of_its_own() -> None:
    assert in_units(_estimate(0.00031, 0.0000002, 6.8), 1) == "0.00031 [2.0e-07, 6.80]"
    assert in_units(_estimate(3.1e-7, 2e-10, 6.8e-3), 1e-6) == "0.310 [0.00020, 6,800]"


def test_without_an_end_there_is_no_interval() -> None:
    assert in_units(_estimate(20.5, None, 21.0), 1) == "20.5"
    assert in_units(None, 1) == "-"


@pytest.mark.parametrize(
    ("elapsed_s", "text"),
    [
        (0.42, "0.4 s"),
        (9.96, "10.0 s"),
        (45.4, "45 s"),
        (59.7, "1 min"),
        (130, "2 min 10 s"),
        (3600, "1 h"),
        (5100.2, "1 h 25 min"),
        (3 * 86400 + 4 * 3600 + 59, "3 d 4 h"),
    ],
)
def test_a_time_has_its_two_largest_units(elapsed_s: float, text: str) -> None:
    assert duration(elapsed_s) == text
