"""The strategy `three_d`: replicas of a pipeline, each of whose stages is divided by tensors."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup
from workloads.parts.mesh_stages import make_trainer
from workloads.workload import Phase, Workload


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """This rank's stages, its part of each of their products, and torch's schedule over the axis `stage`."""
    return make_trainer(setup, mesh, phase)
