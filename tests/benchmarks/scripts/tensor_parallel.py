"""The plainest tensor-parallel training of the reference model on gloo: what `tensor_parallel` is measured against."""

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.utils.data import DataLoader

from workloads.core.data import Progressions
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import Shape

BLOCK: dict[str, ParallelStyle] = {
    "attention": PrepareModuleInput(
        input_layouts=(Replicate(), None, None), desired_input_layouts=(Replicate(), None, None)
    ),
    "attention.q": ColwiseParallel(),
    "attention.k": ColwiseParallel(),
    "attention.v": ColwiseParallel(),
    "attention.o": RowwiseParallel(),
    "mlp": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
    "mlp.gate": ColwiseParallel(),
    "mlp.up": ColwiseParallel(),
    "mlp.down": RowwiseParallel(),
}
OUTER: dict[str, ParallelStyle] = {
    "embedding": ColwiseParallel(output_layouts=Replicate()),
    "head": ColwiseParallel(output_layouts=Replicate()),
}


def main() -> None:
    settings = json.loads(sys.argv[1])
    shape = Shape(**settings["shape"])
    steps = settings["warm_up"] + settings["steps"]
    torch.set_num_threads(settings["threads"])
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Transformer(shape)
    for block in model.blocks:
        parallelize_module(block, mesh, BLOCK)
    parallelize_module(model, mesh, OUTER)
    divided = [weight for weight in model.parameters() if isinstance(weight, DTensor)]
    whole = [weight for weight in model.parameters() if not isinstance(weight, DTensor)]
    groups: list[dict[str, Any]] = [{"params": divided}, {"params": whole}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, fused=True)
    data = Progressions(shape, seed=0, sequences=steps * shape.batch)
    loader = DataLoader(data, batch_size=shape.batch, num_workers=1)
    dist.barrier()
    ends = [time.perf_counter()]
    for tokens in loader:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        norms = [
            torch.nn.utils.get_total_norm([weight.grad for weight in part if weight.grad is not None])
            for part in (divided, whole)
        ]
        norm = sum(norm.full_tensor() ** 2 if isinstance(norm, DTensor) else norm**2 for norm in norms) ** 0.5
        for part in (divided, whole):
            torch.nn.utils.clip_grads_with_norm_(part, 1.0, norm)
        optimizer.step()
        ends.append(time.perf_counter())
    if dist.get_rank() == 0:
        print(json.dumps(ends), flush=True)
    dist.barrier()
    os._exit(0)  # gloo may abort in the interpreter's farewell.


main()
