"""Matrix products for some seconds, so that the GPU draws power; says `working` when the first is through."""

from __future__ import annotations

import time
from contextlib import suppress

import torch

from tests.gpu.scripts.device import device_of_words, wait


def main() -> None:
    arguments = device_of_words(("seconds", float, 10.0), ("size", int, 8192))
    device: torch.device = arguments.device
    matrix = torch.randn(arguments.size, arguments.size, device=device, dtype=torch.bfloat16)
    torch.mm(matrix, matrix)
    wait(device)
    print("working", flush=True)
    until = time.monotonic() + arguments.seconds
    while time.monotonic() < until:
        for _ in range(4):
            torch.mm(matrix, matrix)
        wait(device)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # Whoever started it has seen enough.
        main()
