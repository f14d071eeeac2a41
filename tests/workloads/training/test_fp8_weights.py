"""weights=fp8: products round rows to e4m3, strategies compute what `single` does, and who cannot is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.support.ranks import OnRanks
from tests.workloads.training.half_steps import Gradients, largest_difference
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import train
from workloads.core import fp8
from workloads.core.fp8 import E4M3, Fp8Linear, missing_fp8, rounded_rows, rowwise_product
from workloads.core.precision_options import FP8_ON_CPU, precision_notes
from workloads.core.trainer import outline_model
from workloads.registry import spec_of
from workloads.spec import FP8_WEIGHTS_LIMIT, HALF_WEIGHTS_LIMIT, Device, OptionValue, Precision

Options = Mapping[str, OptionValue]
STILL: Options = {"learning_rate": 0.0, "clip": 0.0, "weights": "fp8"}


def drawn(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(3))


def by_hand(a: Tensor, b: Tensor) -> Tensor:
    """The product of rows and columns, each rounded on its own to e4m3, summed in fp64."""
    rows, columns = rounded_rows(a), rounded_rows(b.t())
    return (rows[0].double() * rows[1]) @ (columns[0].double() * columns[1]).t()


@pytest.mark.parametrize(("rows", "inner", "columns"), [(5, 16, 7), (33, 24, 48), (1, 7, 3)])
def test_a_product_is_that_of_the_rounded_rows_and_columns(rows: int, inner: int, columns: int) -> None:
    a, b = drawn(rows, inner).bfloat16(), drawn(inner, columns).bfloat16()
    torch.testing.assert_close(rowwise_product(a, b).double(), by_hand(a, b), rtol=2**-8, atol=2**-8)


def test_where_torch_has_no_such_product_fp32_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(32, 64).bfloat16(), drawn(64, 48).bfloat16()
    own = rowwise_product(a, b)
    monkeypatch.setattr(fp8, "has_cpu_product", lambda: False)
    torch.testing.assert_close(rowwise_product(a, b), own, rtol=2**-7, atol=2**-8)


def test_a_run_says_where_fp32_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup(precision="bf16", options={"weights": "fp8"})
    monkeypatch.setattr(fp8, "has_cpu_product", lambda: False)
    (note,) = fp8.product_notes(setup)
    assert "no product of fp8 on the CPU; fp32 computes the same rounded values" in note
    assert fp8.product_notes(small_setup(precision="bf16")) == []
    monkeypatch.setattr(fp8, "has_cpu_product", lambda: True)
    assert fp8.product_notes(setup) == []


def test_scales_are_the_powers_of_2_that_keep_a_row_within_e4m3() -> None:
    rows = torch.tensor([[448.0, 1.0], [449.0, 1.0], [1.0, -3.0], [0.0, 0.0]])
    rounded, scales = rounded_rows(rows)
    assert rounded.dtype is E4M3
    assert scales[:3, 0].tolist() == [1.0, 2.0, 2.0**-7]
    assert (rounded.float() * scales).tolist() == [[448.0, 1.0], [448.0, 1.0], [1.0, -3.0], [0.0, 0.0]]


def test_a_row_scaled_by_another_power_of_2_rounds_to_the_same() -> None:
    row = drawn(1, 64)
    with_larger = torch.cat((row, torch.full((1, 1), 1000.0)), dim=1)
    alone, together = (rounded.float() * scales for rounded, scales in map(rounded_rows, (row, with_larger)))
    # Only numbers below e4m3's normal range, 2^-6 beside a largest of 448, round more coarsely.
    is_normal = row.abs() > 1000 * 2**-14
    assert torch.equal(together[:, :64][is_normal], alone[is_normal])


def test_gradients_are_products_of_rounded_operands_too() -> None:
    layer = Fp8Linear(32, 16, bias=False)
    x = drawn(2, 8, 32).bfloat16().requires_grad_()
    gradient = drawn(2, 8, 16).bfloat16()
    layer(x).backward(gradient)
    flat, weight = gradient.flatten(0, 1), layer.weight.detach().bfloat16()
    assert x.grad is not None
    assert layer.weight.grad is not None
    assert torch.equal(x.grad.flatten(0, 1), rowwise_product(flat, weight))
    assert torch.equal(layer.weight.grad, rowwise_product(flat.t(), x.detach().flatten(0, 1)).float())


def test_only_the_linear_layers_of_blocks_multiply_in_fp8() -> None:
    model = outline_model(small_setup(precision="bf16", options=STILL))
    names = {name for name, module in model.named_modules() if isinstance(module, Fp8Linear)}
    assert names == {
        f"blocks.{block}.{product}"
        for block in range(SMALL.layers)
        for product in ("attention.q", "attention.k", "attention.v", "attention.o", "mlp.gate", "mlp.up", "mlp.down")
    }
    assert isinstance(model.head, nn.Linear)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


CASES: tuple[tuple[str, int, Options], ...] = (
    ("single", 1, {"accumulate": 2, "checkpoint": "selective"}),
    ("ddp", 2, {"accumulate": 2}),
    ("zero1", 2, {"checkpoint": "full"}),
    ("fsdp", 2, {"checkpoint": "selective"}),
    ("fsdp", 4, {"wrap": "layer", "accumulate": 2}),
    ("ulysses", 2, {}),
    ("gpipe", 2, {}),
    ("zero_bubble", 2, {}),
    ("three_d", 4, {"data_axis": "fsdp", "tensor_ranks": 1}),
)


@pytest.fixture(scope="module")
def alone(on_ranks: OnRanks) -> Callable[[str], Gradients]:
    known: dict[str, Gradients] = {}

    def run(weights: str) -> Gradients:
        if weights not in known:
            setup = small_setup(precision="bf16", options={**STILL, "weights": weights})
            ((record,),) = on_ranks(1, train, setup, 1)
            known[weights] = record.gradients
        return known[weights]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "options"), CASES, ids=str)
def test_gradients_are_those_of_single_in_fp8(
    name: str, ranks: int, options: Options, on_ranks: OnRanks, alone: Callable[[str], Gradients]
) -> None:
    setup = small_setup(name, ranks=ranks, precision="bf16", options={**STILL, **options})
    assert not spec_of(name).all_refusals(setup)
    for (record,) in on_ranks(ranks, train, setup, 1):
        assert largest_difference(record.gradients, alone("fp8")) <= FP8_WEIGHTS_LIMIT


def test_fp8_is_another_arithmetic_than_bf16(alone: Callable[[str], Gradients]) -> None:
    difference = largest_difference(alone("fp8"), alone("bf16_compute"))
    assert HALF_WEIGHTS_LIMIT <= FP8_WEIGHTS_LIMIT < difference < 0.2


def test_the_ring_is_not_compared_with_single_in_fp8() -> None:
    setup = small_setup("ring_attention", ranks=2, precision="bf16", options={"weights": "fp8"})
    assert not spec_of("ring_attention").all_refusals(setup)
    assert "amplifies the ring's differences in rounding" in str(spec_of("ring_attention").incomparable(setup))


REFUSED: tuple[tuple[str, int, Precision, Options, str], ...] = (
    ("single", 1, "fp32", {}, "with --precision fp32, which always keeps fp32 weights"),
    ("deepspeed", 2, "bf16", {}, "DeepSpeed's engine casts weights by rules of its own"),
    ("tensor_parallel", 2, "bf16", {}, "tensor ranks divide the rows that fp8 scales"),
    ("three_d", 8, "bf16", {}, "tensor ranks divide the rows that fp8 scales"),
)


@pytest.mark.parametrize(("name", "ranks", "precision", "options", "reason"), REFUSED, ids=str)
def test_what_cannot_be_in_fp8_is_refused(
    name: str, ranks: int, precision: Precision, options: Options, reason: str
) -> None:
    setup = small_setup(name, ranks=ranks, precision=precision, options={"weights": "fp8", **options})
    assert any(reason in refusal for refusal in spec_of(name).refusals(setup))


def test_a_gpu_takes_widths_that_are_multiples_of_16() -> None:
    def refusals(device: Device) -> list[str]:
        setup = small_setup(precision="bf16", options={"weights": "fp8"})
        odd = replace(setup, shape=replace(SMALL, mlp_width=120), device=device, backend="nccl")
        return spec_of("single").refusals(odd)

    assert not refusals("cpu")
    (refusal,) = refusals("cuda")
    assert "fp8 with mlp_width 120; a GPU multiplies in fp8 only sizes that are multiples of 16" in refusal


def test_a_gpu_without_fp8_is_refused_by_name() -> None:
    assert missing_fp8("NVIDIA H100", (9, 0)) is None
    assert missing_fp8("NVIDIA L4", (8, 9)) is None
    reason = missing_fp8("NVIDIA A100", (8, 0))
    assert reason == (
        "option weights is fp8, and NVIDIA A100 (compute capability 8.0) has no products in fp8, which begin with 8.9"
        " (Ada, Hopper); use weights=bf16_compute"
    )


def test_a_run_on_a_cpu_says_that_its_speed_means_nothing() -> None:
    setup: SmallSetup = small_setup(precision="bf16", options={"weights": "fp8"})
    assert FP8_ON_CPU in precision_notes(setup)
    assert FP8_ON_CPU == "fp8 on a CPU shows its values; its speed says nothing about a GPU"
