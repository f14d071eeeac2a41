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
from torch import Tensor, nn

from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import no_phase
from workloads.core.data import Batches
from workloads.core.trainer import Trainer, make_model
from workloads.spec import LIMITS, Precision

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

STEPS = 5
LEARNING_RATE = 1e-2
DECAY = 0.1
BETAS = (0.9, 0.95)
EPSILON = 1e-8
CLIP = 0.5

NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
"""Of our modules, Llama's names; those of a block are below `model.layers`."""


def setup_of(precision: Precision = "fp32", *, kv_heads: int = 2, clip: float = 0.0) -> SmallSetup:
    return small_setup(
        shape=replace(SMALL, kv_heads=kv_heads),
        precision=precision,
        options={"clip": clip, "learning_rate": LEARNING_RATE},
    )


def trainer_of(setup: SmallSetup) -> Trainer:
    """Ours, with gains that are not all one, and weights so large that every part of the model matters."""
    model = make_model(setup)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.1)
    return Trainer(setup, model, no_phase)


def llama_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module.startswith("blocks."):
        _, number, module = module.split(".", 2)
        return f"model.layers.{number}.{NAMES[module]}.{kind}"
    return f"{NAMES[module]}.{kind}"


def llama_of(setup: SmallSetup, model: nn.Module) -> LlamaForCausalLM:
    """Theirs, with our weights."""
    from transformers import LlamaConfig, LlamaForCausalLM  # Only here: collecting the tests need not load it.

    shape = setup.shape
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.mlp_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.sequence + 1,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    )
    llama = LlamaForCausalLM(config)
    state = {llama_name(name): weight.detach().clone() for name, weight in model.named_parameters()}
    llama.load_state_dict(state)
    return llama


def batches_of(setup: SmallSetup, count: int) -> list[Tensor]:
    batches = Batches(setup, data_rank=0, data_ranks=1)
    return [next(batches) for _ in range(count)]


def llama_loss(setup: SmallSetup, llama: LlamaForCausalLM, tokens_bs: Tensor) -> Tensor:
    """It shifts its labels itself, so that it is given the whole sequences; it computes in the same precision."""
    is_half = setup.precision == "bf16"
    with torch.autocast("cpu", dtype=torch.bfloat16) if is_half else nullcontext():
        loss: Tensor = llama(input_ids=tokens_bs, labels=tokens_bs).loss
    return loss


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_logits_loss_and_every_gradient_are_those_of_llama(precision: Precision, kv_heads: int) -> None:
    setup, limit = setup_of(precision, kv_heads=kv_heads), LIMITS[precision]
    trainer = trainer_of(setup)
    llama = llama_of(setup, trainer.model)
    (tokens_bs,) = batches_of(setup, 1)

    if precision == "fp32":
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


def test_five_steps_are_those_of_llama_with_adamw_and_clipping_by_hand() -> None:
    setup = setup_of(clip=CLIP)
    trainer = trainer_of(setup)
    llama = llama_of(setup, trainer.model)
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
