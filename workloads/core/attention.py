"""torch's attention kernels behind one interface, and which one a rank uses: torch's choice or the option `attention`.

A kernel may see only some of the keys. Given the output and the log-sum-exp over all keys, its backward returns what
these keys contribute to the gradients, so that attention can be computed in pieces.
Strategies on scaled_dot_product_attention leave the choice to torch, which looks at GPU, precision and heads; the ring
calls a kernel itself, and takes the one that torch would choose, so that an efficiency against `single` compares like
with like. Each run notes the kernel that it used.
Dimensions: b batch, h query heads, k key and value heads, q queries, t keys, e elements of a head.
Source: Dao 2023, FlashAttention-2, algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from workloads.core.mesh import DTYPES
from workloads.core.transformer import Attend, attend
from workloads.options import KernelName, pinned_kernel
from workloads.spec import Setup

aten = torch.ops.aten

LSE_MULTIPLE = 32
"""The efficient kernel pads the queries of its log-sum-exp to a multiple of this."""


class Kernel(Protocol):
    """Attention of queries to keys, its scores divided by the square root of e, with grouped heads.

    is_causal: query i sees keys 0 to i; then there are as many keys as queries.
    """

    def forward(self, q_bhqe: Tensor, k_bkte: Tensor, v_bkte: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
        """Return the output (b, h, q, e) in the queries' precision, and the log-sum-exp (b, h, q) in nats.

        The log-sum-exp is in float32 or better.
        """

    def backward(
        self,
        out_gradient_bhqe: Tensor,
        q_bhqe: Tensor,
        k_bkte: Tensor,
        v_bkte: Tensor,
        out_bhqe: Tensor,
        lse_bhq: Tensor,
        *,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what these keys contribute to the gradients of queries, keys and values.

        out_bhqe, lse_bhq: over all keys that the queries see, not only these.
        """


class CpuFlash:
    """The CPU's flash kernel, for every precision, float64 included."""

    def forward(self, q_bhqe: Tensor, k_bkte: Tensor, v_bkte: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
        out_bhqe, lse_bhq = aten._scaled_dot_product_flash_attention_for_cpu(q_bhqe, k_bkte, v_bkte, 0.0, is_causal)
        return out_bhqe, lse_bhq

    def backward(
        self,
        out_gradient_bhqe: Tensor,
        q_bhqe: Tensor,
        k_bkte: Tensor,
        v_bkte: Tensor,
        out_bhqe: Tensor,
        lse_bhq: Tensor,
        *,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradients: tuple[Tensor, Tensor, Tensor] = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            out_gradient_bhqe, q_bhqe, k_bkte, v_bkte, out_bhqe, lse_bhq, 0.0, is_causal
        )
        return gradients


class CudaFlash:
    """The flash kernel of a GPU, for half precision. Heads have a multiple of 8 elements, at most 256."""

    def forward(self, q_bhqe: Tensor, k_bkte: Tensor, v_bkte: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
        out_bhqe, lse_bhq, *_ = aten._scaled_dot_product_flash_attention(q_bhqe, k_bkte, v_bkte, 0.0, is_causal, False)
        return out_bhqe, lse_bhq

    def backward(
        self,
        out_gradient_bhqe: Tensor,
        q_bhqe: Tensor,
        k_bkte: Tensor,
        v_bkte: Tensor,
        out_bhqe: Tensor,
        lse_bhq: Tensor,
        *,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # All sequences have one length, so no table of their starts is needed; without dropout no seed is read.
        no_table, no_seed = None, torch.empty(2, dtype=torch.uint64, device=q_bhqe.device)
        gradients: tuple[Tensor, Tensor, Tensor] = aten._scaled_dot_product_flash_attention_backward(
            out_gradient_bhqe,
            q_bhqe,
            k_bkte,
            v_bkte,
            out_bhqe,
            # The kernel assumes that the queries of a head are contiguous.
            lse_bhq.contiguous(),
            no_table,
            no_table,
            q_bhqe.shape[2],
            k_bkte.shape[2],
            0.0,
            is_causal,
            no_seed,
            no_seed,
        )
        return gradients


class CudaCudnn:
    """cuDNN's kernel, for half precision. Heads have a multiple of 8 elements, at most 128, or 256 on Hopper.

    All tensors are made contiguous: torch caches cuDNN's plans of backward by the layout of queries, keys and values,
    and assumes that the layouts of the output and its gradient follow from them.
    Source: torch 2.11 to 2.13, ATen/native/cudnn/MHA.cpp; torch's own ring of context parallelism also gives backward
    the output and the log-sum-exp over all keys.
    """

    def forward(self, q_bhqe: Tensor, k_bkte: Tensor, v_bkte: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
        no_bias, has_lse = None, True
        out_bhqe, lse_bhq1, *_ = aten._scaled_dot_product_cudnn_attention(
            q_bhqe.contiguous(), k_bkte.contiguous(), v_bkte.contiguous(), no_bias, has_lse, 0.0, is_causal
        )
        return out_bhqe, lse_bhq1.squeeze(-1)

    def backward(
        self,
        out_gradient_bhqe: Tensor,
        q_bhqe: Tensor,
        k_bkte: Tensor,
        v_bkte: Tensor,
        out_bhqe: Tensor,
        lse_bhq: Tensor,
        *,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        no_bias, no_table = None, None
        no_seed = torch.empty((), dtype=torch.int64, device=q_bhqe.device)
        gradients: tuple[Tensor, Tensor, Tensor] = aten._scaled_dot_product_cudnn_attention_backward(
            out_gradient_bhqe.contiguous(),
            q_bhqe.contiguous(),
            k_bkte.contiguous(),
            v_bkte.contiguous(),
            out_bhqe.contiguous(),
            lse_bhq.contiguous().unsqueeze(-1),
            no_seed,
            no_seed,
            no_bias,
            no_table,
            no_table,
            q_bhqe.shape[2],
            k_bkte.shape[2],
            0.0,
            is_causal,
        )
        return gradients


class CudaEfficient:
    """The memory-efficient kernel of a GPU, for float32 and old GPUs.

    Heads have a multiple of 8 elements, of 4 in fp32. It does not support grouped heads: keys and values are copied for
    each query head.
    """

    def forward(self, q_bhqe: Tensor, k_bkte: Tensor, v_bkte: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
        out_bhqe, padded_bhq, *_ = aten._scaled_dot_product_efficient_attention(
            q_bhqe, repeated(k_bkte, q_bhqe), repeated(v_bkte, q_bhqe), None, True, 0.0, is_causal
        )
        return out_bhqe, padded_bhq[:, :, : q_bhqe.shape[2]]

    def backward(
        self,
        out_gradient_bhqe: Tensor,
        q_bhqe: Tensor,
        k_bkte: Tensor,
        v_bkte: Tensor,
        out_bhqe: Tensor,
        lse_bhq: Tensor,
        *,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        no_bias, no_seed = None, torch.zeros((), dtype=torch.int64)
        q_gradient_bhqe, k_gradient_bhte, v_gradient_bhte, _ = aten._scaled_dot_product_efficient_attention_backward(
            out_gradient_bhqe,
            q_bhqe,
            repeated(k_bkte, q_bhqe),
            repeated(v_bkte, q_bhqe),
            no_bias,
            out_bhqe,
            padded(lse_bhq),
            no_seed,
            no_seed,
            0.0,
            [True, True, True, False],
            is_causal,
        )
        return q_gradient_bhqe, _summed(k_gradient_bhte, k_bkte), _summed(v_gradient_bhte, v_bkte)


KERNELS: Mapping[KernelName, Kernel] = {
    "cudnn": CudaCudnn(),
    "flash": CudaFlash(),
    "efficient": CudaEfficient(),
}
"""Kernels of a GPU that return a log-sum-exp."""


def padded(lse_bhq: Tensor) -> Tensor:
    """Pad the log-sum-exp as the efficient kernel's backward reads it: infinite for queries beyond the last."""
    return F.pad(lse_bhq, (0, -lse_bhq.shape[2] % LSE_MULTIPLE), value=float("inf")).contiguous()


def repeated(x_bkte: Tensor, q_bhqe: Tensor) -> Tensor:
    """Repeat each key or value head for every query head that reads it."""
    return x_bkte.repeat_interleave(q_bhqe.shape[1] // x_bkte.shape[1], dim=1)


def _summed(gradient_bhte: Tensor, x_bkte: Tensor) -> Tensor:
    """Sum the gradient of each key or value head over the query heads that read it."""
    return torch.unflatten(gradient_bhte, 1, (x_bkte.shape[1], -1)).sum(dim=2)


BACKENDS: Mapping[KernelName, SDPBackend] = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Queries, keys and values of the shapes and types that a rank attends with; their values do not matter."""

    q_bhqe: Tensor
    k_bkte: Tensor
    v_bkte: Tensor
    is_causal: bool


class TorchAttention:
    """Asks torch which kernels can attend on the current GPU, by the functions that torch itself uses.

    device: of an example's tensors.
    """

    device = torch.device("cuda")

    def choice(self, example: Example) -> KernelName:
        """Return the kernel that scaled_dot_product_attention would run."""
        number = torch._fused_sdp_choice(
            example.q_bhqe, example.k_bkte, example.v_bkte, is_causal=example.is_causal, enable_gqa=True
        )
        return next(name for name, backend in BACKENDS.items() if backend.value == number)

    def can_use(self, kernel: KernelName, example: Example) -> bool:
        """Whether scaled_dot_product_attention could run this kernel."""
        cuda, has_gqa = torch.backends.cuda, True
        params = cuda.SDPAParams(example.q_bhqe, example.k_bkte, example.v_bkte, None, 0.0, example.is_causal, has_gqa)
        match kernel:
            case "cudnn":
                return cuda.can_use_cudnn_attention(params)
            case "flash":
                return cuda.can_use_flash_attention(params)
            case "efficient":
                return cuda.can_use_efficient_attention(params)
            case "math":
                return True


TORCH = TorchAttention()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """An `Attend`: causal attention by one given kernel of torch."""

    kernel: KernelName

    def __call__(self, q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor) -> Tensor:
        """Return the output of each query, (b, h, s, e)."""
        if self.kernel == "efficient":  # It does not support grouped heads.
            k_bkse, v_bkse = repeated(k_bkse, q_bhse), repeated(v_bkse, q_bhse)
        with sdpa_kernel(BACKENDS[self.kernel]):
            return F.scaled_dot_product_attention(q_bhse, k_bkse, v_bkse, is_causal=True, enable_gqa=True)


def attend_of(setup: Setup, attention: TorchAttention = TORCH) -> Attend:
    """Return the attention over a whole sequence, by the kernel that the setup names or by torch's choice.

    Raises:
        RuntimeError: this GPU cannot run the kernel that the setup names.
    """
    kernel = pinned_kernel(setup)
    if kernel is None:
        return attend
    _check(setup, kernel, _example(setup, kernel, attention.device), attention)
    return Pinned(kernel=kernel)


def attention_notes(setup: Setup, attention: TorchAttention = TORCH) -> tuple[str, ...]:
    """Return a note on the kernel that attends to whole sequences; none on the CPU, which has only one kernel."""
    if setup.device == "cpu":
        return ()
    kernel = pinned_kernel(setup)
    if kernel is not None:
        return (_note(kernel, "as the option attention says"),)
    kernel = attention.choice(_example(setup, None, attention.device))
    remark = "" if kernel in KERNELS else "; ring_attention cannot use this kernel, and is compared with another"
    return (_note(kernel, f"torch's choice on this GPU{remark}"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingKernel:
    """The kernel of ring attention. notes: its name, and why it differs from the kernel of other strategies."""

    kernel: Kernel
    notes: tuple[str, ...] = ()


def ring_kernel(setup: Setup, *, positions: int, chunk: int, attention: TorchAttention = TORCH) -> RingKernel:
    """Choose the kernel that a rank of the ring attends with.

    positions: queries of a rank. chunk: the fewest keys that it attends to at a time.

    Raises:
        RuntimeError: this GPU cannot run the kernel that the setup names, or has none that suits the ring.
    """
    if setup.device == "cpu":
        return RingKernel(kernel=CpuFlash())
    example = partial(_example, setup, device=attention.device, positions=(positions, chunk))
    pinned = pinned_kernel(setup)
    if pinned is not None:
        _check(setup, pinned, example(pinned), attention)
        return RingKernel(kernel=KERNELS[pinned], notes=(_note(pinned, "as the option attention says"),))
    choice = attention.choice(example(None))
    if choice in KERNELS:
        return RingKernel(kernel=KERNELS[choice], notes=(_note(choice, "torch's choice on this GPU"),))
    if not attention.can_use("efficient", example("efficient")):
        raise RuntimeError(
            f"torch has no kernel on this GPU that returns a log-sum-exp in {setup.precision} for heads of"
            f" {setup.shape.head_width} elements, and the ring needs one; use another --precision"
        )
    why = f"other strategies run {choice}, which returns no log-sum-exp: efficiency against them also compares kernels"
    return RingKernel(kernel=KERNELS["efficient"], notes=(_note("efficient", why),))


def _note(kernel: KernelName, why: str) -> str:
    return f"attention runs torch's kernel {kernel}; {why}"


def _check(setup: Setup, kernel: KernelName, example: Example, attention: TorchAttention) -> None:
    if not attention.can_use(kernel, example):
        raise RuntimeError(
            f"option attention is {kernel}, which torch cannot run on this GPU in {setup.precision} with heads of"
            f" {setup.shape.head_width} elements; leave it out, or use another kernel"
        )


def _example(
    setup: Setup, kernel: KernelName | None, device: torch.device, *, positions: tuple[int, int] | None = None
) -> Example:
    """Make tensors for a kernel, all expanded from one head's elements.

    kernel: None if torch chooses it. positions: numbers of queries and of keys; None: a whole sequence, causal.
    """
    shape = setup.shape
    queries, keys = positions or (shape.sequence, shape.sequence)
    # `attend` in fp32 and the efficient kernel get keys and values repeated for each query head.
    is_grouped = kernel != "efficient" and not (kernel is None and setup.precision == "fp32")
    zeros = torch.zeros(shape.head_width, dtype=DTYPES[setup.precision], device=device)
    kv_bkte = zeros.expand(1, shape.kv_heads if is_grouped else shape.heads, keys, -1)
    # With a gradient, because some kernels have no backward on some GPUs.
    q_bhqe = zeros.expand(1, shape.heads, queries, -1).requires_grad_()
    return Example(q_bhqe=q_bhqe, k_bkte=kv_bkte, v_bkte=kv_bkte, is_causal=positions is None)
