"""Accelerate with gradient accumulation: its optimizer is called for each microbatch, and steps for every second one.

`python accumulated.py` prints each loss exactly. The seventh microbatch is the epoch's last, and so makes a step alone.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MICROBATCHES, ACCUMULATED = 7, 2


def main() -> None:
    accelerate: Any = import_module("accelerate")
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    plain = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    model, optimizer, loader = accelerator.prepare(
        plain,
        torch.optim.AdamW(plain.parameters()),
        DataLoader(TensorDataset(torch.randn(2 * MICROBATCHES, 4)), batch_size=2, shuffle=True),
    )
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        print(float(loss.detach()).hex())


if __name__ == "__main__":
    main()
