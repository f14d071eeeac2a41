"""A rank of DDP that torchrun or srun starts: `watched_training.py STORE [CODE]` prints its host, ends with CODE."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

STEPS = 30


def number(*names: str) -> int:
    return next(int(os.environ[name]) for name in names if name in os.environ)


def main() -> None:
    rank, world = number("RANK", "SLURM_PROCID"), number("WORLD_SIZE", "SLURM_NTASKS")
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {rank} of {world}: {float(loss.detach()).hex()}", flush=True)
    dist.destroy_process_group()
    sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)


if __name__ == "__main__":
    main()
