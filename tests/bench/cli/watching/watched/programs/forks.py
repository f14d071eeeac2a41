"""Training on a CPU that forks after each step: `python forks.py`; prints how many threads it has after the forks."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch

STEPS = 4


def fork_and_wait() -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    warnings.simplefilter("always", DeprecationWarning)  # Python 3.12 and later: a process with threads forks.
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        fork_and_wait()
    model(torch.ones(2, 4)).sum().backward()
    print(sum(1 for _ in Path("/proc/self/task").iterdir()))


if __name__ == "__main__":
    main()
