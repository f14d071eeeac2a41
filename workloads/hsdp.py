"""The strategy `hsdp`: the model is divided within each group of ranks, and gradients are averaged between groups."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup
from workloads.parts.sharding import make_trainer
from workloads.parts.timeouts import share_world_timeout
from workloads.workload import Phase, Workload


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """As `fsdp` on each row of the mesh; the columns average what rows have reduced."""
    trainer = make_trainer(setup, mesh, phase, reshard=int(setup.options["reshard"]) or True)
    # Ranks that share a weight in between, where those are not all, meet in groups that torch has just made.
    share_world_timeout(torch.device(setup.device))
    return trainer
