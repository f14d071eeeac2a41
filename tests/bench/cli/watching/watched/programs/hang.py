"""Two ranks of DDP on gloo, of which rank 1 stops in one step until a file exists: `python hang.py PHASE STEP FILE`."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

PHASE, STEP, FILE = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
STEPS = 30


def wait(phase: str, step: int) -> None:
    """Hang, in a place that has a name."""
    if phase == PHASE and step == STEP and os.environ["RANK"] == "1":
        while not FILE.exists():
            time.sleep(0.01)


class Batches(Dataset[Tensor]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, place: int) -> Tensor:
        wait("data", place)
        return torch.ones(4)


def main() -> None:
    rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    dist.init_process_group("gloo", init_method=f"file://{FILE}.store", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(DataLoader(Batches(), batch_size=1)):
        loss = model(batch).square().mean()
        wait("forward", number)
        if PHASE == "backward":
            loss.register_hook(lambda gradient, number=number: wait("backward", number))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()
    sys.exit(3)


if __name__ == "__main__":
    main()
