"""Trains, saves and loads as one of the ranks, for tests of checkpoints to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.workloads.training.setups import SmallSetup
from tests.workloads.training.training_runs import Ready, make_ready
from workloads.core.checkpointing import CheckpointUnusable, admit_plans, load, save, states_of
from workloads.protocols import KeepsProgress
from workloads.spec import SaveMode

BEFORE, AFTER = 2, 2
"""Steps before a checkpoint is saved, and after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A rank's states when a checkpoint was saved or loaded, and its losses in the steps that followed.

    progress: what `KeepsProgress` has.
    """

    states: dict[str, Tensor]
    progress: Mapping[str, float]
    losses: list[float | None]


def whole_states(ready: Ready) -> dict[str, Tensor]:
    """Copies of all states; those that ranks share are gathered."""
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()
        for name, tensor in states_of(ready.workload).items()
    }


def progress_of(ready: Ready) -> Mapping[str, float]:
    assert isinstance(ready.workload, KeepsProgress)
    return dict(ready.workload.progress())


def losses_of(ready: Ready, steps: int) -> list[float | None]:
    """The losses of the next steps, as far as this rank knows them."""
    losses = [ready.step() for _ in range(steps)]
    return [None if loss is None else loss.item() for loss in losses]


def train_and_save(setup: SmallSetup, folder: Path, mode: SaveMode = "sync") -> Resumed:
    """Train, save, and train on, while the checkpoint is written if it is in the background."""
    admit_plans()
    ready = make_ready(setup)
    losses_of(ready, BEFORE)
    states, progress = whole_states(ready), progress_of(ready)
    saved = save(setup, ready.workload, folder, mode=mode, group=dist.new_group(backend="gloo"))
    losses = losses_of(ready, AFTER)
    saved.result()
    return Resumed(states=states, progress=progress, losses=losses)


def load_and_train(setup: SmallSetup, folder: Path, trained_steps: int = 0) -> Resumed:
    """Load into a workload that has trained for some steps on other batches; train on with those that follow."""
    admit_plans()
    ready = make_ready(setup)
    before = [next(ready.batches) for _ in range(BEFORE)]
    for tokens_bs in before[:trained_steps]:
        ready.workload.step(tokens_bs)
    load(setup, ready.workload, folder)
    states, progress = whole_states(ready), progress_of(ready)
    return Resumed(states=states, progress=progress, losses=losses_of(ready, AFTER))


def refusal(setup: SmallSetup, folder: Path) -> str:
    """What loading says of a checkpoint that it refuses; the weights must be as before."""
    ready = make_ready(setup)
    before = whole_states(ready)
    try:
        load(setup, ready.workload, folder)
    except CheckpointUnusable as error:
        after = whole_states(ready)
        assert all(torch.equal(before[name], after[name]) for name in before)
        return str(error)
    raise AssertionError("it was loaded")
