"""The reference transformer against the shape's arithmetic, and against itself in its variants."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.workloads.training.setups import SMALL
from workloads.core.transformer import Checkpoint, Transformer, attend, next_token_loss, rotary_tables, rotate
from workloads.cost_models.shape import PRESETS, Shape

SHAPES = (
    PRESETS["tiny"],
    replace(SMALL, layers=3, kv_heads=4, mlp_width=96, vocabulary=100, batch=2),
    replace(SMALL, head_dim=24, is_tied=True),
)


def make_tokens(shape: Shape) -> Tensor:
    return torch.randint(
        shape.vocabulary, (shape.batch, shape.sequence + 1), generator=torch.Generator().manual_seed(1)
    )


def make_transformer(shape: Shape = SMALL, checkpoint: Checkpoint = "none") -> Transformer:
    torch.manual_seed(0)
    return Transformer(shape, checkpoint=checkpoint)


def loss_of(model: Transformer, tokens_bs: Tensor) -> Tensor:
    return next_token_loss(model(tokens_bs[:, :-1]), tokens_bs[:, 1:])


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_are_as_many_as_the_shape_says(shape: Shape) -> None:
    weights = list(make_transformer(shape).parameters())
    assert sum(weight.numel() for weight in weights) == shape.parameters()
    assert len(weights) == shape.parameter_tensors()


@pytest.mark.parametrize(
    ("name", "parameters"), [("125m", 1.25e8), ("1b", 1.10e9), ("8b", 8.03e9), ("70b", 70.55e9), ("405b", 405.85e9)]
)
def test_presets_have_the_size_of_their_names(name: str, parameters: float) -> None:
    with torch.device("meta"):
        model = Transformer(replace(PRESETS[name], sequence=2))
    weights = sum(weight.numel() for weight in model.parameters())
    assert weights == PRESETS[name].parameters()
    assert weights == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize("shape", SHAPES)
def test_flops_are_those_that_torch_counts(shape: Shape) -> None:
    model, tokens_bs = make_transformer(shape), make_tokens(shape)
    # torch counts the products inside of attention's plain form, and has no formula for its fused CPU kernel.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward_counter:
        loss = loss_of(model, tokens_bs)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as backward_counter:
        loss.backward()  # type: ignore[no-untyped-call]
    forward, backward = forward_counter.get_total_flops(), backward_counter.get_total_flops()
    assert 3 * forward == shape.flops_per_step("palm")
    assert forward + backward == shape.flops_per_step("palm")


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_what_the_fused_kernel_takes_from_the_count(shape: Shape) -> None:
    model, tokens_bs = make_transformer(shape), make_tokens(shape)
    with FlopCounterMode(display=False) as counter:
        loss_of(model, tokens_bs)
    attention = 4 * shape.layers * shape.query_width * shape.sequence * shape.tokens
    assert counter.get_total_flops() + attention == shape.flops_per_step("palm") // 3


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("checkpoint", ["full", "selective"])
def test_checkpointing_changes_no_gradient_and_keeps_less(checkpoint: Checkpoint, precision: torch.dtype) -> None:
    tokens_bs = make_tokens(SMALL)
    gradients, kept_bytes = {}, {}
    for choice in ("none", checkpoint):
        model = make_transformer(checkpoint=choice)
        storages: dict[int, int] = {}

        def note(tensor: Tensor, storages: dict[int, int] = storages) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        enabled = precision is not torch.float32
        with (
            torch.autocast("cpu", dtype=precision if enabled else torch.bfloat16, enabled=enabled),
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        ):
            loss = loss_of(model, tokens_bs)
        kept_bytes[choice] = sum(storages.values())
        loss.backward()  # type: ignore[no-untyped-call]
        gradients[choice] = [weight.grad for weight in model.parameters()]
    assert kept_bytes[checkpoint] < kept_bytes["none"]
    torch.testing.assert_close(gradients[checkpoint], gradients["none"], rtol=0, atol=0)


@pytest.mark.parametrize("checkpoint", get_args(Checkpoint))
def test_names_are_the_same_in_every_setting(checkpoint: Checkpoint) -> None:
    names = [name for name, _ in make_transformer(checkpoint=checkpoint).named_parameters()]
    assert names == [name for name, _ in make_transformer().named_parameters()]
    assert names[1:10] == [
        "blocks.0.attention_norm.weight",
        *(f"blocks.0.attention.{letter}.weight" for letter in "qkvo"),
        "blocks.0.mlp_norm.weight",
        *(f"blocks.0.mlp.{part}.weight" for part in ("gate", "up", "down")),
    ]


def test_equal_seeds_draw_equal_weights() -> None:
    torch.testing.assert_close(make_transformer().state_dict(), make_transformer().state_dict(), rtol=0, atol=0)


def test_an_untrained_model_guesses_evenly() -> None:
    loss = loss_of(make_transformer(), make_tokens(SMALL))
    assert loss.item() == pytest.approx(torch.tensor(SMALL.vocabulary).log().item(), rel=0.02)


def test_no_token_sees_its_future() -> None:
    model, tokens_bs = make_transformer(), make_tokens(SMALL)[:, :-1]
    changed_bs = tokens_bs.clone()
    changed_bs[:, 9] += 1
    changed_bs %= SMALL.vocabulary
    before, after = model(tokens_bs), model(changed_bs)
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_grouped_attention_is_attention_with_repeated_heads() -> None:
    torch.manual_seed(0)
    q_bhse, k_bkse, v_bkse = torch.randn(2, 4, 8, 16), torch.randn(2, 2, 8, 16), torch.randn(2, 2, 8, 16)
    k_bhse, v_bhse = k_bkse.repeat_interleave(2, dim=1), v_bkse.repeat_interleave(2, dim=1)
    scores_bhqk = q_bhse @ k_bhse.transpose(-1, -2) / 16**0.5
    future_qk = torch.ones(8, 8, dtype=torch.bool).triu(diagonal=1)
    expected_bhse = scores_bhqk.masked_fill(future_qk, -torch.inf).softmax(-1) @ v_bhse
    torch.testing.assert_close(attend(q_bhse, k_bkse, v_bkse), expected_bhse)


def test_rotated_products_depend_on_distance_only() -> None:
    torch.manual_seed(0)
    cos_sr, sin_sr = rotary_tables(replace(SMALL, sequence=32))
    q_e, k_e = torch.randn(16), torch.randn(16)
    q_se, k_se = rotate(q_e.expand(32, -1), cos_sr, sin_sr), rotate(k_e.expand(32, -1), cos_sr, sin_sr)
    products = q_se @ k_se.T
    for distance in (-7, 0, 5):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-4)
    torch.testing.assert_close(products[0, 0], q_e @ k_e)
