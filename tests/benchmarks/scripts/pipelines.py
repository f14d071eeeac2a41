"""The plainest pipelines of the reference model on gloo, by torch's own schedules.

`pipeline_naive`, `gpipe`, `one_f_one_b`, `interleaved` and `zero_bubble` are measured against it; the settings name the
strategy.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.nn import functional as F
from torch.utils.data import DataLoader

from workloads.core.data import Progressions
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import Shape

STRATEGIES: dict[str, tuple[Any, int, int]] = {
    # schedule, stages of each rank, microbatches
    "pipeline_naive": (ScheduleGPipe, 1, 1),
    "gpipe": (ScheduleGPipe, 1, 4),
    "one_f_one_b": (Schedule1F1B, 1, 4),
    "interleaved": (ScheduleInterleaved1F1B, 2, 4),
    "zero_bubble": (ScheduleInterleavedZeroBubble, 2, 4),
}


class Part(nn.Module):
    """An equal share of the blocks; the embedding before the first, norm and head behind the last."""

    def __init__(self, shape: Shape, stage: int, stages: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        whole = Transformer(shape)
        each = shape.layers // stages
        self.embedding = whole.embedding if stage == 0 else nn.Identity()
        self.blocks = whole.blocks[stage * each : (stage + 1) * each]
        self.head = nn.Sequential(whole.norm, whole.head) if stage == stages - 1 else nn.Identity()
        self.tables = whole.cos_sr, whole.sin_sr

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x, *self.tables)
        out: Tensor = self.head(x)
        return out


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main() -> None:
    settings = json.loads(sys.argv[1])
    shape = Shape(**settings["shape"])
    steps = settings["warm_up"] + settings["steps"]
    torch.set_num_threads(settings["threads"])
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    schedule_type, stages_per_rank, microbatches = STRATEGIES[settings["strategy"]]
    count = stages_per_rank * ranks
    numbers = range(rank, count, ranks)
    parts = nn.ModuleList([Part(shape, number, count) for number in numbers])
    stages = [
        PipelineStage(part, number, count, torch.device("cpu")) for part, number in zip(parts, numbers, strict=True)
    ]
    # A schedule of one stage takes the stage, an interleaved schedule takes a list.
    schedule = schedule_type(stages if stages_per_rank > 1 else stages[0], microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(parts.parameters(), lr=3e-4, fused=True)
    data = Progressions(shape, seed=0, sequences=steps * shape.batch)
    torch.manual_seed(0)
    loader = DataLoader(data, batch_size=shape.batch, shuffle=True, num_workers=1)
    dist.barrier()
    ends = [time.perf_counter()]
    for tokens in loader:
        optimizer.zero_grad()
        inputs = (tokens[:, :-1],) if rank == 0 else ()
        schedule.step(*inputs, target=tokens[:, 1:] if rank == ranks - 1 else None, return_outputs=False)
        clip(parts.parameters())
        optimizer.step()
        ends.append(time.perf_counter())
    if rank == 0:
        print(json.dumps(ends), flush=True)
    dist.barrier()
    os._exit(0)  # gloo may abort when the interpreter exits.


def clip(weights: Iterator[nn.Parameter]) -> None:
    own = list(weights)
    square = nn.utils.get_total_norm([weight.grad for weight in own if weight.grad is not None]).square()
    dist.all_reduce(square)
    nn.utils.clip_grads_with_norm_(own, 1.0, square.sqrt())


main()
