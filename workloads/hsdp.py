"""The strategy `hsdp`: the model is divided within each group of ranks, and gradients are averaged between groups."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup
from workloads.parts.sharding import make_trainer
from workloads.workload import Phase, Workload


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """As `fsdp` on each row of the mesh; the columns average what rows have reduced."""
    return make_trainer(setup, mesh, phase, reshard=int(setup.options["reshard"]) or True)
