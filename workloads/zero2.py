"""The strategy `zero2`: gradients and optimizer states are divided; weights are gathered once a step.

ZeRO's second stage keeps the weights whole on each rank at all times. This one divides them between steps as well,
which costs no more traffic: each step gathers what the paper's sends after its update.
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup
from workloads.parts.sharding import make_trainer
from workloads.workload import Phase, Workload


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Weights stay gathered from the first forward of a step to its last backward."""
    return make_trainer(setup, mesh, phase, reshard=False)
