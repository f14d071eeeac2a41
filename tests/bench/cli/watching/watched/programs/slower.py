"""Two ranks of DDP on gloo, of which rank 1 sleeps longer in forward from a step on: `torchrun slower.py STEPS STEP`.

`STEP` is the first slow step; one that is never reached leaves the job as it is.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import sys
import time

import torch.distributed as dist
from phases import Data, distributed, train  # type: ignore[import-not-found]  # Next to this file.
from torch.utils.data import DataLoader

STEPS, SLOW_FROM = int(sys.argv[1]), int(sys.argv[2])
STEP_S, LONGER_S = 0.01, 0.1
step = 0


def work_in(phase: str) -> None:
    if phase == "forward":
        time.sleep(STEP_S + LONGER_S * (step >= SLOW_FROM and dist.get_rank() == 1))


def main() -> None:
    global step
    dist.init_process_group("gloo")
    model, optimizer = distributed("ddp", work_in)
    for batch in DataLoader(Data(STEPS, work_in), batch_size=1):
        train(model, optimizer, batch)
        step += 1
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
