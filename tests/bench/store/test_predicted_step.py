"""The predicted time of a step, from what probes of the same hardware measured."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.report.run.summary import print_summaries
from bench.results.estimate import estimate
from bench.store.hardware_baselines import PredictedStep, predicted_step, predicted_steps
from bench.store.history import History
from bench.store.summary import Summary
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.calibrations import RATE, add_matmul, add_sweep
from tests.bench.made.examples import make_case, make_machine, make_probe, make_summary
from workloads.cost_models.absent import Absent
from workloads.cost_models.step_time import FORWARD_SHARE
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


def _add_matmul(history: History, run: Summary) -> None:
    add_matmul(history, run.case, run.hardware)


def _add_sweep(history: History, run: Summary) -> None:
    add_sweep(history, run.case, run.hardware)


def test_one_rank_computes_its_flops_at_the_ceiling(history: History) -> None:
    run = _run("single", ranks=1)
    _add_matmul(history, run)
    found = predicted_step(run, history)
    assert isinstance(found, PredictedStep)
    assert found.step_s == pytest.approx(run.case.shape.flops_per_step("palm") / RATE)
    assert "at the ceiling of matmul-a" in found.basis


def test_whole_blocks_that_are_computed_again_take_a_third_more(history: History) -> None:
    run = _run("single", ranks=1)
    _add_matmul(history, run)
    plain, again = predicted_step(run, history), predicted_step(_run("single", ranks=1, checkpoint="full"), history)
    assert isinstance(plain, PredictedStep)
    assert isinstance(again, PredictedStep)
    assert again.step_s == pytest.approx(plain.step_s * (1 + FORWARD_SHARE))


def test_communication_on_the_measured_link_is_added_where_nothing_hides_it(history: History) -> None:
    run = _run(overlap=False)
    _add_matmul(history, run)
    _add_sweep(history, run)
    found = predicted_step(run, history)
    assert isinstance(found, PredictedStep)
    (transfer,) = run.case.spec().transfers(run.case)
    communication_s = 2 * transfer.calls * 1e-4 + transfer.payload_bytes / 1e9  # Of a ring on two ranks.
    assert found.step_s == pytest.approx(run.case.shape.flops_per_step("palm") / 2 / RATE + communication_s)


def test_neither_the_link_nor_the_ceiling_of_one_node_is_that_of_several(history: History) -> None:
    one = _run(overlap=False)
    _add_matmul(history, one)
    over_two = replace(one, case=replace(one.case, nodes=2))
    found = predicted_step(over_two, history)
    assert isinstance(found, Absent)
    assert "no comparable matmul run on" in found.reason
    matmul = replace(history.find("matmul-a"), run="matmul-b")
    history.add(replace(matmul, case=replace(matmul.case, nodes=2)), make_machine())
    _add_sweep(history, one)
    found = predicted_step(over_two, history)
    assert isinstance(found, Absent)
    assert "no sweep of all_reduce on 1 rank of each across nodes" in found.reason
    assert isinstance(predicted_step(one, history), PredictedStep)


@pytest.mark.parametrize(
    ("strategy", "has_matmul", "reason"),
    [
        ("ddp", False, "no comparable matmul run on"),
        ("ddp", True, "no sweep of all_reduce on 2 ranks"),
        ("gpipe", False, "no comparable matmul run on"),
        ("gpipe", True, "no sweep of all_reduce on 2 ranks"),
    ],
)
def test_without_its_probes_a_step_is_absent_with_the_reason(
    strategy: str, has_matmul: bool, reason: str, history: History
) -> None:
    run = _run(strategy)
    if has_matmul:
        _add_matmul(history, run)
    found = predicted_step(run, history)
    assert isinstance(found, Absent)
    assert reason in found.reason


@pytest.mark.parametrize("strategy", [spec.name for spec in SPECS if spec.kind == "training"])
def test_every_strategy_has_a_predicted_step_in_its_table(strategy: str, history: History) -> None:
    run = _run(strategy, ranks=1 if strategy == "single" else 4)
    run = replace(run, case=replace(run.case, model=replace(run.case.shape, layers=8)))
    _add_matmul(history, run)
    _add_sweep(history, run)
    step = predicted_step(run, history)
    assert isinstance(step, PredictedStep)
    assert ("ms of bubble" in step.basis) == (run.case.spec().pipeline(run.case) is not None)
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
    note = "ddp on 2: the predicted step is 400 ms of computing; optimizer, data and slower kernels are left out"
    assert (note in lines) == has_details


def test_a_step_that_cannot_be_predicted_is_absent_with_its_reason_in_the_details() -> None:
    absent = Absent(reason="no matmul run")
    assert not any("predicted" in line for line in _shown(_run(), absent, has_details=False))
    assert "ddp on 2: the predicted step is absent: no matmul run" in _shown(_run(), absent, has_details=True)
