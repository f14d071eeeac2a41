"""The strategy `ddp`: each rank holds the whole model; gradients are averaged over the data axis."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup
from workloads.parts.compression import Bucket, ErrorFeedback, Scheme, Uncompressed
from workloads.parts.compression_thread import CompressionThread, hook
from workloads.parts.powersgd import PowerSGD
from workloads.parts.replica import replicate
from workloads.parts.rounding import Rounding
from workloads.parts.timeouts import make_group
from workloads.parts.top_k import TopK
from workloads.parts.training import Trainer, make_model, whole_gradients
from workloads.workload import Phase, Workload


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """DistributedDataParallel, which averages bucket by bucket while backward runs; or one average after it."""
    model, group = make_model(setup), mesh.get_group("data")
    if not setup.options["overlap"]:
        scheme = make_scheme(setup, group)
        return Trainer(setup, model, phase, after_backward=partial(average_gradients, model, scheme))
    replica = replicate(
        setup,
        model,
        group,
        find_unused_parameters=bool(setup.options["find_unused_parameters"]),
        static_graph=bool(setup.options["static_graph"]),
    )
    if setup.options["compress"] == "none":
        return Trainer(setup, replica, phase, no_sync=replica.no_sync)
    device = next(model.parameters()).device
    thread = CompressionThread(make_scheme(setup, make_group(group, device)), device)
    replica.register_comm_hook(thread, hook)
    return Trainer(setup, replica, phase, no_sync=replica.no_sync, after_backward=thread.check)


def make_scheme(setup: Setup, group: dist.ProcessGroup) -> Scheme:
    """What averages gradients over the group, by the option `compress`."""
    match setup.options["compress"]:
        case "fp16":
            return Rounding(group, torch.float16)
        case "bf16":
            return Rounding(group, torch.bfloat16)
        case "powersgd":
            rank = int(setup.options["compress_rank"])
            return PowerSGD(group, rank=rank, seed=setup.seed, feedback=ErrorFeedback())
        case "topk":
            return TopK(group, density=float(setup.options["density"]), feedback=ErrorFeedback())
        case _:
            return Uncompressed(group)


def average_gradients(model: nn.Module, scheme: Scheme) -> None:
    """Replace each gradient by its mean over the ranks, by the scheme, all of them laid end to end as one bucket."""
    gradients = list(whole_gradients(model).values())
    weights = tuple(model.parameters())
    bucket = Bucket(index=0, flat=torch.cat([gradient.flatten() for gradient in gradients]), weights=weights)
    scheme.average(bucket)
    for weight, mean in zip(weights, bucket.views(bucket.flat), strict=True):
        weight.grad = mean
