"""Training with dropout and data workers that prints each loss and random number exactly, and ends with code 3."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.3), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for batch, label in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), label)
        loss.backward()
        optimizer.step()
        print(float(loss).hex(), flush=True)
    print(float(torch.rand(1)).hex(), random.random().hex())
    print("to standard error", file=sys.stderr)
    sys.exit(3)


if __name__ == "__main__":
    main()
