"""torch's attention kernels behind one interface: output with log-sum-exp, and gradients from these two.

A kernel may see only some of the keys. Given the output and the log-sum-exp over all keys, its backward returns what
these keys contribute to the gradients, so that attention can be computed in pieces.
Dimensions: b batch, h query heads, k key and value heads, q queries, t keys, e elements of a head.
Source: Dao 2023, FlashAttention-2, algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.options import KernelName

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
