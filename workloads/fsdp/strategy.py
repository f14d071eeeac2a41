"""Strategies on torch's `fully_shard` (FSDP2): `fsdp`, `hsdp` and `zero2`.

Ranks share weights, gradients and optimizer states. A unit is a block, or half of one: it is gathered whole while it
computes. The rest (embedding, norm, head) is gathered at the start of forward and kept until its backward, which needs
it first.
In bf16, units are gathered and computed in bf16 by FSDP2's own policy (weights=bf16_compute), or under autocast, where
weights travel in fp32; see `workloads.core.precision_options`.
The model is divided before it has memory, so that a rank never holds more than its part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from workloads.core.mesh import share_world_timeout
from workloads.core.precision import sharding_policy
from workloads.core.sharded_gradients import NORM_EPSILON
from workloads.core.trainer import Trainer, materialise, outline_model
from workloads.core.transformer import Block, Transformer
from workloads.fsdp.spec import REDUCE
from workloads.protocols import Phase, Workload
from workloads.spec import Setup


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Build a model divided over the mesh's axis `shard`, the same in all replicas if the mesh has any.

    fsdp, hsdp: weights are divided again after forward, so that backward gathers them a second time; the option
    `reshard` says among how many ranks. The columns of `hsdp`'s mesh average the gradients that its rows have reduced.
    zero2: weights stay gathered from the first forward of a step to its last backward. ZeRO's second stage keeps them
    whole at all times; this strategy also divides them between steps, which costs no more traffic: each step gathers
    what the paper's stage sends after its update.
    """
    # zero2 has no option `reshard`.
    reshard = (int(setup.options["reshard"]) or True) if "reshard" in setup.options else False
    model, device = outline_model(setup), torch.device(setup.device)
    units = shard(
        model,
        mesh,
        reshard=reshard,
        is_by_layer=setup.options["wrap"] == "layer",
        policy=sharding_policy(setup),
        # Pinned memory is for copies to and from a GPU.
        host=CPUOffloadPolicy(pin_memory=setup.device == "cuda") if setup.options["offload"] else None,
    )
    materialise(setup, model, device="cpu" if setup.options["offload"] else None)
    prefetch(units, int(setup.options["prefetch"]))
    trainer = Trainer(
        setup,
        model,
        phase,
        no_sync=partial(before_last, model, is_kept_gathered=reshard is False, is_reduced=REDUCE.of(setup) == "each"),
        clip=partial(clip_gradients, group=mesh.get_group("shard"), device=device),
    )
    # With `reshard` torch has just made groups of the ranks that share a weight between forward and backward.
    share_world_timeout(device)
    return trainer


def shard(
    model: Transformer,
    mesh: DeviceMesh,
    *,
    policy: MixedPrecisionPolicy,
    reshard: bool | int = True,
    is_by_layer: bool = False,
    host: OffloadPolicy | None = None,
) -> list[FSDPModule]:
    """Divide the model in place over a mesh of one axis, or two with replicas; return its units in forward's order.

    policy: in what precision units are gathered, and gradients reduced.
    reshard: between forward and backward, divide weights again among all ranks (True) or among this many; False: keep
    them gathered.
    is_by_layer: a unit is half of a block. host: how parts are kept on the host; None: they stay on the device.
    """
    divide = partial(fully_shard, mesh=mesh, mp_policy=policy, offload_policy=host or OffloadPolicy())
    modules: list[nn.Module] = []
    for block in model.blocks:
        assert isinstance(block, Block)
        modules += [block.attention, block.mlp] if is_by_layer else [block]
    units = [divide(module, reshard_after_forward=reshard) for module in modules]
    divide(model, reshard_after_forward=False)
    return units


def prefetch(units: Sequence[FSDPModule], count: int) -> None:
    """Gather `count` units ahead of the one that computes, in forward and in backward; 0: leave it to FSDP2."""
    if count == 0:
        return
    for place, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch(list(units[place + 1 : place + 1 + count]))
        unit.set_modules_to_backward_prefetch(list(reversed(units[max(0, place - count) : place])))


@contextmanager
def before_last(model: nn.Module, *, is_kept_gathered: bool, is_reduced: bool) -> Iterator[None]:
    """Let backward of a microbatch before the last keep weights gathered and gradients whole, if the setup does."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(is_reduced)
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
    """Scale gradients whose parts the group's ranks hold down to a norm; needs one all_reduce of a number.

    device: of the group's communication; offloaded gradients are elsewhere.
    Returns: the norm before.
    """
    parts = []
    for weight in weights:
        if weight.grad is not None:
            assert isinstance(weight.grad, DTensor)
            parts.append(weight.grad.to_local())
    square = nn.utils.get_total_norm(parts).square().to(device)
    dist.all_reduce(square, group=group)
    norm = square.sqrt()
    scale = (largest_norm / (norm + NORM_EPSILON)).clamp(max=1.0)
    torch._foreach_mul_(parts, scale.to(parts[0].device))
    return norm
