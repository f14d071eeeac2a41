"""Whole gradients from flat parts: what DeepSpeed's updates read, in the order of the weights.

Dimensions: r ranks, e elements of a rank's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

Layout = Literal["whole", "end_to_end", "each"]
"""How ranks share gradients: each has all; all are laid end to end and cut in equal parts; each is cut by itself."""


def unflatten(
    tensors: Sequence[Tensor],
    shapes: Mapping[str, torch.Size],
    layout: Layout,
    group: dist.ProcessGroup,
    device: torch.device,
) -> dict[str, Tensor]:
    """The gradient of each weight, by its name; all ranks of the group call it.

    tensors: what a rank holds, one after another; padding is at the end, or at the end of each.
    shapes: of the weights, in that order.
    device: where the group's ranks meet; offloaded parts lie elsewhere.
    """
    if layout == "whole":
        return dict(zip(shapes, tensors, strict=True))
    own = torch.cat([tensor.flatten() for tensor in tensors]).to(device)
    parts = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(parts, own, group=group)
    parts_re = torch.stack(parts)
    if layout == "end_to_end":
        sizes = [shape.numel() for shape in shapes.values()]
        pieces = torch.split(parts_re.flatten()[: sum(sizes)], sizes)
    else:
        widths = [-(-shape.numel() // group.size()) for shape in shapes.values()]
        pieces = tuple(columns_re.flatten() for columns_re in torch.split(parts_re, widths, dim=1))
    return {
        name: piece[: shape.numel()].view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }
