"""Scores of made histories whose errors are known: bias, ranges, coverage, clusters and order."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import pytest
from rich.console import Console
from scipy.stats import kendalltau

from bench.analysis.prediction.scoring.score import (
    Figure,
    Score,
    clusters_of,
    kendall,
    mean_over_clusters,
    score,
    score_history,
    share_over_clusters,
    spread_of,
)
from bench.analysis.prediction.scoring.score_report import print_score, score_json, score_page
from bench.report.table import print_page
from bench.results.estimate import Estimate, estimate
from bench.store.history import History
from bench.store.prediction import MODEL_VERSION, errors_of
from bench.store.summary import StoredPrediction, Summary
from collectors.metrics import results
from collectors.metrics.metric import Metric
from tests.bench.made.examples import TINY, make_case, make_machine, make_probe, make_summary
from workloads.cost_models.absent import Absent

STEP_S = 0.1


def _exact(metric: Metric, value: float, **labels: str) -> Estimate:
    return Estimate(metric=metric.name, labels=labels, median=value, low=None, high=None, trials=(value,))


def _run(
    name: str,
    *,
    predicted_s: float = STEP_S,
    measured_s: float = STEP_S,
    strategy: str = "ddp",
    ranks: int = 2,
    width: int = 1,
    calibrations: Sequence[str] = ("matmul-a",),
    half: float | None = None,
    estimates: Sequence[Estimate] = (),
    **changes: object,
) -> Summary:
    """A run with a stored prediction. half: of the interval of the step's logarithm. width: factor of the shape's."""
    prediction = StoredPrediction(
        model_version=MODEL_VERSION,
        predicted_ns=1,
        calibrations=tuple(calibrations),
        step_s=predicted_s,
        step_low_s=None if half is None else predicted_s / math.exp(half),
        step_high_s=None if half is None else predicted_s * math.exp(half),
        compute_s=0.6 * predicted_s,
        exposed_s=0.4 * predicted_s,
        bubble_s=0.0,
        memory_bytes={"total": 1200},
    )
    case = make_case(strategy, ranks, model=replace(TINY, width=16 * width))
    measured = (_exact(results.RUN_STEP_SECONDS, measured_s), *estimates)
    summary = make_summary(name, case=case, estimates=measured, scaling=(), prediction=prediction)
    return replace(summary, **changes)  # type: ignore[arg-type]


# The parts of one run


def test_each_part_has_its_error() -> None:
    run = _run(
        "a",
        predicted_s=0.08,
        estimates=(
            _exact(results.RUN_TRACED_RATIO, 0.25, part="exposed_communication"),
            _exact(results.RUN_TRACED_RATIO, 0.7, part="compute"),
            _exact(results.RUN_PHASE_SECONDS, 0.003, phase="optimizer"),
            _exact(results.RUN_MEMORY_ACCOUNT_BYTES, 1000.0, part="total", account="measured"),
        ),
        half=0.1,
    )
    parts = {each.name: each for each in errors_of(run)}
    assert parts["step"].error == pytest.approx(-0.2)
    assert parts["step"].is_inside is False
    assert parts["exposed communication"].error == pytest.approx((0.032 - 0.025) / STEP_S)
    assert parts["computing"].error == pytest.approx((0.048 - 0.07) / STEP_S)
    assert parts["memory: total"].error == pytest.approx(0.2)
    assert (parts["optimizer"].predicted, parts["optimizer"].measured, parts["optimizer"].error) == (None, 0.003, None)
    assert "bubble" not in parts


def test_a_pipeline_s_messages_are_exposed_communication_and_the_rest_of_its_bubble_is_bubble() -> None:
    run = _run(
        "a",
        strategy="one_f_one_b",
        estimates=(
            _exact(results.RUN_TRACED_RATIO, 0.5, part="exposed_communication"),
            _exact(results.RUN_BUBBLE_RATIO, 0.4, account="measured"),
            _exact(results.RUN_BUBBLE_PART_RATIO, 0.05, part="transfer"),
            _exact(results.RUN_BUBBLE_PART_RATIO, 0.07, part="message"),
        ),
    )
    parts = {each.name: each.measured for each in errors_of(run)}
    assert parts["exposed communication"] == pytest.approx(0.12 * STEP_S)
    assert parts["bubble"] == pytest.approx(0.28 * STEP_S)


def test_a_run_without_prediction_or_trial_has_no_errors() -> None:
    assert errors_of(make_summary()) == ()
    assert errors_of(_run("a", trials_done=0)) == ()


# Errors by strategy and world size


def test_known_errors_have_their_median_and_range() -> None:
    errors = [-0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    runs = [_run(f"a{place}", predicted_s=STEP_S * (1 + error)) for place, error in enumerate(errors)]
    runs.append(_run("b", strategy="fsdp", ranks=4, predicted_s=2 * STEP_S))
    of_ddp, of_fsdp = score(runs).groups
    assert (of_ddp.strategy, of_ddp.ranks, of_ddp.runs) == ("ddp", 2, 11)
    step = of_ddp.parts["step"]
    assert (step.median, step.low, step.high) == pytest.approx((0.0, -0.4, 0.4), abs=1e-9)
    assert (of_fsdp.strategy, of_fsdp.ranks) == ("fsdp", 4)
    assert of_fsdp.parts["step"].median == pytest.approx(1.0)
    assert set(of_ddp.parts) == {"step"}, "nothing else was measured"


def test_quantiles_lie_between_neighbours() -> None:
    spread = spread_of([3.0, 1.0, 2.0])
    assert (spread.runs, spread.median) == (3, 2.0)
    assert (spread.low, spread.high) == pytest.approx((1.2, 2.8))


def test_runs_that_cannot_be_scored_are_counted_by_reason() -> None:
    old = StoredPrediction(model_version=MODEL_VERSION - 1, predicted_ns=1, step_s=1.0)
    none = StoredPrediction(model_version=MODEL_VERSION, predicted_ns=1)
    runs = [
        _run("good"),
        make_summary("a"),
        _run("b", prediction=old),
        _run("c", prediction=none),
        _run("d", outcome="failed"),
        _run("e", drill="kill@1:7"),
        make_summary("probe", case=make_probe("matmul"), estimates=()),
    ]
    result = score(runs)
    assert result.runs == 1
    assert result.left_out == {
        "without a stored prediction": 1,
        f"predicted by model version {MODEL_VERSION - 1}": 1,
        "begun before the ceiling or links were measured, or not covered by a cost model": 1,
        "failed, interrupted, or a fire drill": 2,
    }


# Clusters, bias and coverage


def test_runs_are_joined_along_the_calibrations_that_they_share() -> None:
    assert clusters_of([("a", "b"), ("c",), ("b", "d"), ("e",), ("d", "c"), ()]) == [0, 0, 0, 1, 0, 2]


def _clustered(count: int, each: int, *, bias: float, sigma: float, noise: float, seed: int) -> list[Summary]:
    """Runs whose predicted steps are wrong by exp(bias) times what their calibration and they themselves add."""
    draws = random.Random(seed)
    runs = []
    half = NormalDist().inv_cdf(0.9) * math.hypot(sigma, noise)
    for cluster in range(count):
        shared = draws.gauss(0, sigma)
        for place in range(each):
            off = math.exp(bias + shared + draws.gauss(0, noise))
            name = f"{cluster}-{place}"
            runs.append(_run(name, predicted_s=STEP_S * off, calibrations=(f"matmul-{cluster}",), half=half))
    return runs


def test_a_known_bias_and_a_coverage_of_80_percent_are_found() -> None:
    """400 calibrations of one run each: without bias, sigma 0.2 and the interval that belongs to it."""
    result = score(_clustered(400, 1, bias=0.0, sigma=0.2, noise=0.0, seed=1))
    assert result.bias is not None
    assert result.bias.low is not None
    assert result.bias.high is not None
    assert result.bias.low < 1 < result.bias.high
    assert result.bias.high / result.bias.low == pytest.approx(math.exp(2 * 1.966 * 0.2 / 20), rel=0.01)
    assert result.coverage is not None
    assert result.coverage.value == pytest.approx(0.8, abs=3 * math.sqrt(0.8 * 0.2 / 400))
    assert result.coverage.effective_runs == pytest.approx(400, rel=0.01)
    shifted = score(_clustered(400, 1, bias=math.log(0.7), sigma=0.2, noise=0.0, seed=1))
    assert shifted.bias is not None
    assert shifted.bias.value == pytest.approx(0.7 * result.bias.value)
    assert shifted.coverage is not None
    assert shifted.coverage.value < 0.5


def test_runs_of_the_same_calibration_count_once() -> None:
    """Ten equal runs of each of twelve calibrations know as much as twelve runs."""
    one, ten = (score(_clustered(12, each, bias=0.1, sigma=0.3, noise=0.0, seed=3)).bias for each in (1, 10))
    assert one is not None
    assert ten is not None
    assert (ten.runs, ten.clusters) == (120, 12)
    # Draws differ with the number of runs only by their noise, which is 0.
    assert ten.effective_runs == pytest.approx(12)
    assert _width(ten) == pytest.approx(_width(one), rel=0.5)


def _width(figure: Figure) -> float:
    assert figure.low is not None
    assert figure.high is not None
    return math.log(figure.high / figure.low)


def test_the_bias_interval_holds_the_truth_though_runs_share_calibrations() -> None:
    """300 histories of 10 calibrations with 1 to 15 runs: 95 % intended, and half of it if all runs counted."""
    draws = random.Random(5)
    hits = naive_hits = 0
    for _ in range(300):
        values, clusters = [], []
        for cluster in range(10):
            shared = draws.gauss(0, 0.2)
            for _ in range(draws.randint(1, 15)):
                values.append(shared + draws.gauss(0, 0.1))
                clusters.append(cluster)
        figure = mean_over_clusters(values, clusters)
        naive = mean_over_clusters(values, range(len(values)))
        hits += _holds(figure, 0.0)
        naive_hits += _holds(naive, 0.0)
    assert hits >= 0.87 * 300
    assert naive_hits < 0.75 * 300


def _holds(figure: Figure, truth: float) -> bool:
    assert figure.low is not None
    assert figure.high is not None
    return figure.low <= truth <= figure.high


def test_few_calibrations_give_no_interval() -> None:
    figure = share_over_clusters([True] * 40 + [False] * 10, [0] * 25 + [1] * 25)
    assert (figure.value, figure.low) == (0.8, None)
    assert figure.effective_runs == pytest.approx(4)
    assert figure.why_no_interval == "the runs rest on 2 independent calibrations; an interval needs 5"


def test_a_coverage_has_the_interval_of_wilson() -> None:
    """8 of 10 independent runs: 0.490 to 0.943 (Wilson 1927; Newcombe 1998)."""
    figure = share_over_clusters([True] * 8 + [False] * 2, range(10))
    assert figure.low == pytest.approx(0.490, abs=0.001)
    assert figure.high == pytest.approx(0.943, abs=0.001)
    whole = share_over_clusters([True] * 30, [place % 6 for place in range(30)])
    assert (whole.effective_runs, whole.high) == (6, 1.0)
    assert whole.low == pytest.approx(1 / (1 + 1.96**2 / 6), abs=0.001), "of equal values only clusters count"


# The order


def test_tau_of_a_known_permutation() -> None:
    """4 1 3 2 against 1 2 3 4: of six pairs 4 are reversed and 2 in order."""
    assert kendall([1, 2, 3, 4], [4, 1, 3, 2]) == pytest.approx((2 - 4) / 6)
    assert kendall([1, 2, 3], [2, 3, 4]) == 1
    assert kendall([1, 2, 3], [4, 3, 2]) == -1


@pytest.mark.parametrize("seed", range(20))
def test_tau_is_scipy_s_with_ties(seed: int) -> None:
    draws = random.Random(seed)
    first, second = ([draws.randint(0, 4) for _ in range(12)] for _ in range(2))
    assert kendall(first, second) == pytest.approx(float(kendalltau(first, second).statistic))


def test_two_cases_or_equal_ones_have_no_order() -> None:
    assert kendall([1, 2], [1, 2]) == Absent(reason="2 of at least 3 cases were measured")
    assert kendall([1, 1, 1], [1, 2, 3]) == Absent(reason="all 3 cases are predicted alike")


def test_orders_are_of_cases_of_one_shape_on_one_machine() -> None:
    """Runs of one case count once, by their medians."""
    cases = ("ddp", "fsdp", "zero1", "zero2")
    runs = [
        _run(f"{strategy}{run}", strategy=strategy, predicted_s=1.0 + place, measured_s=measured_s)
        for place, (strategy, measured_s) in enumerate(zip(cases, (4.0, 1.0, 3.0, 2.0), strict=True))
        for run in range(place + 1)
    ]
    runs += [_run("other shape", width=2), _run("other machine", hardware="another CPU")]
    first, *others = score(runs).orders
    assert first.cases == 4
    assert first.tau == pytest.approx(-1 / 3)
    assert [(order.cases, isinstance(order.tau, Absent)) for order in others] == [(1, True), (1, True)]


def test_predictions_with_and_without_the_hosts_time_are_not_ordered_together() -> None:
    """Only ddp has it: its step is right, and those of the others are a tenth of the measured ones, but in order."""
    with_host = replace(_run("ddp").prediction, host_s=0.9, step_s=1.0)  # type: ignore[type-var]
    runs = [
        _run(strategy, strategy=strategy, predicted_s=0.1 * measured_s, measured_s=measured_s)
        for strategy, measured_s in (("fsdp", 2.0), ("zero1", 3.0), ("zero2", 4.0))
    ]
    runs.append(_run("ddp", measured_s=1.0, prediction=with_host))
    orders = score(runs).orders
    assert [(order.has_host, order.cases) for order in orders] == [(False, 3), (True, 1)]
    assert orders[0].tau == 1.0


# The report


def _shown(result: Score) -> list[str]:
    console = Console(file=(text := io.StringIO()), width=200)
    print_page(score_page(result), console)
    return [" ".join(line.split()) for line in text.getvalue().splitlines()]


def test_the_page_has_errors_bias_coverage_and_order() -> None:
    lines = _shown(score(_clustered(6, 2, bias=math.log(0.8), sigma=0.0, noise=0.0, seed=1)))
    assert lines[0] == "12 runs on 6 independent calibrations"
    assert "ddp 2 12 6 -20.0 % [-20.0, -20.0] - - -" in lines
    assert "bias: predicted steps are 0.800 [0.800, 0.800] times the measured ones (geometric mean)" in lines
    assert any(line.startswith("coverage: 0 of 12 ranges hold the measured step: 0 % [0, ") for line in lines)
    assert "12 runs are too few to judge coverage by; 100 are needed" in lines
    assert "2 layers of 16, sequence 8, batch 8 AMD EPYC, 2 cores left out 1 -" in lines


def test_a_hundred_runs_are_enough_to_judge_coverage() -> None:
    lines = _shown(score(_clustered(100, 1, bias=0.0, sigma=0.1, noise=0.0, seed=1)))
    assert not any("too few" in line for line in lines)


def test_an_empty_history_says_how_predictions_come_about(tmp_path: Path) -> None:
    lines = _shown(score([make_summary()]))
    assert lines[0].startswith("no run of the history can be scored")
    assert "left out: 1 run without a stored prediction" in lines
    assert "`observatory run matmul`" in lines[-1]


def test_programs_get_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = _clustered(6, 2, bias=0.3, sigma=0.1, noise=0.1, seed=2)
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as history:
        for run in runs:
            history.add(run, make_machine())
        result = score_history(history)
        print_score(history, "json")
        document = json.loads(capsys.readouterr().out)
        print_score(history, "csv")
        (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert result.runs == 12
    assert _near(document["bias"]["value"], score(runs).bias)
    assert document["groups"][0]["errors"]["step"]["median"] == pytest.approx(result.groups[0].parts["step"].median)
    assert document["groups"][0]["errors"]["bubble"] is None
    assert document["is_coverage_judged"] is False
    assert set(score_json(result)) == set(document)
    assert (row["strategy"], row["part"], int(row["runs"])) == ("ddp", "step", 12)
    assert float(row["median"]) == pytest.approx(result.groups[0].parts["step"].median)


def _near(value: float, figure: Figure | None) -> bool:
    return figure is not None and math.isclose(value, figure.value)


def test_the_runs_of_an_estimate_are_scored_by_their_medians() -> None:
    run = _run("a", predicted_s=0.011)
    run = replace(run, estimates=(estimate(results.RUN_STEP_SECONDS, (0.010, 0.011, 0.012)),))
    (group,) = score([run]).groups
    assert group.parts["step"].median == pytest.approx(0.0)


def test_iterables_are_read_once() -> None:
    def runs() -> Iterable[Summary]:
        yield _run("a")

    assert score(runs()).runs == 1
