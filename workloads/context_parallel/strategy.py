"""Trainer of sequences whose positions are divided among ranks, and Ulysses, which divides attention by heads.

Each rank holds the whole model, or its part if states are sharded. It reads the same sequences as the others, but
passes only its own positions through the model. Only attention, which is passed in, looks at other positions. Inside
Ulysses's attention each rank holds all positions of some heads; positions are exchanged for heads before and after.
Dimensions: b sequences, h query heads, k key and value heads, s this rank's positions, t all positions, e elements of a
head, r half of a head, v vocabulary; n ranks.
Source: Jacobs et al. 2023, DeepSpeed Ulysses, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from workloads.context_parallel.cost_model import PositionLayout
from workloads.context_parallel.spec import SHARDED
from workloads.core.attention import attend_of
from workloads.core.mesh import make_group
from workloads.core.precision import sharding_policy
from workloads.core.trainer import Trainer, materialise, outline_model
from workloads.core.transformer import Attend, Block, attend
from workloads.data_parallel.strategy import replicate
from workloads.fsdp.strategy import clip_gradients, shard
from workloads.protocols import Phase, Workload
from workloads.spec import Setup


def positions(layout: PositionLayout, *, sequence: int, rank: int, ranks: int) -> Tensor:
    """Return the positions of a rank in the order in which it holds them, (s,) int64; see `PositionLayout`.

    The sequence must be divisible by the layout's chunks.
    """
    if layout == "plain":
        return torch.arange(sequence).chunk(ranks)[rank]
    chunks = torch.arange(sequence).chunk(2 * ranks)
    return torch.cat((chunks[rank], chunks[-1 - rank]))


class SequenceTrainer(Trainer):
    """A `Workload` whose loss on each rank is the mean over the rank's own positions.

    The mean over ranks is then the mean over all tokens, so gradients are averaged over the axis `sequence`. This
    happens bucket by bucket during backward, or unit by unit by FSDP2 if states are sharded. It uses a process group
    other than attention's, whose messages would otherwise queue behind it while backward waits for them. Every rank
    enters the collectives of both groups from one thread, in the same order.
    """

    def __init__(
        self,
        setup: Setup,
        mesh: DeviceMesh,
        phase: Phase,
        *,
        attend: Attend,
        layout: PositionLayout,
        notes: Sequence[str] | None = None,
    ) -> None:
        """attend: takes and returns this rank's positions, in the order of the layout; all ranks call it together.

        notes: as in `Trainer`.
        """
        axis, device = mesh.get_group("sequence"), torch.device(setup.device)
        held_s = positions(layout, sequence=setup.shape.sequence, rank=axis.rank(), ranks=axis.size()).to(device)
        group, model = make_group(axis, device), outline_model(setup)
        for block in model.blocks:
            assert isinstance(block, Block)
            block.attention.attend = attend
        options: dict[str, Any] = {"notes": notes}
        wrapped: nn.Module = model
        if SHARDED.of(setup):
            axes = DeviceMesh.from_group(group, setup.device, mesh_dim_names=("shard",))
            shard(model, axes, policy=sharding_policy(setup))
            materialise(setup, model)
            options["clip"] = partial(clip_gradients, group=group, device=device)
        else:
            materialise(setup, model)
            wrapped = replica = replicate(setup, model, group)
            options["no_sync"] = replica.no_sync
        # After `replicate`: a new replica copies all buffers of the first rank, and the tables of positions are
        # buffers.
        model.cos_sr, model.sin_sr = model.cos_sr[held_s], model.sin_sr[held_s]
        super().__init__(setup, wrapped, phase, **options)
        self._positions_s = held_s

    def _inputs(self, tokens_bs: Tensor) -> Tensor:
        return tokens_bs[:, self._positions_s]

    def _targets(self, tokens_bs: Tensor) -> Tensor:
        return tokens_bs[:, self._positions_s + 1]


HEADS, POSITIONS = 1, 2
"""Dims that are exchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ulysses:
    """An `Attend` that all ranks of a group call together, each with its own positions, in the order of ranks.

    Between the two exchanges a rank has 1/n of the query heads, and the key and value heads that belong to them: n must
    divide both numbers of heads.
    attend: attention over the whole sequence, as if it had never been divided.
    """

    group: dist.ProcessGroup
    attend: Attend = attend

    def __call__(self, q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor) -> Tensor:
        """Return the output of each query, (b, h, s, e)."""
        ranks = self.group.size()
        if ranks == 1:
            return self.attend(q_bhse, k_bkse, v_bkse)
        # Send one message to each rank instead of three: its heads of q, k and v side by side.
        joint = torch.cat(
            [torch.unflatten(heads, HEADS, (ranks, -1)) for heads in (q_bhse, k_bkse, v_bkse)], dim=HEADS + 1
        )
        exchanged = exchange(joint.flatten(HEADS, HEADS + 1), self.group, split=HEADS, join=POSITIONS)
        q_heads, kv_heads = q_bhse.shape[HEADS] // ranks, k_bkse.shape[HEADS] // ranks
        q_bhte, k_bkte, v_bkte = exchanged.split_with_sizes((q_heads, kv_heads, kv_heads), dim=HEADS)
        return exchange(self.attend(q_bhte, k_bkte, v_bkte), self.group, split=POSITIONS, join=HEADS)


def exchange(tensor: Tensor, group: dist.ProcessGroup, *, split: int, join: int) -> Tensor:
    """Split a dim among the ranks of a group, and join the received parts along another dim, in the order of ranks.

    split: the dim of which each rank sends an equal part to every rank. join: the dim that grows. Backward exchanges
    the gradient back.
    Example, 2 ranks, split heads, join positions: (b, 4 heads, 8 positions, e) becomes (b, 2 heads, 16 positions, e).
    """
    exchanged: Tensor = _Exchange.apply(tensor, group, split, join)  # type: ignore[no-untyped-call]
    return exchanged


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup, split: int, join: int) -> Tensor:
        ctx.group, ctx.split, ctx.join = group, split, join
        return _exchanged(tensor, group, split, join)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(gradient, ctx.group, ctx.join, ctx.split), None, None, None


def _exchanged(tensor: Tensor, group: dist.ProcessGroup, split: int, join: int) -> Tensor:
    # Put the split dim in front: each rank's part must be contiguous, and received parts arrive that way.
    leaving = torch.unflatten(tensor, split, (group.size(), -1)).movedim(split, 0).contiguous()
    arrived = torch.empty_like(leaving)
    dist.all_to_all_single(arrived, leaving, group=group)
    return arrived.movedim(0, join).flatten(join, join + 1)


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Build the trainer of this rank, for neighbouring positions."""
    attend = Ulysses(group=mesh.get_group("sequence"), attend=attend_of(setup))
    return SequenceTrainer(setup, mesh, phase, attend=attend, layout="plain")
