"""The strategy `ddp`: each rank holds the whole model; gradients are averaged over the data axis."""

from __future__ import annotations

import warnings
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from workloads.core.mesh import make_group
from workloads.core.trainer import Trainer, adamw_settings, make_model, whole_gradients
from workloads.data_parallel.compression import (
    Bucket,
    CompressionThread,
    ErrorFeedback,
    PowerSGD,
    Rounding,
    Scheme,
    TopK,
    Uncompressed,
    hook,
)
from workloads.protocols import Phase, Workload
from workloads.spec import Setup

# The model whole on each rank, its gradients averaged bucket by bucket while backward runs.


def replicate(
    setup: Setup,
    model: nn.Module,
    group: dist.ProcessGroup,
    *,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
) -> DistributedDataParallel:
    """The model in DistributedDataParallel, its buckets as large as the setup's option says."""
    replica = DistributedDataParallel(
        model,
        device_ids=[torch.cuda.current_device()] if setup.device == "cuda" else None,
        process_group=group,
        bucket_cap_mb=float(setup.options["bucket_mb"]),
        # Gradients live in the buckets: without it they would be held twice, and copied.
        gradient_as_bucket_view=True,
        find_unused_parameters=find_unused_parameters,
        static_graph=static_graph,
    )
    # The only buffers are tables that never change, and each forward would send them. The argument that says so has
    # another name in torch 2.13 than in 2.11; the attribute has not.
    replica.broadcast_buffers = False
    return replica


def build_ddp(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
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


# The strategy `single`: one rank trains the model alone.


def build_single(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """The model as it is."""
    return Trainer(setup, make_model(setup), phase)


# The strategy `zero1`: as `ddp`, but each rank updates only some weights, and holds their optimizer states alone.

with warnings.catch_warnings():
    # Beside this optimizer the package has some that torch 2.13 compiles on import, by a function that it deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer


def build_zero1(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """DistributedDataParallel averages gradients; each rank then sends the weights that it has updated to all."""
    model, group = make_model(setup), mesh.get_group("data")
    replica = replicate(setup, model, group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        optimizer_class=AdamW,
        process_group=group,
        # A rank's weights lie end to end and are sent in one broadcast, instead of one for each of them.
        parameters_as_bucket_view=True,
        **adamw_settings(setup),
    )
    # The states are those of the optimizer within; without this, whoever reads the outer one's finds none.
    optimizer.state = optimizer.optim.state
    return Trainer(setup, replica, phase, no_sync=replica.no_sync, optimizer=optimizer)
