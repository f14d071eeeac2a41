"""DeepSpeed's stages send and hold, to the byte, what the law says; and what the rank's process is left like."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import StepRecord, make_ready, train
from tests.workloads.training.watched_steps import WatchedStep, held_states, watch_step
from workloads.cost_models.communication import recorded_bytes
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import States
from workloads.deepspeed.spec import DeepSpeedSpec
from workloads.spec import LIMITS, OptionValue

pytestmark = pytest.mark.slow

UNEVEN = Shape(layers=2, width=18, heads=3, kv_heads=1, mlp_width=26, vocabulary=29, sequence=8, batch=6)
"""Its weights are not divisible by 3 ranks, each by itself or all together."""

DEEP = replace(SMALL, layers=3)
"""Of its three blocks one is recomputed where every second one is."""

GATHERED_OFTEN: Mapping[str, OptionValue] = {"stage": 3, "max_reuse_distance": 0, "prefetch_bucket_size": 0}

CASES: list[tuple[int, Shape, Mapping[str, OptionValue]]] = [
    (2, SMALL, {"stage": 0, "accumulate": 2}),
    (3, UNEVEN, {"stage": 1, "reduce_bucket_size": 1000, "overlap_comm": True, "clip": 0.0}),
    (3, UNEVEN, {"stage": 2, "offload": True, "accumulate": 2}),
    (2, SMALL, {"stage": 3, "param_persistence_threshold": 0, "reduce_bucket_size": 10_000, "accumulate": 2}),
    (3, UNEVEN, {**GATHERED_OFTEN, "param_persistence_threshold": 100}),
    (2, SMALL, {**GATHERED_OFTEN, "param_persistence_threshold": 64, "checkpoint": "full"}),
    (2, DEEP, {**GATHERED_OFTEN, "param_persistence_threshold": 64, "checkpoint": "full", "checkpoint_every": 2}),
    (2, SMALL, {"stage": 3, "offload": True}),
]
EACH_CASE = pytest.mark.parametrize(
    "setup",
    [small_setup("deepspeed", ranks=ranks, shape=shape, options=options) for ranks, shape, options in CASES],
    ids=[f"on {ranks} {dict(options)}" for ranks, _, options in CASES],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one rank did in its fourth step, and held after it; and its first step's loss and gradients."""

    step: WatchedStep
    states: States
    first: StepRecord


Watch = Callable[[SmallSetup], list[Seen]]


@pytest.fixture(scope="module")
def on_ranks(on_fresh_ranks: OnRanks) -> OnRanks:
    """DeepSpeed starts once in a process."""
    return on_fresh_ranks


def watch_fourth_step(setup: SmallSetup) -> Seen:
    ready = make_ready(setup)
    loss = ready.step()
    assert loss is not None
    first = StepRecord(loss=loss.item(), gradients=ready.workload.full_gradients())
    for _ in range(2):  # In the first two steps stage 3 learns in which order weights are used.
        ready.step()
    return Seen(step=watch_step(ready), states=held_states(ready.workload), first=first)


@pytest.fixture(scope="module")
def watch(on_ranks: OnRanks) -> Watch:
    known: dict[str, list[Seen]] = {}

    def run(setup: SmallSetup) -> list[Seen]:
        key = repr(setup)
        if key not in known:
            known[key] = on_ranks(setup.ranks, watch_fourth_step, setup)
        return known[key]

    return run


@EACH_CASE
def test_ranks_send_the_bytes_that_the_law_expects(setup: SmallSetup, watch: Watch) -> None:
    expected = recorded_bytes(DeepSpeedSpec().transfers(setup), backend="gloo")
    assert [seen.step.payload_bytes for seen in watch(setup)] == [expected] * setup.ranks


@EACH_CASE
def test_ranks_enter_as_many_collectives_as_the_law_expects(setup: SmallSetup, watch: Watch) -> None:
    expected = sum(transfer.calls for transfer in DeepSpeedSpec().transfers(setup))
    assert [seen.step.calls for seen in watch(setup)] == [expected] * setup.ranks


@EACH_CASE
def test_ranks_hold_the_bytes_that_the_law_expects(setup: SmallSetup, watch: Watch) -> None:
    assert [seen.states for seen in watch(setup)] == [
        DeepSpeedSpec().states(setup, rank) for rank in range(setup.ranks)
    ]


@EACH_CASE
def test_the_first_step_is_that_of_single(setup: SmallSetup, watch: Watch, on_ranks: OnRanks) -> None:
    ((truth,),) = on_ranks(1, train, small_setup(shape=setup.shape, options={"clip": setup.options["clip"]}), 1)
    records = [seen.first for seen in watch(setup)]
    check(records, truth, LIMITS["fp32"])


def test_what_computes_in_bf16_travels_in_fp32(watch: Watch) -> None:
    setup = small_setup("deepspeed", ranks=2, precision="bf16", options={"stage": 3})
    for seen in watch(setup):
        assert seen.step.payload_bytes == recorded_bytes(DeepSpeedSpec().transfers(setup), backend="gloo")


def check(records: list[StepRecord], truth: StepRecord, limit: float) -> None:
    losses = [record.loss for record in records if record.loss is not None]
    assert sum(losses) / len(records) == pytest.approx(truth.loss, rel=limit)
    for record in records:
        assert record.gradients.keys() == truth.gradients.keys()
        for name, gradient in record.gradients.items():
            assert (gradient - truth.gradients[name]).norm() <= limit * truth.gradients[name].norm(), name


def test_stage_0_in_fp16_computes_what_single_does(on_ranks: OnRanks) -> None:
    ((truth,),) = on_ranks(1, train, small_setup(precision="fp16", options={"clip": 0.1}), 1)
    setup = small_setup("deepspeed", ranks=2, precision="fp16", options={"stage": 0, "clip": 0.1})
    check([record for (record,) in on_ranks(2, train, setup, 1)], truth, LIMITS["fp16"])


def rates_of_three_steps(setup: SmallSetup) -> list[float]:
    ready = make_ready(setup)
    rates = []
    for _ in range(3):
        ready.step()
        rates += [group["lr"] for group in ready.workload.optimizer.param_groups]
    return rates


def test_the_learning_rate_follows_the_rule(on_ranks: OnRanks) -> None:
    # Between its updates stage 3 leaves the optimizer no weights, but rates.
    options: Mapping[str, OptionValue] = {"stage": 3, "learning_rate": 0.1, "lr_rule": "linear"}
    (rates, _) = on_ranks(2, rates_of_three_steps, small_setup("deepspeed", ranks=2, options=options))
    assert rates == pytest.approx([0.2] * 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a rank's process is left like. error: of gradients that are not there yet."""

    accelerator: str | None
    compiler: str | None
    has_compiled: bool
    error: str


def process_after_build(setup: SmallSetup) -> Left:
    os.environ["TORCHDYNAMO_DISABLE"] = "0"
    ready = make_ready(setup)
    with pytest.raises(RuntimeError) as caught:
        ready.workload.full_gradients()
    return Left(
        accelerator=os.environ.get("DS_ACCELERATOR"),
        compiler=os.environ.get("TORCHDYNAMO_DISABLE"),
        has_compiled=hasattr(torch.ops.deepspeed, "inference_all_reduce_"),
        error=str(caught.value),
    )


def test_no_operator_is_compiled_and_the_environment_is_as_it_was(on_ranks: OnRanks) -> None:
    left = on_ranks(1, process_after_build, small_setup("deepspeed"))[0]
    assert (left.accelerator, left.compiler, left.has_compiled) == (None, "0", False)
    assert left.error == "weights have no gradient; the last step did not update them"


def train_without_compiler(setup: SmallSetup, empty_folder: str) -> list[StepRecord]:
    os.environ["PATH"] = empty_folder
    for name in ("CC", "CXX", "CUDA_HOME"):
        os.environ.pop(name, None)
    return train(setup, 2)


@pytest.mark.parametrize("options", [{"stage": 2}, {"stage": 3, "offload": True}], ids=str)
def test_a_machine_without_a_compiler_trains_all_the_same(
    options: Mapping[str, OptionValue], on_ranks: OnRanks, tmp_path: Path
) -> None:
    truths = on_ranks(1, train, small_setup(), 2)[0]
    records = on_ranks(2, train_without_compiler, small_setup("deepspeed", ranks=2, options=options), str(tmp_path))
    for step, truth in enumerate(truths):
        check([record[step] for record in records], truth, LIMITS["fp32"])


def printed_bytes(setup: SmallSetup) -> int:
    """Bytes that a rank's streams have got from its build and three steps."""
    read, write = os.pipe()
    os.dup2(write, 1)
    os.dup2(write, 2)
    os.set_blocking(read, False)
    ready = make_ready(setup)
    for _ in range(3):
        ready.step()
    sys.stdout.flush()
    try:
        return len(os.read(read, 65536))
    except BlockingIOError:
        return 0


def test_deepspeed_prints_nothing(on_ranks: OnRanks) -> None:
    assert on_ranks(2, printed_bytes, small_setup("deepspeed", ranks=2, options={"stage": 3})) == [0, 0]
