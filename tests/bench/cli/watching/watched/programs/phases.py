"""A small model for two ranks that does made work in each phase of a step: in data, forward, backward, optimizer.

The programs next to this file say how long each phase works, by a function of the phase's name.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

Work = Callable[[str], None]


class _WorksInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor, work: Work) -> Tensor:
        context.work = work
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        context.work("backward")
        return gradient, None


class Model(nn.Module):
    def __init__(self, work: Work) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)
        self._work = work

    def forward(self, batch: Tensor) -> Tensor:
        self._work("forward")
        out: Tensor = self.last(_WorksInBackward.apply(self.first(batch), self._work))
        return out.square().mean()


class Data(Dataset[Tensor]):
    def __init__(self, steps: int, work: Work) -> None:
        self._steps, self._work = steps, work

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, place: int) -> Tensor:
        self._work("data")
        return torch.full((8,), 0.1)


def distributed(strategy: str, work: Work) -> tuple[Any, torch.optim.Optimizer]:
    """Return the model under ddp or fsdp2, or by itself under any other name, and its optimizer."""
    model: Any = Model(work)
    if strategy == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    elif strategy == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: work("optimizer"))
    return model, optimizer


def train(model: Any, optimizer: torch.optim.Optimizer, batch: Tensor) -> Tensor:
    """Make one step; return its loss."""
    loss: Tensor = model(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
