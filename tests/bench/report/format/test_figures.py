"""Figures for people keep their value, with a unit and about three digits."""

import json
from dataclasses import replace

import pytest

from bench.report.format import WIDE_RATIOS, figure, percent, wide_interval_notes
from bench.report.run.summary import print_summaries
from bench.results.estimate import EstimatedRatio, estimate
from collectors.metrics import results
from collectors.metrics.metric import Metric
from tests.bench.made.examples import make_summary


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


def _ratio(low: float | None, high: float | None, trials: int = 3) -> EstimatedRatio:
    return EstimatedRatio(value=0.5, low=low, high=high, numerator_trials=trials, denominator_trials=3)


def test_a_ratio_is_shown_in_percent_with_its_interval() -> None:
    assert percent(_ratio(0.25, 0.75)) == "50.0 % [25.0, 75.0]"
    assert percent(_ratio(None, None)) == "50.0 %"


def test_an_interval_of_two_trials_that_is_wider_than_its_figure_is_not_shown() -> None:
    wide = estimate(results.RUN_STEP_SECONDS, [0.080, 0.120])
    assert wide.high is not None
    assert wide.high > 10 * wide.median
    assert figure(wide) == "100 ms"
    assert figure(estimate(results.RUN_STEP_SECONDS, [0.080, 0.081])).startswith("80.5 ms [")
    assert figure(estimate(results.RUN_STEP_SECONDS, [0.010, 0.080, 0.900])).startswith("80.0 ms [")
    assert percent(_ratio(0.001, 90, trials=2)) == "50.0 %"


def test_an_interval_that_spans_most_of_a_ratio_is_not_shown_and_the_note_says_so() -> None:
    wide, narrow = _ratio(0.05, 0.95), _ratio(0.3, 0.7)
    assert percent(wide) == "50.0 %"
    assert percent(narrow) == "50.0 % [30.0, 70.0]"
    assert wide_interval_notes([wide, wide]) == [WIDE_RATIOS]
    assert wide_interval_notes([narrow]) == []
    overlap = estimate(results.RUN_OVERLAP_RATIO, [0.1, 0.5, 0.9])
    assert figure(overlap) == "50.0 %"
    assert figure(replace(overlap, metric=results.RUN_STEP_SECONDS.name)).startswith("500 ms [")


def test_that_two_trials_tell_little_is_said_once_on_the_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    wide = (estimate(results.RUN_STEP_SECONDS, [0.080, 0.120]), estimate(results.RUN_MEAN_STEP_SECONDS, [0.1, 0.2]))
    runs = [make_summary(run, estimates=wide, scaling=()) for run in ("run-a", "run-b")]
    print_summaries(runs, "table")
    printed = capsys.readouterr().out
    assert printed.count("only 2 trials, so intervals") == 1
    (row,) = [row for row in printed.splitlines() if row.startswith("median step")]
    assert row.split() == ["median", "step", "100", "ms", "100", "ms"]
    print_summaries([make_summary(scaling=())], "table")
    assert "only 2 trials" not in capsys.readouterr().out
    print_summaries(runs, "json")
    found = json.loads(capsys.readouterr().out)[0]["estimates"][0]
    assert (found["low"], found["high"]) == (wide[0].low, wide[0].high)
