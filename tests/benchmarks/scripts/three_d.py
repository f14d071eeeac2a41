"""The plainest training of the reference model on stages and tensors on gloo: what `three_d` is measured against."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from workloads.core.data import Progressions
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import Shape

STAGES, TENSORS, MICROBATCHES = 2, 2, 4


class Half(nn.Module):
    """The first or the second half of the model."""

    def __init__(self, model: Transformer, stage: int) -> None:
        super().__init__()
        half = len(model.blocks) // STAGES
        self.embedding = model.embedding if stage == 0 else None
        self.blocks = nn.ModuleList(list(model.blocks)[stage * half : (stage + 1) * half])
        self.end = nn.Sequential(model.norm, model.head) if stage == STAGES - 1 else None
        self.tables = model.cos_sr, model.sin_sr

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.embedding is None else self.embedding(x)
        for block in self.blocks:
            x = block(x, *self.tables)
        return x if self.end is None else self.end(x)


def divide(stage: Half, mesh: DeviceMesh) -> None:
    whole = Replicate()
    plan = {
        "attention": PrepareModuleInput(input_layouts=(whole, None, None), desired_input_layouts=(whole, None, None)),
        "mlp": PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(whole,)),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.o": RowwiseParallel(),
        "mlp.gate": ColwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }
    for block in stage.blocks:
        parallelize_module(block, mesh, plan)
    if stage.embedding is not None:
        parallelize_module(stage, mesh, {"embedding": ColwiseParallel(output_layouts=whole)})
    if stage.end is not None:
        parallelize_module(stage, mesh, {"end.1": ColwiseParallel(output_layouts=whole)})


def own(weight: nn.Parameter) -> Tensor:
    gradient = weight.grad
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def main() -> None:
    settings = json.loads(sys.argv[1])
    shape = Shape(**settings["shape"])
    steps = settings["warm_up"] + settings["steps"]
    torch.set_num_threads(settings["threads"])
    dist.init_process_group("gloo")
    replicas = dist.get_world_size() // (STAGES * TENSORS)
    mesh = init_device_mesh("cpu", (replicas, STAGES, TENSORS), mesh_dim_names=("data", "stage", "tensor"))
    place = mesh.get_local_rank("stage")
    torch.manual_seed(0)
    model = Half(Transformer(shape), place)
    divide(model, mesh["tensor"])
    divided = [weight for weight in model.parameters() if weight.dim() > 1]
    whole = [weight for weight in model.parameters() if weight.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": divided}, {"params": whole}], lr=3e-4, fused=True)
    stage = PipelineStage(model, place, STAGES, torch.device("cpu"), group=mesh.get_group("stage"))
    schedule = Schedule1F1B(
        stage,
        MICROBATCHES,
        loss_fn=lambda logits, targets: F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()),
    )
    data = Progressions(shape, seed=0, sequences=steps * shape.batch)
    sampler: DistributedSampler[Tensor] = DistributedSampler(
        data, num_replicas=replicas, rank=mesh.get_local_rank("data")
    )
    loader = DataLoader(data, batch_size=shape.batch // replicas, sampler=sampler, num_workers=1)
    dist.barrier()
    ends = [time.perf_counter()]
    for tokens in loader:
        optimizer.zero_grad()
        if place == 0:
            schedule.step(tokens[:, :-1])
        else:
            schedule.step(target=tokens[:, 1:], losses=[])
        gradients = [own(weight) for weight in divided], [own(weight) for weight in whole]
        if replicas > 1:
            for gradient in (*gradients[0], *gradients[1]):
                dist.all_reduce(gradient, group=mesh.get_group("data"))
                gradient /= replicas
        square = torch.stack([gradient.square().sum() for gradient in gradients[0]]).sum()
        dist.all_reduce(square, group=mesh.get_group("tensor"))
        square += torch.stack([gradient.square().sum() for gradient in gradients[1]]).sum()
        dist.all_reduce(square, group=mesh.get_group("stage"))
        scale = (1.0 / (square.sqrt() + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([*gradients[0], *gradients[1]], scale)
        optimizer.step()
        ends.append(time.perf_counter())
    if dist.get_rank() == 0:
        print(json.dumps(ends), flush=True)
    dist.barrier()
    os._exit(0)  # gloo may abort in the interpreter's farewell.


main()
