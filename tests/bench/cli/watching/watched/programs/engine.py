"""DeepSpeed's engine on one rank, with two microbatches a step: `python engine.py STORE`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "TORCHDYNAMO_DISABLE": "1"}

import torch
import torch.distributed as dist
from torch import nn

STEPS, MICROBATCHES = 3, 2


def main() -> None:
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
    deepspeed: Any = import_module("deepspeed")
    deepspeed.ops.__compatible_ops__ = {}  # It would compile an operator for this CPU.
    deepspeed.init_distributed(dist_backend="gloo", dist_init_required=False, verbose=False)
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": MICROBATCHES}
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    for _ in range(STEPS * MICROBATCHES):
        engine.backward(engine(torch.ones(1, 4)).mean())
        engine.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
