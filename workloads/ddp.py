"""The strategy `ddp`: each rank holds the whole model; gradients are averaged over the data axis."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from workloads.cards.card import Setup
from workloads.parts.training import Trainer, make_model, whole_gradients
from workloads.workload import Phase, Workload


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """DistributedDataParallel, which averages bucket by bucket while backward runs; or one average after it."""
    model, group = make_model(setup), mesh.get_group("data")
    if not setup.options["overlap"]:
        return Trainer(setup, model, phase, after_backward=lambda: average_gradients(model, group))
    replica = DistributedDataParallel(
        model,
        device_ids=[torch.cuda.current_device()] if setup.device == "cuda" else None,
        process_group=group,
        bucket_cap_mb=float(setup.options["bucket_mb"]),
        # Gradients live in the buckets: without it they would be held twice, and copied.
        gradient_as_bucket_view=True,
    )
    # The only buffers are tables that never change, and each forward would send them. The argument that says so has
    # another name in torch 2.13 than in 2.11; the attribute has not.
    replica.broadcast_buffers = False
    return Trainer(setup, replica, phase, no_sync=replica.no_sync)


def average_gradients(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Replace each gradient by its mean over the group, in one all_reduce of all of them laid end to end."""
    gradients = list(whole_gradients(model).values())
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    flat /= group.size()
    dist.all_reduce(flat, group=group)
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for weight, part in zip(model.parameters(), parts, strict=True):
        weight.grad = part.view_as(weight)
