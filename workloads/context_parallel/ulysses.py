"""Attention over a divided sequence, by exchanging the division: all positions of some heads for some of all heads.

Dimensions: b sequences, h query heads, k key and value heads, s this rank's positions, t all positions, e elements of a
head; n ranks.
Source: Jacobs et al. 2023, DeepSpeed Ulysses, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from workloads.context_parallel.trainer import SequenceTrainer
from workloads.core.attention_choice import attend_of
from workloads.core.transformer import Attend, attend
from workloads.protocols import Phase, Workload
from workloads.spec import Setup

HEADS, POSITIONS = 1, 2
"""The dims that are exchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ulysses:
    """An `Attend` of all ranks of a group, which call it together, each with its own positions in the order of ranks.

    Between the two exchanges a rank has 1/n of the query heads, with the key and value heads that these look at: n
    divides both numbers of heads.
    attend: what mixes positions then, as if the sequence had never been divided.
    """

    group: dist.ProcessGroup
    attend: Attend = attend

    def __call__(self, q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor) -> Tensor:
        """The output of each query, (b, h, s, e)."""
        ranks = self.group.size()
        if ranks == 1:
            return self.attend(q_bhse, k_bkse, v_bkse)
        # One message to each rank in place of three, in which its heads of all three lie together.
        joint = torch.cat(
            [torch.unflatten(heads, HEADS, (ranks, -1)) for heads in (q_bhse, k_bkse, v_bkse)], dim=HEADS + 1
        )
        held = exchange(joint.flatten(HEADS, HEADS + 1), self.group, split=HEADS, join=POSITIONS)
        q_heads, kv_heads = q_bhse.shape[HEADS] // ranks, k_bkse.shape[HEADS] // ranks
        q_bhte, k_bkte, v_bkte = held.split_with_sizes((q_heads, kv_heads, kv_heads), dim=HEADS)
        return exchange(self.attend(q_bhte, k_bkte, v_bkte), self.group, split=POSITIONS, join=HEADS)


def exchange(whole: Tensor, group: dist.ProcessGroup, *, split: int, join: int) -> Tensor:
    """What the ranks of a group have of this rank's share of a dim, joined in their order along another dim.

    split: the dim of which each rank gives an equal part to each. Its own gradient is exchanged back.
    """
    exchanged: Tensor = _Exchange.apply(whole, group, split, join)  # type: ignore[no-untyped-call]
    return exchanged


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: dist.ProcessGroup, split: int, join: int) -> Tensor:
        ctx.group, ctx.split, ctx.join = group, split, join
        return _exchanged(whole, group, split, join)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(gradient, ctx.group, ctx.join, ctx.split), None, None, None


def _exchanged(whole: Tensor, group: dist.ProcessGroup, split: int, join: int) -> Tensor:
    # A rank's part has to lie in one piece, and the part that another rank sent arrives so.
    leaving = torch.unflatten(whole, split, (group.size(), -1)).movedim(split, 0).contiguous()
    arrived = torch.empty_like(leaving)
    dist.all_to_all_single(arrived, leaving, group=group)
    return arrived.movedim(0, join).flatten(join, join + 1)


# The strategy `ulysses`: each rank holds some positions of all heads, and in attention all positions of some heads.


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """The model on neighbouring positions, rank by rank."""
    attend = Ulysses(group=mesh.get_group("sequence"), attend=attend_of(setup))
    return SequenceTrainer(setup, mesh, phase, attend=attend, layout="plain")
