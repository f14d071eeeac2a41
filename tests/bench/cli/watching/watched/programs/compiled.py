"""A model compiled by Inductor, whose workers import torch as well and train nothing: `python compiled.py`.

Then the same number of steps that are compiled with their backward, by compiled autograd.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

STEPS = 4


def main() -> None:
    torch.manual_seed(0)
    pool: Any = import_module("torch._inductor.async_compile").AsyncCompile
    config: Any = import_module("torch._inductor.config")
    config.compile_threads = 2
    print(pool.process_pool().submit(torch.zeros, 1).result())  # A worker of Inductor's own pool.
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model, fullgraph=True)
    for _ in range(STEPS):
        loss = compiled(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(float(loss.detach()).hex())
    train_with_compiled_backward(model, optimizer)


def train_with_compiled_backward(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    dynamo: Any = import_module("torch._dynamo")
    dynamo.config.compiled_autograd = True

    def forward_and_backward(batch: Tensor) -> Tensor:
        loss: Tensor = model(batch).square().mean()
        loss.backward()
        return loss

    compiled = torch.compile(forward_and_backward, backend="eager")
    for _ in range(STEPS):
        loss = compiled(torch.randn(4, 8))
        optimizer.step()
        optimizer.zero_grad()
        print(float(loss.detach()).hex())
    print("captures:", dynamo.utils.counters["compiled_autograd"]["captures"])
    print(float(loss.detach()).hex())


if __name__ == "__main__":
    main()
