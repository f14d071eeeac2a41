"""The reference model and its training step, held against an implementation that is not ours.

`transformers`' LlamaForCausalLM with the same weights must give the same logits, loss and gradients; and with AdamW and
clipping written out by hand, the same five steps.
Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from tests.workloads.training.llama import llama_config, llama_name, llama_of, strengthen
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import no_phase
from workloads.core.data import Batches
from workloads.core.trainer import Trainer, make_model
from workloads.core.transformer import rotary_frequencies
from workloads.cost_models.shape import RopeScaling, Shape
from workloads.spec import LIMITS, Precision

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STEPS = 5
LEARNING_RATE = 1e-2
DECAY = 0.1
BETAS = (0.9, 0.95)
EPSILON = 1e-8
CLIP = 0.5

SCALED = RopeScaling(kind="llama3", factor=8.0, low_freq_factor=0.5, high_freq_factor=4.0, original_positions=32)
"""Of the eight frequencies of SMALL's heads, it keeps the first, lowers the second in part and the others fully."""
SHAPES: dict[str, Shape] = {
    "as presets": SMALL,
    "rope scaled as in Llama 3.1": replace(SMALL, rope_scaling=SCALED),
    "rope scaled linearly": replace(SMALL, rope_scaling=RopeScaling(kind="linear", factor=4.0), rope_theta=10_000.0),
    "heads wider than width / heads": replace(SMALL, head_dim=24),
    "heads narrower": replace(SMALL, head_dim=6, kv_heads=1),
    "a large epsilon": replace(SMALL, norm_epsilon=1e-2),
    "head and embedding tied": replace(SMALL, is_tied=True),
    "all of these": replace(
        SMALL, rope_scaling=SCALED, rope_theta=1e4, head_dim=24, norm_epsilon=1e-3, is_tied=True, kv_heads=4
    ),
}


def setup_of(precision: Precision = "fp32", *, shape: Shape = SMALL, clip: float = 0.0) -> SmallSetup:
    return small_setup(shape=shape, precision=precision, options={"clip": clip, "learning_rate": LEARNING_RATE})


def trainer_of(setup: SmallSetup) -> Trainer:
    model = make_model(setup)
    strengthen(model)
    return Trainer(setup, model, no_phase)


def batches_of(setup: SmallSetup, count: int) -> list[Tensor]:
    batches = Batches(setup, data_rank=0, data_ranks=1)
    return [next(batches) for _ in range(count)]


def llama_loss(setup: SmallSetup, llama: PreTrainedModel, tokens_bs: Tensor) -> Tensor:
    """It shifts its labels itself, so that it is given the whole sequences; it computes in the same precision."""
    is_half = setup.precision == "bf16"
    with torch.autocast("cpu", dtype=torch.bfloat16) if is_half else nullcontext():
        loss: Tensor = llama(input_ids=tokens_bs, labels=tokens_bs).loss
    return loss


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_logits_loss_and_every_gradient_are_those_of_llama(precision: Precision, kv_heads: int) -> None:
    assert_same(setup_of(precision, shape=replace(SMALL, kv_heads=kv_heads)))


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_file_may_set_is_computed_as_llama_does(name: str) -> None:
    assert_same(setup_of(shape=SHAPES[name]))


def test_frequencies_that_turn_often_are_kept_and_others_lowered_in_part_or_fully() -> None:
    first, second, *others = rotary_frequencies(replace(SMALL, rope_scaling=SCALED)) / rotary_frequencies(SMALL)
    assert first == 1
    assert 1 / 8 < second < 1
    assert all(other == pytest.approx(1 / 8) for other in others)


def assert_same(setup: SmallSetup) -> None:
    limit = LIMITS[setup.precision]
    trainer = trainer_of(setup)
    llama = llama_of(llama_config(setup.shape), trainer.model)
    (tokens_bs,) = batches_of(setup, 1)

    if setup.precision == "fp32":
        ours_bsv, theirs_bsv = trainer.model(tokens_bs[:, :-1]), llama(input_ids=tokens_bs[:, :-1]).logits
        assert (ours_bsv - theirs_bsv).norm() <= limit * theirs_bsv.norm()

    loss = trainer.step(tokens_bs)
    assert loss is not None
    expected = llama_loss(setup, llama, tokens_bs)
    assert loss.item() == pytest.approx(expected.item(), rel=limit)

    expected.backward()  # type: ignore[no-untyped-call]
    theirs = dict(llama.named_parameters())
    ours = trainer.full_gradients()
    assert {llama_name(name) for name in ours} == set(theirs)
    for name, gradient in ours.items():
        its = theirs[llama_name(name)].grad
        assert its is not None
        assert (gradient - its).norm() <= limit * its.norm(), name


@pytest.mark.slow
def test_five_steps_are_those_of_llama_with_adamw_and_clipping_by_hand() -> None:
    setup = setup_of(clip=CLIP)
    trainer = trainer_of(setup)
    llama = llama_of(llama_config(setup.shape), trainer.model)
    start = {name: weight.detach().clone() for name, weight in llama.named_parameters()}
    means = {name: torch.zeros_like(weight) for name, weight in start.items()}
    squares = {name: torch.zeros_like(weight) for name, weight in start.items()}
    clipped = 0
    for step, tokens_bs in enumerate(batches_of(setup, STEPS), start=1):
        loss = trainer.step(tokens_bs)
        assert loss is not None
        llama.zero_grad()
        expected = llama_loss(setup, llama, tokens_bs)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4), step
        expected.backward()  # type: ignore[no-untyped-call]
        gradients = {name: weight.grad for name, weight in llama.named_parameters() if weight.grad is not None}
        norm = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt()
        clipped += int(norm > CLIP)
        scale = min(1.0, CLIP / float(norm))
        with torch.no_grad():
            for name, weight in llama.named_parameters():
                gradient = gradients[name] * scale
                means[name] = BETAS[0] * means[name] + (1 - BETAS[0]) * gradient
                squares[name] = BETAS[1] * squares[name] + (1 - BETAS[1]) * gradient**2
                mean = means[name] / (1 - BETAS[0] ** step)
                square = squares[name] / (1 - BETAS[1] ** step)
                weight.sub_(LEARNING_RATE * (mean / (square.sqrt() + EPSILON) + DECAY * weight))
    assert clipped == STEPS, "the norm is above the limit, so that clipping shows"
    theirs = dict(llama.named_parameters())
    for name, weight in trainer.model.named_parameters():
        its, moved = theirs[llama_name(name)], theirs[llama_name(name)] - start[llama_name(name)]
        assert (weight - its).norm() <= 2e-3 * moved.norm(), name
