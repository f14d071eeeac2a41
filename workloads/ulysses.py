"""The strategy `ulysses`: each rank holds some positions of all heads, and in attention all positions of some heads."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup
from workloads.parts.attention_choice import attend_of
from workloads.parts.sequence import SequenceTrainer
from workloads.parts.ulysses import Ulysses
from workloads.workload import Phase, Workload


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """The model on neighbouring positions, rank by rank."""
    attend = Ulysses(group=mesh.get_group("sequence"), attend=attend_of(setup))
    return SequenceTrainer(setup, mesh, phase, attend=attend, layout="plain")
