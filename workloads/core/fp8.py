"""Products in fp8, for weights=fp8: linear layers whose operands are scaled by rows and columns and rounded to e4m3.

Forward multiplies activations, scaled by rows (tokens), with the weight, scaled by output columns. Backward rounds the
operands of both of its products again, along the dimension that each sums over, including its gradients, as the rowwise
recipe of torchao does, which torchtitan uses. Scales follow from the largest absolute value of a row at that moment and
are powers of 2, so that how many tokens a rank sees at a time changes no rounding, except of the smallest numbers.
Dimensions: m tokens, k inputs of the layer, n outputs; of a product a (rows, sum) and b (sum, columns).
Source: torchao, Float8LinearConfig.from_recipe_name("rowwise") and hp_tensor_to_float8_dynamic.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from workloads.core.precision_options import is_fp8
from workloads.spec import Setup

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max
SMALLEST_ROW = 1e-12
"""A row whose largest absolute value is smaller than this is scaled as if it were this; rows of zeros stay zeros."""
MULTIPLE = 16
"""A GPU multiplies in fp8 only if it sums over a multiple of this many elements."""
FIRST_CAPABILITY = (8, 9)
"""Compute capability of the first GPUs with products in fp8: Ada; after it Hopper (9.0)."""


def check_device(setup: Setup) -> None:
    """Check that this rank's device computes in fp8, before any product: selective checkpointing counts products.

    Raises:
        RuntimeError: it is a GPU without fp8.
    """
    if setup.device == "cuda":
        reason = missing_fp8(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
        if reason is not None:
            raise RuntimeError(reason)
    else:
        has_cpu_product()


def missing_fp8(gpu: str, capability: tuple[int, int]) -> str | None:
    """Return why a GPU of this name and compute capability cannot train with weights=fp8; None if it can."""
    if capability >= FIRST_CAPABILITY:
        return None
    own, first = (".".join(map(str, each)) for each in (capability, FIRST_CAPABILITY))
    return (
        f"option weights is fp8, and {gpu} (compute capability {own}) has no products in fp8, which begin with {first}"
        " (Ada, Hopper); use weights=bf16_compute"
    )


class Fp8Linear(nn.Linear):
    """A linear layer that rounds its weight to bf16 and multiplies in fp8; it returns bf16."""

    def forward(self, x: Tensor) -> Tensor:
        rounded_nk = self.weight.to(torch.bfloat16)
        out_mn: Tensor = _Product.apply(x.flatten(0, -2), rounded_nk)  # type: ignore[no-untyped-call]
        # Not a view, as in torch's own linear layers: for a view, FSDP2 would warn of updates in place.
        out: Tensor = torch.ops.aten._unsafe_view(out_mn, (*x.shape[:-1], out_mn.shape[1]))
        return out


class _Product(Function):
    """x times the transposed weight, (m, n), and its gradients, all three by `rowwise_product`."""

    @staticmethod
    def forward(ctx: Any, x_mk: Tensor, weight_nk: Tensor) -> Tensor:
        ctx.save_for_backward(x_mk, weight_nk)
        return rowwise_product(x_mk, weight_nk.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (gradient_mn,) = gradients
        x_mk, weight_nk = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad
        return (
            rowwise_product(gradient_mn, weight_nk) if of_x else None,
            rowwise_product(gradient_mn.t(), x_mk) if of_weight else None,
        )


def rowwise_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a (rows, sum) times b (sum, columns) in bf16, after rounding rows of a and columns of b to e4m3."""
    padding = -a.shape[1] % MULTIPLE
    if padding:  # Zeros change neither a scale nor a sum.
        a, b = F.pad(a, (0, padding)), F.pad(b, (0, 0, 0, padding))
    a_e4m3, a_scales = rounded_rows(a)
    b_e4m3, b_scales = rounded_rows(b.t())
    if a.device.type == "cpu" and not has_cpu_product():
        product = (a_e4m3.float() * a_scales) @ (b_e4m3.float() * b_scales).t()
        return product.to(torch.bfloat16)
    # The second operand must lie in memory column by column, as its transposed rows do.
    return torch._scaled_mm(a_e4m3, b_e4m3.t(), a_scales, b_scales.t(), out_dtype=torch.bfloat16)


def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x (rows, sum) in e4m3, and the powers of 2 (rows, 1) in fp32 that its rows must be multiplied with."""
    largest = x.abs().amax(dim=1, keepdim=True).float().clamp(min=SMALLEST_ROW)
    # Divided down to a power of 2, so that the largest value stays within e4m3. frexp is exact, logarithms are not.
    exponent = torch.frexp(LARGEST / largest).exponent - 1
    scales = torch.ldexp(torch.ones_like(largest), exponent)
    return (x.float() * scales).to(E4M3).contiguous(), 1 / scales


def product_notes(setup: Setup) -> list[str]:
    """Return a note if this torch cannot multiply in fp8, so that fp32 computes the same values."""
    if not is_fp8(setup) or setup.device != "cpu" or has_cpu_product():
        return []
    return [f"torch {torch.__version__} has no product of fp8 on the CPU; fp32 computes the same rounded values"]


@cache
def has_cpu_product() -> bool:
    """Whether this torch multiplies in fp8 with scales of rows on the CPU; otherwise fp32 computes the same values."""
    ones, scale = torch.ones((MULTIPLE, MULTIPLE)).to(E4M3), torch.ones((MULTIPLE, 1))
    try:
        torch._scaled_mm(ones, ones.t(), scale, scale.t(), out_dtype=torch.bfloat16)
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True
