"""The predicted time of a step, from what probes of the same hardware measured."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.analysis.prediction.forecast import optimizer_bytes, work_of
from bench.analysis.prediction.scoring.before_run import predicted_step, predicted_steps
from bench.report.run.summary import print_summaries
from bench.results.estimate import estimate
from bench.store.hardware_baselines import PredictedStep
from bench.store.history import History
from bench.store.summary import Summary
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.calibrations import MEMORY_RATE, RATE, add_copies, add_matmul, add_sweep
from tests.bench.made.examples import make_case, make_machine, make_probe, make_summary
from workloads.cost_models.absent import Absent
from workloads.options import rerun_ratio
from workloads.registry import SPECS


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """An empty one."""
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as empty:
        yield empty


def _run(strategy: str = "ddp", *, ranks: int = 2, **options: str | bool) -> Summary:
    case = make_case(strategy, ranks=ranks)
    case = replace(case, options={**case.options, **options})
    return make_summary(f"run-{strategy}", case=case, estimates=(estimate(RUN_STEP_SECONDS, [0.5, 0.5, 0.5]),))


def _add_rates(history: History, run: Summary) -> None:
    add_matmul(history, run.case, run.hardware)
    add_copies(history, run.case, run.hardware)


def _predicted(run: Summary, history: History) -> PredictedStep | Absent:
    return predicted_step(run.case, run.hardware, history)


def _add_sweep(history: History, run: Summary) -> None:
    add_sweep(history, run.case, run.hardware)


def _computing_s(run: Summary) -> float:
    """What a rank computes and its optimizer, by hand: all products are of one rung, and nothing is compiled."""
    case, work = run.case, work_of(run.case)
    again = rerun_ratio(case)
    products = sum(each.flops for each in work.products) * (3 + again) + 3 * work.head.flops
    flops = products + work.attention.flops * (3.5 + again)
    moved = optimizer_bytes(case)
    assert not isinstance(moved, Absent)
    ranks = case.ranks
    return flops / ranks / RATE + (work.elementwise_bytes * (3 + again) / ranks + moved) / MEMORY_RATE


@pytest.mark.parametrize("checkpoint", ["none", "full"])
def test_one_rank_computes_its_flops_at_the_ceiling_and_its_bytes_at_the_copy(
    checkpoint: str, history: History
) -> None:
    run = _run("single", ranks=1, checkpoint=checkpoint)
    _add_rates(history, run)
    found = _predicted(run, history)
    assert isinstance(found, PredictedStep)
    assert found.step_s == pytest.approx(_computing_s(run))
    assert "products at 100 GFLOP/s of 512 rows" in found.basis.replace("0.100 TFLOP/s", "100 GFLOP/s")
    assert "memory at 10.0 GB/s" in found.basis


def test_communication_on_the_measured_link_is_added_where_nothing_hides_it(history: History) -> None:
    run = _run(overlap=False)
    _add_rates(history, run)
    _add_sweep(history, run)
    found = _predicted(run, history)
    assert isinstance(found, PredictedStep)
    (transfer,) = run.case.spec().transfers(run.case)
    communication_s = 2 * transfer.calls * 1e-4 + transfer.payload_bytes / 1e9  # Of a ring on two ranks.
    assert found.step_s == pytest.approx(_computing_s(run) + communication_s)


def test_neither_the_link_nor_the_ceiling_of_one_node_is_that_of_several(history: History) -> None:
    one = _run(overlap=False)
    _add_rates(history, one)
    over_two = replace(one, case=replace(one.case, nodes=2))
    found = _predicted(over_two, history)
    assert isinstance(found, Absent)
    assert "no comparable matmul run on" in found.reason
    for name in ("matmul", "copies"):
        probe = replace(history.find(f"{name}-a"), run=f"{name}-b")
        history.add(replace(probe, case=replace(probe.case, nodes=2)), make_machine())
    _add_sweep(history, one)
    found = _predicted(over_two, history)
    assert isinstance(found, Absent)
    assert "no sweep of all_reduce on 1 rank of each across nodes" in found.reason
    assert isinstance(_predicted(one, history), PredictedStep)


@pytest.mark.parametrize(
    ("strategy", "has_rates", "reason"),
    [
        ("ddp", False, "no comparable matmul run on"),
        ("ddp", True, "no sweep of all_reduce on 2 ranks"),
        ("gpipe", False, "no comparable matmul run on"),
        ("gpipe", True, "no sweep of all_reduce on 2 ranks"),
    ],
)
def test_without_its_probes_a_step_is_absent_with_the_reason(
    strategy: str, has_rates: bool, reason: str, history: History
) -> None:
    run = _run(strategy)
    if has_rates:
        _add_rates(history, run)
    found = _predicted(run, history)
    assert isinstance(found, Absent)
    assert reason in found.reason


@pytest.mark.parametrize("strategy", [spec.name for spec in SPECS if spec.kind == "training"])
def test_every_strategy_has_a_predicted_step_in_its_table(strategy: str, history: History) -> None:
    run = _run(strategy, ranks=1 if strategy == "single" else 4)
    run = replace(run, case=replace(run.case, model=replace(run.case.shape, layers=8)))
    _add_rates(history, run)
    _add_sweep(history, run)
    step = _predicted(run, history)
    assert isinstance(step, PredictedStep)
    assert (" of bubble" in step.basis) == (run.case.spec().pipeline(run.case) is not None)
    assert (" inside a node, all 4 ranks at once (sweep)" in step.basis) == (run.case.ranks > 1)
    sent = {transfer.collective for transfer in run.case.spec().transfers(run.case)}
    assert ("as all_reduce, not fitted" in step.basis) == bool(sent - {"all_reduce"})
    assert any(line.startswith("predicted ") for line in _shown(run, step, has_details=False))


def test_a_probe_has_no_step(history: History) -> None:
    assert predicted_steps([make_summary(case=make_probe("matmul"), estimates=())], history) == {}


def _shown(run: Summary, predicted: PredictedStep | Absent, *, has_details: bool) -> list[str]:
    console = Console(file=(text := io.StringIO()), width=200)
    print_summaries([run], "table", console, has_details=has_details, predicted={run.run: predicted})
    return [" ".join(line.split()) for line in text.getvalue().splitlines()]


@pytest.mark.parametrize("has_details", [False, True])
def test_a_table_shows_the_predicted_step_below_the_measured_one(has_details: bool) -> None:
    lines = _shown(_run(), PredictedStep(step_s=0.4, basis="400 ms of computing"), has_details=has_details)
    at = next(number for number, line in enumerate(lines) if line.startswith("median step"))
    assert lines[at + 1] == "predicted 400 ms, measured +25.0 %"
    note = "ddp on 2: the predicted step is 400 ms of computing; data and the host are left out"
    assert (note in lines) == has_details


def test_details_say_what_the_predicted_step_leaves_out() -> None:
    lines = _shown(_run(), PredictedStep(step_s=0.4, basis="300 ms of host", has_host=True), has_details=True)
    assert "ddp on 2: the predicted step is 300 ms of host; loading data is left out" in lines


def test_a_step_that_cannot_be_predicted_is_absent_with_its_reason_in_the_details() -> None:
    absent = Absent(reason="no matmul run")
    assert not any("predicted" in line for line in _shown(_run(), absent, has_details=False))
    assert "ddp on 2: the predicted step is absent: no matmul run" in _shown(_run(), absent, has_details=True)
