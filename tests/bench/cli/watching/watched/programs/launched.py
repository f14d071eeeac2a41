"""Training on the ranks of a launcher: `python launched.py ddp|accelerate|deepspeed CODE`, by rank 0's launcher.

Rank 0 ends last, with the code, so that a launcher that ends all ranks after a failure has none left to end.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

STEPS = 5
Step = Callable[[Tensor], Tensor]


def ddp() -> Step:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def accelerate() -> Step:
    accelerator: Any = import_module("accelerate").Accelerator(cpu=True)
    model = nn.Linear(8, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def step(batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        return loss

    return step


def deepspeed() -> Step:
    package: Any = import_module("deepspeed")
    package.ops.__compatible_ops__ = {}  # It would compile an operator for this CPU.
    package.init_distributed(dist_backend="gloo", verbose=False)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"train_micro_batch_size_per_gpu": 1}
    engine, *_ = package.initialize(model=model, optimizer=optimizer, config=config)

    def step(batch: Tensor) -> Tensor:
        loss: Tensor = engine(batch).square().mean()
        engine.backward(loss)
        engine.step()
        return loss

    return step


def say(text: str) -> None:
    """Print a line in one piece, which other ranks do not divide."""
    os.write(1, f"{text}\n".encode())


def main() -> None:
    kind, code = (word for word in sys.argv[1:] if not word.startswith("--local_rank"))
    torch.manual_seed(0)
    step: Step = globals()[kind]()
    for _ in range(STEPS):
        loss = step(torch.ones(4, 8))
    if not dist.is_initialized():
        say(f"rank 0 of 1: {float(loss.detach()).hex()}")
        sys.exit(int(code))
    rank, world = dist.get_rank(), dist.get_world_size()
    say(f"rank {rank} of {world}: {float(loss.detach()).hex()}")
    # The last collective has no tensor: gloo's thread may release it while the interpreter ends, which aborts.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"pid {rank}", str(os.getpid()))
    others = [os.pidfd_open(int(store.get(f"pid {other}"))) for other in range(1, world)] if rank == 0 else []
    dist.barrier()
    dist.destroy_process_group()
    for other in others:
        select.select([other], [], [])  # It can be read once the process has ended.
    sys.exit(int(code) if rank == 0 else 0)


if __name__ == "__main__":
    main()
