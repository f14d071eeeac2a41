"""Norm, overflow check and sums of gradients that ranks hold partly as parts and partly whole.

A part is a DTensor, a whole gradient a plain tensor; torch's functions accept no list with both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

NORM_EPSILON = 1e-6
"""Added to the norm before dividing by it, as in torch's own clipping."""


def parameter_groups(weights: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Group the weights for an optimizer: one group per mesh that they lie on, and one for those on none."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = defaultdict(list)
    for weight in weights:
        groups[weight.device_mesh if isinstance(weight, DTensor) else None].append(weight)
    return [{"params": group} for group in groups.values()]


@torch.no_grad()
def clip_gradients(
    weights: Iterable[nn.Parameter], largest_norm: float, *, groups: Sequence[dist.ProcessGroup], tensor_ranks: int = 1
) -> Tensor:
    """Scale gradients down to a norm, and return the norm before; costs one all_reduce of a number per group.

    groups: process groups of the axes whose ranks hold different gradients, or parts of one.
    tensor_ranks: size of the axis `tensor`, whose ranks all hold the gradients that are not divided over it.
    """
    sharded: list[Tensor] = []
    replicated: list[Tensor] = []
    for weight in weights:
        if weight.grad is not None:
            axes = weight.device_mesh.mesh_dim_names if isinstance(weight, DTensor) else None
            (sharded if axes is not None and "tensor" in axes else replicated).append(local_gradient(weight))
    # Each of the tensor ranks holds a copy of the whole gradients; the sum over ranks must count them once.
    square = nn.utils.get_total_norm(sharded).square() + nn.utils.get_total_norm(replicated).square() / tensor_ranks
    for group in groups:
        dist.all_reduce(square, group=group)
    norm = square.sqrt()
    scale = (largest_norm / (norm + NORM_EPSILON)).clamp(max=1.0)
    torch._foreach_mul_([*sharded, *replicated], scale)
    return norm


@torch.no_grad()
def add_up(weights: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Replace each gradient by its sum over the group's ranks, in one all_reduce of all of them end to end.

    Raises:
        RuntimeError: a weight has no gradient.
    """
    gradients = [local_gradient(weight) for weight in weights]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    sums = torch.split(flat, [gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [total.view_as(own) for total, own in zip(sums, gradients, strict=True)])


class AgreeingScaler(torch.amp.GradScaler):
    """A GradScaler with which all ranks skip an update if one of them sees an overflow.

    Costs one all_reduce of a number per group. It overrides the same hook as torch's ShardedGradScaler, which accepts
    no list of parts and whole gradients.
    """

    def __init__(self, device: str, *, groups: Sequence[dist.ProcessGroup], enabled: bool) -> None:
        """groups: along each axis, the process group of the ranks that agree."""
        super().__init__(device, enabled=enabled)
        self._groups = groups

    @torch.no_grad()
    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        gradients = [local_gradient(weight) for weight in weights if weight.grad is not None]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale)
        for group in self._groups:
            dist.all_reduce(found_inf, op=dist.ReduceOp.MAX, group=group)
        return {found_inf.device: found_inf}


def local_gradient(weight: nn.Parameter) -> Tensor:
    """Return what this rank holds of the weight's gradient.

    Raises:
        RuntimeError: the weight has no gradient.
    """
    if weight.grad is None:
        raise RuntimeError(f"a weight of {tuple(weight.shape)} has no gradient; the last backward did not reach it")
    return weight.grad.to_local() if isinstance(weight.grad, DTensor) else weight.grad
