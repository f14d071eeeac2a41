"""Training on two ranks that is traced: `torchrun windows.py ddp|fsdp2|apart PHASE...`.

Of each phase it makes `STEPS` steps, in which rank 1 sleeps longer in that phase, and asks for a window of its own.
`apart` has no collective in a step, and rank 1's steps take three times as long.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

STRATEGY, PHASES = sys.argv[1], sys.argv[2:]
STEPS = 150
EVERY_S = {"data": 0.004, "forward": 0.005, "backward": 0.006, "optimizer": 0.003}
LATE_S = 0.02
TRACED = 8
now = "none"


def work_in(phase: str) -> None:
    is_late = dist.get_rank() == 1 and now == phase
    time.sleep(EVERY_S[phase] + LATE_S * is_late)


class WorksInBackward(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        work_in("backward")
        return gradient


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, batch: Tensor) -> Tensor:
        work_in("forward")
        out: Tensor = self.last(WorksInBackward.apply(self.first(batch)))
        return out.square().mean()


class Data(Dataset[Tensor]):
    def __len__(self) -> int:
        return STEPS * len(PHASES)

    def __getitem__(self, place: int) -> Tensor:
        work_in("data")
        return torch.full((8,), 0.1)


def ask(number: int) -> None:
    """Ask for a window, as `observatory watch --attach` does."""
    hook = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
    (hook.parent / "windows" / str(number)).mkdir(parents=True, exist_ok=True)
    draft = hook / "window.part"
    draft.write_text(json.dumps({"id": number, "steps": TRACED, "why": PHASES[number - 1]}))
    draft.rename(hook / "window.json")


def main() -> None:
    global now
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: Any = Model()
    if STRATEGY == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    elif STRATEGY == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: work_in("optimizer"))
    for number, phase in enumerate(PHASES, start=1):
        now = phase
        if dist.get_rank() == 0:
            ask(number)
        for batch in DataLoader(Data(), batch_size=1, sampler=range(STEPS)):
            if STRATEGY == "apart" and dist.get_rank() == 1:
                time.sleep(0.05)
            loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
