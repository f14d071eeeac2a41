"""Training on two ranks, of which rank 1 sleeps in one phase after another: `torchrun late.py ddp|fsdp2 SLEEP_S`.

`python late.py ddp|fsdp2 SLEEP_S PHASE STEPS STORE` forks the two ranks itself, and rank 1 sleeps in each step.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import torch.distributed as dist
from phases import Data, distributed, train  # type: ignore[import-not-found]  # Next to this file.
from torch.utils.data import DataLoader

PHASES = ("none", "data", "forward", "backward", "optimizer")
STEPS = 4
"""Of each phase."""
now = "none"


def sleep_in(phase: str) -> None:
    if now == phase and dist.get_rank() == 1:
        time.sleep(float(sys.argv[2]))


def train_phases(phases: Sequence[str]) -> None:
    """Train one step for each phase, in which rank 1 sleeps."""
    global now
    model, optimizer = distributed(sys.argv[1], sleep_in)
    batches = iter(DataLoader(Data(len(phases), sleep_in), batch_size=1))
    for phase in phases:
        now = phase
        train(model, optimizer, next(batches))
    dist.destroy_process_group()


def main() -> None:
    if len(sys.argv) == 3:
        dist.init_process_group("gloo")
        train_phases([phase for phase in PHASES for _ in range(STEPS)])
        return
    phase, steps, store = sys.argv[3], int(sys.argv[4]), sys.argv[5]
    children = []
    for rank in range(2):
        if (child := os.fork()) == 0:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
            train_phases([phase] * steps)
            return
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main()
