"""Weights in bf16: all strategies compute what `single` does with the same `weights`, and FSDP2's traps are avoided."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from tests.support.ranks import OnRanks
from tests.workloads.training.half_steps import (
    Gradients,
    gradients_in_fp64,
    gradients_under_policy,
    largest_difference,
)
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import StepRecord, train
from workloads.core.precision import sharding_policy
from workloads.cost_models.shape import Shape
from workloads.registry import spec_of
from workloads.spec import HALF_WEIGHTS_LIMIT, LIMITS, OptionValue, Precision

Options = Mapping[str, OptionValue]
Alone = Callable[[str, Shape], list[Gradients]]
"""By weights and shape, the gradients of each step of `single`."""
STEPS = 2
STILL: Options = {"learning_rate": 0.0, "clip": 0.0}
"""Each step begins with the same weights: AdamW's first update is as large where a gradient has another sign."""
COMPUTE: Options = {"weights": "bf16_compute"}
MASTER: Options = {"weights": "bf16"}
TWO_BLOCKS = replace(SMALL, layers=2)
"""Enough where no stages share the blocks."""

CASES: tuple[tuple[str, int, Options], ...] = (
    ("single", 1, {**COMPUTE, "accumulate": 2}),
    ("single", 1, {**COMPUTE, "checkpoint": "full"}),
    ("single", 1, {**MASTER, "checkpoint": "selective"}),
    ("single", 1, {**MASTER, "accumulate": 2, "grad_dtype": "bf16"}),
    ("ddp", 2, {**COMPUTE, "accumulate": 2, "bucket_mb": 0.1}),
    ("ddp", 2, {**COMPUTE, "compress": "topk", "density": 1.0}),
    ("ddp", 2, {**COMPUTE, "overlap": False, "checkpoint": "selective"}),
    ("ddp", 2, {**MASTER, "accumulate": 2, "bucket_mb": 0.1}),
    ("ddp", 2, {**MASTER, "overlap": False}),
    ("ddp", 4, {**MASTER, "grad_dtype": "bf16", "checkpoint": "full"}),
    ("zero1", 2, {**COMPUTE}),
    ("zero1", 4, {**MASTER, "accumulate": 2}),
    ("zero1", 2, {**MASTER, "grad_dtype": "bf16"}),
    ("fsdp", 2, {"accumulate": 2, "checkpoint": "selective"}),
    ("fsdp", 4, {"wrap": "layer", "checkpoint": "full"}),
    ("fsdp", 8, {}),
    ("fsdp", 2, {"offload": True}),
    ("zero2", 2, {"accumulate": 2}),
    ("hsdp", 4, {}),
    ("ulysses", 2, COMPUTE),
    ("ring_attention", 2, COMPUTE),
    ("tensor_parallel", 2, COMPUTE),
    ("tensor_parallel", 2, {**COMPUTE, "sequence_parallel": True, "loss_parallel": True}),
    ("gpipe", 2, COMPUTE),
    ("one_f_one_b", 2, {**COMPUTE, "balance": "measured"}),
    ("interleaved", 2, {**COMPUTE, "checkpoint": "full"}),
    ("zero_bubble", 2, COMPUTE),
    ("three_d", 4, {"data_axis": "fsdp", "tensor_ranks": 1}),
    ("three_d", 8, {"data_axis": "fsdp", "sequence_parallel": True}),
    ("three_d", 4, {**COMPUTE, "tensor_ranks": 1, "schedule": "zbv", "stages": 2}),
)


@pytest.fixture(scope="module")
def alone(on_ranks: OnRanks) -> Alone:
    known: dict[tuple[str, Shape], list[Gradients]] = {}

    def run(weights: str, shape: Shape) -> list[Gradients]:
        if (weights, shape) not in known:
            setup = small_setup(shape=shape, precision="bf16", options={**STILL, "weights": weights})
            (records,) = on_ranks(1, train, setup, STEPS)
            known[weights, shape] = [record.gradients for record in records]
        return known[weights, shape]

    return run


@pytest.mark.parametrize(("name", "ranks", "options"), CASES, ids=str)
def test_gradients_are_those_of_single_with_the_same_weights(
    name: str, ranks: int, options: Options, on_ranks: OnRanks, alone: Alone
) -> None:
    setup = small_setup(name, ranks=ranks, precision="bf16", options={**STILL, **options})
    spec = spec_of(name)
    if "stage" not in spec.mesh(setup):
        setup = replace(setup, shape=TWO_BLOCKS)
    assert not spec.all_refusals(setup)
    truth = alone(str(setup.options["weights"]), setup.shape)
    for records in on_ranks(ranks, train, setup, STEPS):
        for record, expected in zip(records, truth, strict=True):
            assert largest_difference(record.gradients, expected) <= spec.parity.half_weights_limit


@pytest.mark.parametrize("shape", [SMALL, TWO_BLOCKS], ids=lambda shape: f"{shape.layers} blocks")
def test_autocast_is_another_arithmetic_than_weights_in_bf16(shape: Shape, alone: Alone) -> None:
    difference = largest_difference(alone("autocast", shape)[0], alone("bf16_compute", shape)[0])
    assert HALF_WEIGHTS_LIMIT < difference < LIMITS["bf16"]


def test_bf16_weights_train_as_the_copies_of_their_master(on_ranks: OnRanks) -> None:
    options: Options = {"learning_rate": 1e-3, "clip": 0.0}
    compute = small_setup(precision="bf16", options={**options, **COMPUTE})
    master = small_setup(precision="bf16", options={**options, **MASTER, "grad_dtype": "bf16"})
    (of_copies,), (of_master,) = (on_ranks(1, train, setup, 4) for setup in (compute, master))
    for copy, rounded in zip(of_copies, of_master, strict=True):
        assert rounded.loss == copy.loss
        for name, gradient in rounded.gradients.items():
            assert torch.equal(gradient.float(), copy.gradients[name]), name


def sharded(precision: Precision) -> SmallSetup:
    return small_setup("fsdp", ranks=2, precision=precision, options=STILL)


def test_the_policy_that_computes_in_fp32_computes_what_single_does(on_ranks: OnRanks) -> None:
    policy = replace(sharding_policy(sharded("bf16")), param_dtype=torch.float32)
    ((truth,),) = on_ranks(1, train, small_setup(options=STILL), 1)
    for gradients in on_ranks(2, gradients_under_policy, sharded("fp32"), policy):
        assert largest_difference(gradients, truth.gradients) <= LIMITS["fp32"]


def test_the_policy_reduces_in_fp32_and_rounds_no_argument() -> None:
    policy = sharding_policy(sharded("bf16"))
    assert policy == MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
    )


def test_a_policy_that_rounds_the_rotary_tables_computes_something_else(on_ranks: OnRanks) -> None:
    long = replace(SMALL, sequence=128)
    setup = small_setup("fsdp", ranks=2, precision="bf16", shape=long, options=STILL)
    rounding = replace(sharding_policy(setup), cast_forward_inputs=True)
    ((truth,),) = on_ranks(1, train, small_setup(precision="bf16", shape=long, options={**STILL, **COMPUTE}), 1)
    right, wrong = (
        on_ranks(2, gradients_under_policy, setup, policy)[0] for policy in (sharding_policy(setup), rounding)
    )
    assert largest_difference(right, truth.gradients) <= HALF_WEIGHTS_LIMIT
    assert largest_difference(wrong, right) > 1e-3


@pytest.mark.parametrize(
    ("precision", "weights", "limit"),
    [("fp32", "autocast", 2e-5), ("bf16", "bf16_compute", LIMITS["bf16"]), ("bf16", "autocast", LIMITS["bf16"])],
)
def test_gradients_are_those_of_a_loop_in_fp64(
    precision: Precision, weights: str, limit: float, on_ranks: OnRanks
) -> None:
    setup = small_setup(precision=precision, options={**STILL, "weights": weights})
    ((own,),), (truth,) = on_ranks(1, train, setup, 1), on_ranks(1, gradients_in_fp64, setup)
    assert largest_difference(own.gradients, truth) <= limit


COMPILED: tuple[tuple[str, int, Options], ...] = (
    ("single", 1, COMPUTE),
    ("single", 1, {**MASTER, "checkpoint": "full"}),
    ("ddp", 2, COMPUTE),
    ("fsdp", 2, {"accumulate": 2}),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "options"), COMPILED, ids=str)
def test_compiled_blocks_round_less_often_but_compute_the_same(
    name: str, ranks: int, options: Options, on_ranks: OnRanks, alone: Alone
) -> None:
    setup = small_setup(name, ranks=ranks, precision="bf16", options={**STILL, **options, "compile": "default"})
    assert not spec_of(name).all_refusals(setup)
    truth = alone(str(setup.options["weights"]), setup.shape)[0]
    for (record,) in on_ranks(ranks, train_compiled, setup):
        assert largest_difference(record.gradients, truth) <= LIMITS["bf16"]


def train_compiled(setup: SmallSetup) -> list[StepRecord]:
    """Compilation warns of torch's own code."""
    warnings.simplefilter("ignore")
    return train(setup, 1)
