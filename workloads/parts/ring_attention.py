"""Attention over a sequence that is divided among ranks: keys and values travel a ring, queries stay.

Dimensions: b batch, h query heads, k key and value heads, s positions of this rank, q and t those of a block's queries
and keys, e elements of a head, p the pair of keys and values, which travel together.
Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from workloads.laws.ring_attention import Layout
from workloads.parts.attention_kernels import Kernel
from workloads.parts.attention_pairs import PairCount
from workloads.parts.ring import Ring
from workloads.parts.ring_blocks import Block, block_with


@dataclass(frozen=True, slots=True, kw_only=True)
class RingAttention:
    """An `Attend` of a rank's queries to the keys of all ranks, which all call it together.

    Each rank hands in its own positions, in the order of the layout. Keys and values travel in their own precision;
    outputs are merged and gradients summed, also on their way, in float32 or better.
    """

    ring: Ring
    layout: Layout
    is_causal: bool
    kernel: Kernel
    count: PairCount = field(default_factory=PairCount)

    def __call__(self, q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor) -> Tensor:
        """The output of each query, (b, h, s, e)."""
        out_bhse: Tensor = _Attend.apply(q_bhse, k_bkse, v_bkse, self)  # type: ignore[no-untyped-call]
        return out_bhse

    def block(self, hop: int, positions: int) -> Block | None:
        """What this rank computes with keys that have come so many hops."""
        rank = self.ring.rank
        source = (rank - hop) % self.ring.ranks
        return block_with(source, self.layout, is_causal=self.is_causal, positions=positions, rank=rank)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor, attention: RingAttention) -> Tensor:
        own_pbkse = torch.stack((k_bkse, v_bkse))
        merged = None
        for hop, (k_held_bkse, v_held_bkse) in enumerate(attention.ring.circulate(own_pbkse)):
            block = attention.block(hop, q_bhse.shape[2])
            if block is None:
                continue
            q_bhqe, k_bkte = q_bhse[:, :, block.queries], k_held_bkse[:, :, block.keys]
            attention.count.add(q_bhqe, k_bkte, is_causal=block.is_causal)
            out_bhqe, lse_bhq = attention.kernel.forward(
                q_bhqe, k_bkte, v_held_bkse[:, :, block.keys], is_causal=block.is_causal
            )
            if merged is None:  # Its own keys come first, and every query sees one of them.
                merged = _Merged(out_bhqe, lse_bhq)
            else:
                merged.add(block.queries, out_bhqe, lse_bhq)
        assert merged is not None
        out_bhse = merged.out_bhse.to(q_bhse.dtype)
        ctx.attention = attention
        ctx.save_for_backward(q_bhse, own_pbkse, out_bhse, merged.lse_bhs)
        return out_bhse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_gradient_bhse: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        attention: RingAttention = ctx.attention
        q_bhse, own_pbkse, out_bhse, lse_bhs = ctx.saved_tensors
        q_gradient_bhse = torch.zeros_like(q_bhse, dtype=_sum_dtype(q_bhse))
        gradient_pbkse = torch.zeros_like(own_pbkse, dtype=_sum_dtype(own_pbkse))
        for hop, (k_held_bkse, v_held_bkse) in enumerate(attention.ring.circulate(own_pbkse)):
            # The gradients of a block follow it, one hop later: what is at hand belongs to the block before.
            passing = attention.ring.pass_on(gradient_pbkse) if hop else None
            block = attention.block(hop, q_bhse.shape[2])
            parts = None
            if block is not None:
                parts = attention.kernel.backward(
                    out_gradient_bhse[:, :, block.queries],
                    q_bhse[:, :, block.queries],
                    k_held_bkse[:, :, block.keys],
                    v_held_bkse[:, :, block.keys],
                    out_bhse[:, :, block.queries],
                    lse_bhs[:, :, block.queries],
                    is_causal=block.is_causal,
                )
            if passing is not None:
                gradient_pbkse = passing.wait()
            if block is not None and parts is not None:
                q_part_bhqe, k_part_bkte, v_part_bkte = parts
                q_gradient_bhse[:, :, block.queries] += q_part_bhqe
                gradient_pbkse[0, :, :, block.keys] += k_part_bkte
                gradient_pbkse[1, :, :, block.keys] += v_part_bkte
        k_gradient_bkse, v_gradient_bkse = attention.ring.pass_on(gradient_pbkse).wait().to(own_pbkse.dtype)
        return q_gradient_bhse.to(q_bhse.dtype), k_gradient_bkse, v_gradient_bkse, None


class _Merged:
    """Output and log-sum-exp of all queries, over the keys that were there so far.

    Source: Dao 2023, FlashAttention-2, section 2.3 (the rescaled sum, here of whole blocks).
    """

    def __init__(self, out_bhse: Tensor, lse_bhs: Tensor) -> None:
        # Copies: selective checkpointing keeps what the kernel gave.
        self.out_bhse = out_bhse.to(_sum_dtype(out_bhse), copy=True)
        self.lse_bhs = lse_bhs.clone()

    def add(self, queries: slice, out_bhqe: Tensor, lse_bhq: Tensor) -> None:
        """Take in the output of these queries over more keys."""
        merged_bhqe, merged_bhq = self.out_bhse[:, :, queries], self.lse_bhs[:, :, queries]
        share_bhq = torch.sigmoid(lse_bhq - merged_bhq)  # Of the new keys, in the sum of exponentials over all.
        merged_bhqe.lerp_(out_bhqe.to(merged_bhqe.dtype), share_bhq.unsqueeze(-1))
        merged_bhq.copy_(torch.logaddexp(merged_bhq, lse_bhq))


def _sum_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
