"""The plainest GPipe of the reference model on gloo: what `gpipe` is measured against."""

import json
import os
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional as F
from torch.utils.data import DataLoader

from workloads.core.data import Progressions
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import Shape

MICROBATCHES = 4


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
    parts = nn.ModuleList([Part(shape, rank, ranks)])
    stage = PipelineStage(parts[0], rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=loss_of)
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
    os._exit(0)  # gloo may abort in the interpreter's farewell.


def clip(weights: Iterator[nn.Parameter]) -> None:
    own = list(weights)
    square = nn.utils.get_total_norm([weight.grad for weight in own if weight.grad is not None]).square()
    dist.all_reduce(square)
    nn.utils.clip_grads_with_norm_(own, 1.0, square.sqrt())


main()
