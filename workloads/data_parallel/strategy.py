"""Strategies of data parallelism: `ddp`, `single` and `zero1`. Each rank holds the whole model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from workloads.core.buckets import bucket_bytes, bucket_mb
from workloads.core.mesh import make_group
from workloads.core.precision import round_weights
from workloads.core.precision_options import grad_dtype_of, gradient_bytes, is_master_kept
from workloads.core.trainer import Trainer, adamw_settings, gather_gradients, make_model
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
from workloads.data_parallel.master_weights import DivideUpdates, GradientBuckets, MasterTrainer
from workloads.protocols import Phase, Workload
from workloads.spec import Setup

# ddp: gradients are averaged over the data axis, bucket by bucket while backward runs or at once after it.


def replicate(
    setup: Setup,
    model: nn.Module,
    group: dist.ProcessGroup,
    *,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
) -> DistributedDataParallel:
    """Wrap the model in DistributedDataParallel, with the setup's bucket size."""
    replica = DistributedDataParallel(
        model,
        device_ids=[torch.cuda.current_device()] if setup.device == "cuda" else None,
        process_group=group,
        bucket_cap_mb=bucket_mb(setup),
        # Gradients live in the buckets; otherwise they would be held twice, and copied.
        gradient_as_bucket_view=True,
        find_unused_parameters=find_unused_parameters,
        static_graph=static_graph,
    )
    # Otherwise each forward would broadcast the buffers, which are only tables that never change. This sets the
    # attribute because torch 2.13 renamed the argument of 2.11, but not the attribute.
    replica.broadcast_buffers = False
    return replica


def build_ddp(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Build DistributedDataParallel, which averages buckets while backward runs; or average once after backward."""
    model, group = make_model(setup), mesh.get_group("data")
    if is_master_kept(setup):
        return build_with_master(setup, model, group, phase)
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


def build_with_master(
    setup: Setup,
    model: nn.Module,
    group: dist.ProcessGroup,
    phase: Phase,
    *,
    divide: DivideUpdates | None = None,
) -> Workload:
    """Build `ddp` or `zero1` with bf16 weights and their fp32 master.

    DistributedDataParallel averages gradients only in the precision of the weights, so fp32 gradients use
    `GradientBuckets`.
    divide: see `MasterTrainer`.
    """
    make = partial(MasterTrainer, setup, model, masters=round_weights(setup, model), divide=divide)
    if not setup.options.get("overlap", True):
        average = partial(average_gradients, model, Uncompressed(group))
        return make(model, phase, after_backward=average)
    if grad_dtype_of(setup) == "bf16":
        replica = replicate(setup, model, group)
        return make(replica, phase, no_sync=replica.no_sync)
    buckets = GradientBuckets(
        list(model.parameters()), group, bucket_bytes=bucket_bytes(setup), element_bytes=gradient_bytes(setup)
    )
    return make(model, phase, no_sync=buckets.no_sync, after_backward=buckets.finish)


def make_scheme(setup: Setup, group: dist.ProcessGroup) -> Scheme:
    """Make the scheme that averages gradients over the group, by the option `compress`."""
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
    """Replace each gradient by its mean over the ranks; the scheme averages them all in a single bucket."""
    gradients = list(gather_gradients(model).values())
    weights = tuple(model.parameters())
    bucket = Bucket(index=0, flat=torch.cat([gradient.flatten() for gradient in gradients]), weights=weights)
    scheme.average(bucket)
    for weight, mean in zip(weights, bucket.views(bucket.flat), strict=True):
        weight.grad = mean


def build_single(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Build `single`: one rank trains the model alone."""
    model = make_model(setup)
    if is_master_kept(setup):
        return MasterTrainer(setup, model, model, phase, masters=round_weights(setup, model))
    return Trainer(setup, model, phase)


# zero1: as ddp, but each rank updates only some weights, and holds optimizer states for these only.

with warnings.catch_warnings():
    # On import, torch 2.13 compiles other optimizers of this package with a function that it deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer


def build_zero1(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Build `zero1`: DistributedDataParallel averages gradients; each rank broadcasts the weights that it updated."""
    model, group = make_model(setup), mesh.get_group("data")
    divide = partial(divide_updates, setup, group)
    if is_master_kept(setup):
        return build_with_master(setup, model, group, phase, divide=divide)
    replica = replicate(setup, model, group)
    return Trainer(setup, replica, phase, no_sync=replica.no_sync, optimizer=divide(model.parameters(), AdamW))


def divide_updates(
    setup: Setup, group: dist.ProcessGroup, weights: Iterable[nn.Parameter], make: Callable[..., AdamW]
) -> ZeroRedundancyOptimizer:
    """Make an optimizer that updates some of the weights on each rank, and sends these to the others.

    make: makes the optimizer of a rank's own weights.
    """
    optimizer = ZeroRedundancyOptimizer(
        weights,
        optimizer_class=make,  # type: ignore[arg-type]  # torch only calls it.
        process_group=group,
        # A rank's weights lie end to end, so that one broadcast sends them all.
        parameters_as_bucket_view=True,
        **adamw_settings(setup),
    )
    # The states are in the inner optimizer; without this, readers of the outer one would find none.
    optimizer.state = optimizer.optim.state
    return optimizer
