"""Figures for people keep their value, with a unit and about three digits."""

import pytest

from bench.judgement.estimate import estimate
from bench.reports.figures import figure, percent
from collectors.catalogue import results
from collectors.metric import Metric


@pytest.mark.parametrize(
    ("metric", "trials", "text"),
    [
        (results.RUN_STEP_SECONDS, [0.0841], "84.1 ms"),
        (results.RUN_STEP_SECONDS, [1.5], "1.50 s"),
        (results.RUN_TOKENS_PER_SECOND, [12345.6], "12,346"),
        (results.RUN_FLOPS, [43.2e9], "43.2 GFLOP/s"),
        (results.RUN_FLOPS, [612e12], "612 TFLOP/s"),
        (results.RUN_MFU, [0.4321], "43.2 %"),
    ],
)
def test_a_figure_has_its_unit_for_people(metric: Metric, trials: list[float], text: str) -> None:
    assert figure(estimate(metric, trials)) == text


def test_an_interval_stands_behind_the_median_in_the_same_unit() -> None:
    found = estimate(results.RUN_STEP_SECONDS, [0.080, 0.084, 0.090])
    assert found.low is not None
    assert found.high is not None
    assert figure(found) == f"84.0 ms [{1e3 * found.low:.1f}, {1e3 * found.high:.1f}]"


def test_bytes_are_counted_in_powers_of_two() -> None:
    assert figure(estimate(results.RUN_PEAK_MEMORY_BYTES, [3 * 2**20], account="resident")) == "3.00 MiB"
    assert figure(estimate(results.RUN_PEAK_MEMORY_BYTES, [3 * 2**10], account="resident")) == "3.00 KiB"
    assert figure(estimate(results.RUN_PEAK_MEMORY_BYTES, [4], account="resident")) == "4 B"
    assert figure(estimate(results.RUN_PEAK_MEMORY_BYTES, [1.5 * 2**30], account="resident")) == "1.50 GiB"


def test_a_ratio_is_shown_in_percent_with_its_interval() -> None:
    assert percent(0.5, 0.25, 0.75) == "50.0 % [25.0, 75.0]"
    assert percent(0.5, None, None) == "50.0 %"
