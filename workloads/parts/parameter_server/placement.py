"""Which server holds which weight of the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workloads.laws.division import divide


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The weights of the model in their order, and the server of each. Servers are the group's first ranks."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    servers: tuple[int, ...]

    def held_by(self, server: int) -> list[int]:
        """The indices of its weights, in the model's order."""
        return [index for index, one in enumerate(self.servers) if one == server]

    def gather(self, held: dict[str, Tensor], group: dist.ProcessGroup, device: torch.device) -> dict[str, Tensor]:
        """All gradients, by the weights' names, on each rank; all ranks call it.

        held: those that this rank's server updated with; empty on a worker.
        """
        whole = {}
        for name, shape, server in zip(self.names, self.shapes, self.servers, strict=True):
            gradient = held[name] if name in held else torch.empty(shape, device=device)
            dist.broadcast(gradient, group=group, group_src=server)
            whole[name] = gradient
        return whole


def place(model: nn.Module, servers: int) -> Placement:
    """Divide the weights by their bytes, as `laws.division` does."""
    names, weights = zip(*model.named_parameters(), strict=True)
    return Placement(
        names=names,
        shapes=tuple(weight.shape for weight in weights),
        servers=divide([weight.nbytes for weight in weights], servers),
    )
