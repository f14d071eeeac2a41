"""Training on two ranks, of which rank 1 sleeps in one phase after another: `torchrun late.py ddp|fsdp2 SLEEP_S`.

`python late.py ddp|fsdp2 SLEEP_S PHASE STEPS STORE` forks the two ranks itself, and rank 1 sleeps in each step.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

PHASES = ("none", "data", "forward", "backward", "optimizer")
STEPS = 4
"""Of each phase."""
now = "none"


def sleep_in(phase: str) -> None:
    if now == phase and dist.get_rank() == 1:
        time.sleep(float(sys.argv[2]))


class SleepsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        sleep_in("backward")
        return gradient


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, batch: Tensor) -> Tensor:
        sleep_in("forward")
        out: Tensor = self.last(SleepsInBackward.apply(self.first(batch)))
        return out.square().mean()


class Data(Dataset[Tensor]):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, place: int) -> Tensor:
        sleep_in("data")
        return torch.full((8,), float(place))


def train(phases: Sequence[str]) -> None:
    """Train one step for each phase, in which rank 1 sleeps."""
    global now
    model: Any = Model()
    if sys.argv[1] == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: sleep_in("optimizer"))
    batches = iter(DataLoader(Data(len(phases)), batch_size=1))
    for phase in phases:
        now = phase
        loss = model(next(batches))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def main() -> None:
    if len(sys.argv) == 3:
        dist.init_process_group("gloo")
        train([phase for phase in PHASES for _ in range(STEPS)])
        return
    phase, steps, store = sys.argv[3], int(sys.argv[4]), sys.argv[5]
    children = []
    for rank in range(2):
        if (child := os.fork()) == 0:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
            train([phase] * steps)
            return
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main()
