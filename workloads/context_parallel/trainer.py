"""Trainer for sequences whose positions are divided among ranks, whichever way attention is computed.

Each rank holds the whole model and reads the same sequences as the others, but passes only its own positions through
the model. Only attention looks at other positions; it is passed in.
Dimensions: b sequences, s own positions, v vocabulary, r half of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from workloads.context_parallel.cost_model import PositionLayout
from workloads.core.mesh import make_group
from workloads.core.trainer import Trainer, make_model
from workloads.core.transformer import Attend, Block
from workloads.data_parallel.strategy import replicate
from workloads.protocols import Phase
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
    happens bucket by bucket during backward, in a separate process group: in attention's group, attention's messages,
    which backward waits for, would queue behind buckets. Every rank enters the collectives of both groups from one
    thread, in one order.
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
        model = make_model(setup)
        replica = replicate(setup, model, make_group(axis, device))
        # After `replicate`: a new replica copies all buffers of the first rank, and the tables of positions are
        # buffers.
        model.cos_sr, model.sin_sr = model.cos_sr[held_s], model.sin_sr[held_s]
        for block in model.blocks:
            assert isinstance(block, Block)
            block.attention.attend = attend
        super().__init__(setup, replica, phase, no_sync=replica.no_sync, notes=notes)
        self._positions_s = held_s

    def _inputs(self, tokens_bs: Tensor) -> Tensor:
        return tokens_bs[:, self._positions_s]

    def _targets(self, tokens_bs: Tensor) -> Tensor:
        return tokens_bs[:, self._positions_s + 1]
