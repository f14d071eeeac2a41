"""The strategy `single`: one rank trains the model alone."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup
from workloads.parts.training import Trainer, make_model
from workloads.workload import Phase, Workload


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """The model as it is."""
    return Trainer(setup, make_model(setup), phase)
