"""A model whose weights, gradients and optimizer states are divided among ranks by torch's `fully_shard` (FSDP2).

Each block, or each half of one, is gathered whole for as long as it computes; what is in none of them (embedding, norm,
head) is gathered at the start of forward and kept until its backward, which is the first to need it.
Computation in bf16 and fp16 is autocast's, as in `single`, so that weights travel in fp32: a policy of FSDP2's that
gathers them in two bytes would round the residual stream too, and compute something else.
Not covered: a model that no device can hold whole; it is made whole on each, and then divided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from workloads.core.mesh import share_world_timeout
from workloads.core.trainer import Trainer, make_model
from workloads.core.transformer import Block, Transformer
from workloads.protocols import Phase, Workload
from workloads.spec import Setup

NORM_EPSILON = 1e-6
"""What torch's own clipping adds to the norm before it divides by it."""


def make_trainer(setup: Setup, mesh: DeviceMesh, phase: Phase, *, reshard: bool | int) -> Trainer:
    """The model divided over the mesh's axis `shard`, alike in all replicas where the mesh has them, and its trainer.

    reshard: between forward and backward weights are divided again among all ranks, or among so many; False: they stay
    gathered, from the first forward of a step to its last backward.
    """
    model = make_model(setup)
    units = shard(setup, model, mesh, reshard=reshard)
    prefetch(units, int(setup.options["prefetch"]))
    return Trainer(
        setup,
        model,
        phase,
        no_sync=partial(without_reduction, model, is_kept_gathered=reshard is False),
        clip=partial(clip_gradients, group=mesh.get_group("shard"), device=torch.device(setup.device)),
    )


def shard(setup: Setup, model: Transformer, mesh: DeviceMesh, *, reshard: bool | int) -> list[FSDPModule]:
    """Divide the model in place; the modules that are gathered one after another, in the order of forward."""
    reduce_dtype = torch.bfloat16 if setup.options["reduce_dtype"] == "bf16" else None
    # Pinned memory is for copies to and from a GPU.
    host = CPUOffloadPolicy(pin_memory=setup.device == "cuda") if setup.options["offload"] else OffloadPolicy()
    divide = partial(
        fully_shard, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=reduce_dtype), offload_policy=host
    )
    modules = model.blocks if setup.options["wrap"] == "block" else _halves(model)
    units = [divide(module, reshard_after_forward=reshard) for module in modules]
    divide(model, reshard_after_forward=False)
    return units


def prefetch(units: Sequence[FSDPModule], count: int) -> None:
    """Gather so many units ahead of the one that computes, in forward and in backward; 0: as FSDP2 does by itself."""
    if count == 0:
        return
    for place, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch(list(units[place + 1 : place + 1 + count]))
        unit.set_modules_to_backward_prefetch(list(reversed(units[max(0, place - count) : place])))


@contextmanager
def without_reduction(model: nn.Module, *, is_kept_gathered: bool) -> Iterator[None]:
    """Backward leaves whole gradients on each rank, to be added to; and gathered weights, where they shall be kept."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(False)
    model.set_reshard_after_backward(not is_kept_gathered)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
        model.set_reshard_after_backward(True)


@torch.no_grad()
def clip_gradients(
    weights: Iterable[nn.Parameter], largest_norm: float, *, group: dist.ProcessGroup, device: torch.device
) -> Tensor:
    """Scale gradients, of which the group's ranks hold parts, down to a norm; one all_reduce of a number.

    device: where the group's ranks meet; offloaded gradients lie elsewhere.
    Returns: what the norm was.
    """
    parts = [_local(weight.grad) for weight in weights if weight.grad is not None]
    square = nn.utils.get_total_norm(parts).square().to(device)
    dist.all_reduce(square, group=group)
    norm = square.sqrt()
    scale = (largest_norm / (norm + NORM_EPSILON)).clamp(max=1.0)
    torch._foreach_mul_(parts, scale.to(parts[0].device))
    return norm


def _halves(model: Transformer) -> Iterator[nn.Module]:
    for block in model.blocks:
        assert isinstance(block, Block)
        yield block.attention
        yield block.mlp


def _local(gradient: Tensor) -> Tensor:
    assert isinstance(gradient, DTensor)
    return gradient.to_local()


# The strategy `fsdp`: weights, gradients and optimizer states are divided; each block is gathered when it computes.


def build_fsdp(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Weights are divided again after forward, so that backward gathers them a second time."""
    trainer = make_trainer(setup, mesh, phase, reshard=int(setup.options["reshard"]) or True)
    # Ranks that share a weight in between, where those are not all, meet in groups that torch has just made.
    share_world_timeout(torch.device(setup.device))
    return trainer


# The strategy `hsdp`: the model is divided within each group of ranks, and gradients are averaged between groups.


def build_hsdp(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """As `fsdp` on each row of the mesh; the columns average what rows have reduced."""
    trainer = make_trainer(setup, mesh, phase, reshard=int(setup.options["reshard"]) or True)
    # Ranks that share a weight in between, where those are not all, meet in groups that torch has just made.
    share_world_timeout(torch.device(setup.device))
    return trainer


# The strategy `zero2`: gradients and optimizer states are divided; weights are gathered once a step.
#
# ZeRO's second stage keeps the weights whole on each rank at all times. This one divides them between steps as well,
# which costs no more traffic: each step gathers what the paper's sends after its update.


def build_zero2(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Weights stay gathered from the first forward of a step to its last backward."""
    return make_trainer(setup, mesh, phase, reshard=False)
