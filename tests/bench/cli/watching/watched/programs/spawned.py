"""Two ranks that a script starts itself by spawn: `python spawned.py STORE`; their parent trains nothing."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn

STEPS = 3


def train(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(train, (sys.argv[1],), nprocs=2)  # type: ignore[attr-defined]
