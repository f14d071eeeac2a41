"""What `tensor_parallel` sends in a step is what its spec declares, on two ranks and on four."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

import pytest
from torch.distributed.tensor import DTensor

from tests.support.ranks import OnRanks
from tests.workloads.training.live_peaks import peak_by_category
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import StepRecord, make_ready, train
from tests.workloads.training.watched_steps import WatchedStep, held_states, watch_step
from workloads.cost_models.communication import recorded_bytes
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.shape import PRESETS
from workloads.cost_models.terms import States
from workloads.spec import LIMITS, OptionValue, Precision
from workloads.tensor_parallel.spec import TensorParallelSpec

FOUR_HEADS = replace(SMALL, kv_heads=4)
GOALS: dict[str, OptionValue] = {"clip": 0.0, "learning_rate": 1e-4}


def watched(setup: SmallSetup) -> tuple[WatchedStep, States]:
    """A step, and the states after it."""
    ready = make_ready(setup)
    ready.step()
    return watch_step(ready), held_states(ready.workload)


@pytest.mark.parametrize(
    ("ranks", "precision", "options"),
    [
        (2, "fp32", {}),
        (2, "fp16", {"accumulate": 2}),
        (2, "fp32", {"sequence_parallel": True}),
        (2, "bf16", {"checkpoint": "full"}),
        (2, "fp32", {"sequence_parallel": True, "checkpoint": "selective", "loss_parallel": True, "accumulate": 2}),
        (4, "bf16", {"sequence_parallel": True, "loss_parallel": True, "clip": 0.0}),
        (4, "fp32", {"loss_parallel": True}),
        (1, "fp32", {}),
    ],
    ids=str,
)
def test_ranks_send_and_hold_the_bytes_that_the_spec_declares(
    ranks: int, precision: Precision, options: Mapping[str, OptionValue], on_ranks: OnRanks
) -> None:
    setup = small_setup("tensor_parallel", ranks=ranks, shape=FOUR_HEADS, precision=precision, options=options)
    transfers = TensorParallelSpec().transfers(setup)
    for rank, (step, states) in enumerate(on_ranks(ranks, watched, setup)):
        assert step.payload_bytes == recorded_bytes(transfers, "gloo")
        assert step.calls == sum(transfer.calls for transfer in transfers)
        assert states == TensorParallelSpec().states(setup, rank)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, 1e-6),
        ({"checkpoint": "full"}, 0.01),
        ({"sequence_parallel": True}, 1e-6),
        ({"sequence_parallel": True, "loss_parallel": True, "accumulate": 2}, 0.01),
        ({"sequence_parallel": True, "checkpoint": "selective"}, 0.04),
    ],
    ids=str,
)
def test_the_peak_is_that_of_the_law(options: Mapping[str, OptionValue], limit: float, on_ranks: OnRanks) -> None:
    setup = small_setup("tensor_parallel", ranks=2, shape=PRESETS["tiny"], options=options)
    predicted = TensorParallelSpec().peak(setup)
    assert isinstance(predicted, Prediction)
    for live in on_ranks(2, peak_by_category, setup):
        assert predicted.total_bytes == pytest.approx(live["total"], rel=limit)


def check_against_single(setup: SmallSetup, records: list[list[StepRecord]], on_ranks: OnRanks) -> None:
    ((expected,),) = on_ranks(1, train, small_setup(shape=setup.shape, options=GOALS), 1)
    for (record,) in records:
        assert record.loss == pytest.approx(expected.loss, rel=LIMITS["fp32"])
        for name, truth in expected.gradients.items():
            difference = (record.gradients[name] - truth).norm() / truth.norm()
            assert difference <= LIMITS["fp32"], f"{name} is off by {difference:.1e}"


@pytest.mark.parametrize("is_divided", [False, True])
def test_four_ranks_train_as_one_does(is_divided: bool, on_ranks: OnRanks) -> None:
    options = {**GOALS, "sequence_parallel": is_divided, "loss_parallel": is_divided}
    setup = small_setup("tensor_parallel", ranks=4, shape=FOUR_HEADS, options=options)
    check_against_single(setup, on_ranks(4, train, setup, 1), on_ranks)


def parts_of_gradients(setup: SmallSetup) -> set[tuple[bool, bool]]:
    """Whether a weight, and its gradient, are divided."""
    ready = make_ready(setup)
    ready.step()
    return {
        (isinstance(weight, DTensor), isinstance(weight.grad, DTensor) and weight.grad.placements == weight.placements)
        for weight in ready.workload.model.parameters()
        if isinstance(weight, DTensor)
    }


@pytest.mark.parametrize("is_divided", [False, True])
def test_no_rank_holds_the_whole_gradient_of_a_weight_that_is_divided(is_divided: bool, on_ranks: OnRanks) -> None:
    """As where an embedding is divided by rows, whose gradient torch makes whole."""
    setup = small_setup("tensor_parallel", ranks=2, options={"sequence_parallel": is_divided})
    assert on_ranks(2, parts_of_gradients, setup) == [{(True, True)}] * 2


def train_compiled(setup: SmallSetup) -> list[StepRecord]:
    """Compilation warns of torch's own code."""
    warnings.filterwarnings("ignore", message=".*torch.jit.script_method.* is deprecated")
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is")
    return train(setup, 1)


@pytest.mark.slow
@pytest.mark.parametrize("is_divided", [False, True])
def test_compiled_blocks_are_divided_too(is_divided: bool, on_ranks: OnRanks) -> None:
    options = {**GOALS, "compile": "default", "sequence_parallel": is_divided, "loss_parallel": is_divided}
    setup = small_setup("tensor_parallel", ranks=2, options=options)
    check_against_single(setup, on_ranks(2, train_compiled, setup), on_ranks)
