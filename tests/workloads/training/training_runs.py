"""Trains a strategy for a few steps as one of its ranks, for tests to look at."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pkgutil import resolve_name

import torch.distributed as dist
from torch import Tensor

from tests.workloads.training.setups import SmallSetup
from workloads.core.data import Batches, NoBatches, make_batches
from workloads.core.mesh import make_mesh
from workloads.protocols import Phase, Workload
from workloads.registry import entry_of, spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What one step left behind on a rank."""

    loss: float | None
    gradients: dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A rank's workload with its batches."""

    workload: Workload
    batches: Batches | NoBatches

    def step(self) -> Tensor | None:
        """One step on the next batch."""
        return self.workload.step(next(self.batches))


def no_phase(name: str) -> nullcontext[None]:
    """Marks nothing."""
    return nullcontext()


def make_ready(setup: SmallSetup, phase: Phase = no_phase) -> Ready:
    """Build the setup's strategy on this rank; the process group exists."""
    spec = spec_of(setup.strategy)
    mesh = make_mesh(spec.mesh(setup), setup.device)
    workload: Workload = resolve_name(entry_of(spec.name))(setup, mesh, phase)
    return Ready(workload=workload, batches=make_batches(setup, spec.data_share(setup, dist.get_rank())))


def train(setup: SmallSetup, steps: int) -> list[StepRecord]:
    """Loss and gradients of each step."""
    ready = make_ready(setup)
    records = []
    for _ in range(steps):
        loss = ready.step()
        gradients = {name: gradient.clone() for name, gradient in ready.workload.full_gradients().items()}
        records.append(StepRecord(loss=None if loss is None else loss.item(), gradients=gradients))
    return records
