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

import torch
import torch.distributed as dist
from phases import Data, distributed, train  # type: ignore[import-not-found]  # Next to this file.
from torch.utils.data import DataLoader

STRATEGY, PHASES = sys.argv[1], sys.argv[2:]
STEPS = 150
EVERY_S = {"data": 0.004, "forward": 0.005, "backward": 0.006, "optimizer": 0.003}
LATE_S = 0.02
TRACED = 8
now = "none"


def work_in(phase: str) -> None:
    is_late = dist.get_rank() == 1 and now == phase
    time.sleep(EVERY_S[phase] + LATE_S * is_late)


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
    model, optimizer = distributed(STRATEGY, work_in)
    for number, phase in enumerate(PHASES, start=1):
        now = phase
        if dist.get_rank() == 0:
            ask(number)
        for batch in DataLoader(Data(STEPS, work_in), batch_size=1):
            if STRATEGY == "apart" and dist.get_rank() == 1:
                time.sleep(0.05)
            loss = train(model, optimizer, batch)
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
