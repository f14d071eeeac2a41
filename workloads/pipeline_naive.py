"""The strategy `pipeline_naive`: a pipeline in which the whole batch goes from stage to stage."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup
from workloads.parts.staged_model import make_trainer
from workloads.workload import Phase, Workload


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """This rank's stages of the model, and torch's schedule over all ranks."""
    return make_trainer(setup, mesh, phase)
