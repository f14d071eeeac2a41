"""One predictor: `predict`, a dry run, `choose` and what is stored before a run have the same step for a case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.choosing.ground import ground_on
from bench.analysis.choosing.here import ground_here
from bench.analysis.choosing.pricing import Candidate, Pricing
from bench.analysis.prediction.fit import fit
from bench.analysis.prediction.forecast import forecast_on, step_forecast
from bench.analysis.prediction.from_history import Place, history_calibration
from bench.analysis.prediction.scoring.before_run import predict_run, predicted_step
from bench.case import Case
from bench.machine.machine import gpu_named, hardware_here
from bench.machine.machines.machine_file import read_machine
from bench.results.estimate import estimate
from bench.session.case_args import CaseArgs, case_of_args, node_on
from bench.store.hardware_baselines import PredictedStep
from bench.store.history import History
from collectors.metrics.results import RUN_OVERLAP_RATIO
from tests.bench.made.calibrations import add_copies, add_matmul, add_sweep
from tests.bench.made.examples import make_case, make_machine, make_summary
from workloads.cost_models.step_time import StepTime
from workloads.registry import SPECS

MACHINE = read_machine("h100x8x2")
TRAINING = [spec.name for spec in SPECS if spec.kind == "training" and not spec.missing_packages()]
RANKS = {
    "single": 1,
    "ring_attention": 4,
    "ulysses": 4,
    "tensor_parallel": 4,
    "one_f_one_b": 4,
    "interleaved": 4,
    "zero_bubble": 4,
}
BATCH = {"parameter_server": 30}
HARDWARE = hardware_here("cpu", cores=2, gpus=())


def on_machine(strategy: str) -> Case:
    dimensions: dict[str, int | None] = {"batch": BATCH.get(strategy, 32), "layers": 16}
    args = CaseArgs(strategy=strategy, shape_name="1b", dimensions=dimensions, options=(), ranks=None)
    return case_of_args(args, RANKS.get(strategy, 16), node_on(MACHINE))


@pytest.mark.parametrize("strategy", TRAINING)
def test_on_a_machine_that_is_not_here(strategy: str) -> None:
    case = on_machine(strategy)
    predicted = forecast_on(case, MACHINE)
    assert isinstance(predicted.step, StepTime)
    assert fit(case, MACHINE).step == predicted.step
    ground = ground_on(MACHINE, case.ranks, "bf16")
    chosen = Pricing(ground=ground).candidate(case)
    assert isinstance(chosen, Candidate)
    assert chosen.step_s == pytest.approx(predicted.step.step_s)
    assert chosen.parts_s["optimizer"] == pytest.approx(predicted.seconds("optimizer"))
    assert sum(chosen.parts_s.values()) == pytest.approx(chosen.step_s)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as empty:
        yield empty


@pytest.mark.parametrize("strategy", TRAINING)
def test_by_the_history_of_this_machine(strategy: str, history: History) -> None:
    case = make_case(strategy, ranks=1 if strategy == "single" else 4, batch=24)
    case = replace(case, model=replace(case.shape, layers=8, heads=4, kv_heads=4))
    add_matmul(history, case, HARDWARE, rates=(0.9e11, 1e11, 1.2e11))
    add_copies(history, case, HARDWARE)
    add_sweep(history, case, HARDWARE)
    like = make_summary(
        "like", case=case, hardware=HARDWARE, estimates=(estimate(RUN_OVERLAP_RATIO, [0.05]),), scaling=()
    )
    history.add(like, make_machine())
    stored, shown = predict_run(case, HARDWARE, history), predicted_step(case, HARDWARE, history)
    assert stored is not None
    assert isinstance(shown, PredictedStep)
    calibration = history_calibration(Place(case=case, hardware=HARDWARE), history)
    forecast = step_forecast(case, calibration)
    assert isinstance(forecast.step, StepTime)
    chosen = Pricing(ground=ground_here([case], {}, history, cores=2, gpus=())).candidate(case)
    assert isinstance(chosen, Candidate)
    assert stored.step_s == shown.step_s == forecast.step.step_s
    assert chosen.step_s == pytest.approx(forecast.step.step_s)
    assert stored.step_low_s is not None
    assert stored.step_high_s is not None
    assert stored.step_low_s < forecast.step.step_s < stored.step_high_s


def test_on_a_gpu_what_no_run_measured_is_by_its_data_sheet(history: History) -> None:
    case = replace(on_machine("fsdp"), ranks=8, nodes=1)
    place = Place(case=case, hardware="8 x NVIDIA H100 80GB HBM3")
    there = history_calibration(place, history, read_machine("h100x8"))
    assert step_forecast(case, there).step == forecast_on(case, read_machine("h100x8")).step
    assert (there.runs, len(there.missing)) == ((), 4)
    here = history_calibration(place, history)
    assert (here.products, here.memory, here.attention) == (there.products, there.memory, there.attention)
    stored = predict_run(case, place.hardware, history)
    assert stored is not None
    assert "no sweep of all_reduce on 8 ranks" in stored.absent["step_s"]


@pytest.mark.parametrize(
    ("hardware", "gpu"),
    [
        ("8 x NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("8 x NVIDIA H100 80GB HBM3, as 2 nodes", "NVIDIA H100 80GB HBM3"),
        ("1 x NVIDIA A10, 1 x NVIDIA L4", None),
        ("a CPU, 2 cores", None),
        ("unnamed GPUs", None),
    ],
)
def test_the_gpu_of_a_history_is_named_by_its_hardware(hardware: str, gpu: str | None) -> None:
    assert gpu_named(hardware) == gpu
