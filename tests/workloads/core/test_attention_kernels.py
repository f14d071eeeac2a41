"""Kernels give attention's output, log-sum-exp and gradients, also for a part of the keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from workloads.core.attention import KERNELS, CpuFlash, CudaCudnn, CudaEfficient, CudaFlash, Kernel, padded
from workloads.options import KernelName

EXACT = 1e-12
HALF = 3e-2

Inputs = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values."""


def draw(
    queries: int, keys: int, *, kv_heads: int = 2, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> Inputs:
    """Queries of four heads, keys and values: drawn in float64."""
    random = torch.Generator().manual_seed(1)
    q_bhqe = torch.randn(2, 4, queries, 8, dtype=torch.float64, generator=random)
    k_bkte, v_bkte = torch.randn(2, 2, kv_heads, keys, 8, dtype=torch.float64, generator=random)
    return q_bhqe.to(device, dtype), k_bkte.to(device, dtype), v_bkte.to(device, dtype)


def by_definition(q_bhqe: Tensor, k_bkte: Tensor, v_bkte: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, from all scores."""
    group = q_bhqe.shape[1] // k_bkte.shape[1]
    k_bhte, v_bhte = k_bkte.repeat_interleave(group, dim=1), v_bkte.repeat_interleave(group, dim=1)
    scores_bhqt = q_bhqe @ k_bhte.mT / math.sqrt(q_bhqe.shape[-1])
    if is_causal:
        sees_qt = torch.ones(scores_bhqt.shape[-2:], dtype=torch.bool, device=scores_bhqt.device).tril()
        scores_bhqt = scores_bhqt.masked_fill(~sees_qt, -math.inf)
    return scores_bhqt.softmax(-1) @ v_bhte, scores_bhqt.logsumexp(-1)


def check(kernel: Kernel, inputs: Inputs, *, is_causal: bool, limit: float) -> None:
    """Output, log-sum-exp and gradients are those of the definition, in float64."""
    exact = tuple(tensor.double().requires_grad_() for tensor in inputs)
    out_bhqe, lse_bhq = by_definition(*exact, is_causal=is_causal)
    out_gradient_bhqe = torch.ones_like(inputs[0]).cumsum(-1)
    gradients = torch.autograd.grad(out_bhqe, exact, out_gradient_bhqe.double())
    found_out_bhqe, found_lse_bhq = kernel.forward(*inputs, is_causal=is_causal)
    found = kernel.backward(out_gradient_bhqe, *inputs, found_out_bhqe, found_lse_bhq, is_causal=is_causal)
    for ours, truth in zip((found_out_bhqe, found_lse_bhq, *found), (out_bhqe, lse_bhq, *gradients), strict=True):
        assert ours.shape == truth.shape
        assert ((ours - truth).norm() / truth.norm()).item() <= limit


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_cpu_attends_as_the_definition_says(kv_heads: int, is_causal: bool) -> None:
    check(CpuFlash(), draw(12, 12, kv_heads=kv_heads), is_causal=is_causal, limit=EXACT)


def test_queries_and_keys_may_be_of_different_number() -> None:
    check(CpuFlash(), draw(6, 12), is_causal=False, limit=EXACT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_log_sum_exp_is_not_rounded_to_half_precision(dtype: torch.dtype) -> None:
    inputs = draw(12, 12, dtype=dtype)
    check(CpuFlash(), inputs, is_causal=True, limit=HALF)
    _, lse_bhq = CpuFlash().forward(*inputs, is_causal=True)
    assert lse_bhq.dtype == torch.float32


@pytest.mark.parametrize("kernel", [CpuFlash()])
def test_gradients_of_parts_add_up_to_those_of_the_whole(kernel: Kernel) -> None:
    q_bhqe, k_bkte, v_bkte = draw(12, 12)
    out_bhqe, lse_bhq = kernel.forward(q_bhqe, k_bkte, v_bkte, is_causal=False)
    out_gradient_bhqe = torch.randn_like(out_bhqe)
    whole = kernel.backward(out_gradient_bhqe, q_bhqe, k_bkte, v_bkte, out_bhqe, lse_bhq, is_causal=False)
    parts = [
        kernel.backward(
            out_gradient_bhqe, q_bhqe, k_bkte[:, :, part], v_bkte[:, :, part], out_bhqe, lse_bhq, is_causal=False
        )
        for part in (slice(0, 5), slice(5, 12))
    ]
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole[0], rtol=0, atol=EXACT)
    for place in (1, 2):
        together = torch.cat([gradients[place] for gradients in parts], dim=2)
        torch.testing.assert_close(together, whole[place], rtol=0, atol=EXACT)


def test_queries_that_do_not_exist_have_infinite_sums() -> None:
    padded_bhq = padded(torch.zeros(1, 2, 33))
    assert padded_bhq.shape == (1, 2, 64)
    assert padded_bhq[:, :, :33].eq(0).all()
    assert padded_bhq[:, :, 33:].isposinf().all()
    assert padded(torch.zeros(1, 2, 32)).shape == (1, 2, 32)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [(CudaCudnn(), torch.bfloat16), (CudaFlash(), torch.bfloat16), (CudaEfficient(), torch.float32)],
)
def test_kernels_of_a_gpu_are_called_as_torch_declares_them(
    kernel: Kernel, dtype: torch.dtype, is_causal: bool
) -> None:
    """On tensors without data, so that no GPU is needed."""
    inputs = draw(40, 40, dtype=dtype, device="meta")
    out_bhqe, lse_bhq = kernel.forward(*inputs, is_causal=is_causal)
    assert out_bhqe.shape == inputs[0].shape
    assert (lse_bhq.shape, lse_bhq.dtype) == (inputs[0].shape[:3], torch.float32)
    gradients = kernel.backward(out_bhqe, *inputs, out_bhqe, lse_bhq, is_causal=is_causal)
    assert [gradient.shape for gradient in gradients] == [tensor.shape for tensor in inputs]


@pytest.mark.parametrize("name", list(KERNELS))
def test_kernels_of_a_gpu_take_parts_of_the_keys(name: KernelName) -> None:
    """As the ring hands them in: slices of longer tensors, fewer keys than queries, and heads in groups."""
    q_bhqe = torch.empty(2, 4, 80, 64, dtype=torch.bfloat16, device="meta")[:, :, 40:]
    k_bkte, v_bkte = torch.empty(2, 2, 2, 48, 64, dtype=torch.bfloat16, device="meta")[..., :24, :]
    out_bhqe, lse_bhq = KERNELS[name].forward(q_bhqe, k_bkte, v_bkte, is_causal=False)
    gradients = KERNELS[name].backward(out_bhqe, q_bhqe, k_bkte, v_bkte, out_bhqe, lse_bhq, is_causal=False)
    assert (out_bhqe.shape, lse_bhq.shape) == (q_bhqe.shape, q_bhqe.shape[:3])
    assert [gradient.shape for gradient in gradients] == [q_bhqe.shape, k_bkte.shape, v_bkte.shape]


def test_cudnn_sees_one_layout_of_all_tensors() -> None:
    """Its plans of backward are kept by the layout of some."""
    with SeenStrides() as seen:
        q_bhqe = torch.empty(2, 40, 4, 64, dtype=torch.bfloat16, device="meta").transpose(1, 2)
        out_bhqe, lse_bhq = CudaCudnn().forward(q_bhqe, q_bhqe, q_bhqe, is_causal=True)
        out_gradient_bhqe = torch.empty_like(q_bhqe)
        CudaCudnn().backward(out_gradient_bhqe, q_bhqe, q_bhqe, q_bhqe, out_bhqe, lse_bhq, is_causal=True)
    whole = (4 * 40 * 64, 40 * 64, 64, 1)
    assert seen.strides == {"forward": {whole}, "backward": {whole, (4 * 40, 40, 1, 1)}}


class SeenStrides(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives no types.
    """Keeps the strides of all tensors of four dimensions that cuDNN's attention is handed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.strides: dict[str, set[tuple[int, ...]]] = {"forward": set(), "backward": set()}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if "cudnn_attention" in func.name():
            way = "backward" if "backward" in func.name() else "forward"
            self.strides[way] |= {arg.stride() for arg in args if isinstance(arg, Tensor) and arg.dim() == 4}
        return func(*args, **(kwargs or {}))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [CudaCudnn(), CudaFlash()])
def test_a_gpus_gradients_of_parts_add_up_to_those_of_the_whole(kernel: Kernel) -> None:
    q_bhqe, k_bkte, v_bkte = draw(64, 64, dtype=torch.bfloat16, device="cuda")
    out_bhqe, lse_bhq = kernel.forward(q_bhqe, k_bkte, v_bkte, is_causal=False)
    out_gradient_bhqe = torch.randn_like(out_bhqe)
    whole = kernel.backward(out_gradient_bhqe, q_bhqe, k_bkte, v_bkte, out_bhqe, lse_bhq, is_causal=False)
    parts = [
        kernel.backward(
            out_gradient_bhqe, q_bhqe, k_bkte[:, :, part], v_bkte[:, :, part], out_bhqe, lse_bhq, is_causal=False
        )
        for part in (slice(0, 24), slice(24, 64))
    ]
    together = [parts[0][0].float() + parts[1][0].float()]
    together += [torch.cat([gradients[place].float() for gradients in parts], dim=2) for place in (1, 2)]
    for ours, truth in zip(together, whole, strict=True):
        assert ((ours - truth).norm() / truth.norm()).item() <= HALF


@pytest.mark.gpu
@pytest.mark.parametrize("queries", [32, 40])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_gpu_attends_as_the_definition_says(is_causal: bool, queries: int) -> None:
    single = draw(queries, queries, dtype=torch.float32, device="cuda")
    check(CudaEfficient(), single, is_causal=is_causal, limit=1e-4)
    half = draw(queries, queries, dtype=torch.bfloat16, device="cuda")
    check(CudaFlash(), half, is_causal=is_causal, limit=HALF)
    check(CudaCudnn(), half, is_causal=is_causal, limit=HALF)
