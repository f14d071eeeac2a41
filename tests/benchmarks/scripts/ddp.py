"""The plainest DistributedDataParallel training of the reference model on gloo: what `ddp` is measured against."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from workloads.parts.shape import Shape
from workloads.parts.transformer import Transformer


def main() -> None:
    settings = json.loads(sys.argv[1])
    shape = Shape(**settings["shape"])
    torch.set_num_threads(settings["threads"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Transformer(shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(shape.vocabulary, (shape.batch // dist.get_world_size(), shape.sequence + 1))
    dist.barrier()
    ends = [time.perf_counter()]
    for _ in range(settings["warm_up"] + settings["steps"]):
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ends.append(time.perf_counter())
    if dist.get_rank() == 0:
        print(json.dumps(ends), flush=True)
    dist.barrier()
    os._exit(0)  # gloo may abort in the interpreter's farewell.


main()
