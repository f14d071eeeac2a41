"""The rate of square matrix products without the host: replayed from a CUDA graph, so that no launch is timed.

On a CPU they are called one by one. Prints FLOP/s by size as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from tests.gpu.scripts.device import device_of_words, times_s, wait

IN_GRAPH = 20
"""Products of one replay, whose own start is divided by so many."""
REPLAYS = 10


def main() -> None:
    arguments = device_of_words(("sizes", str, "256,512,1024,2048,4096,8192"))
    device: torch.device = arguments.device
    found = {size: _flops(device, int(size)) for size in arguments.sizes.split(",")}
    print(json.dumps({"flops_per_second": found}))


def _flops(device: torch.device, size: int) -> float:
    one, other = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(one)

    def multiply() -> None:
        torch.mm(one, other, out=product)

    multiply()
    wait(device)
    repeated, products = (_replayed(multiply), IN_GRAPH) if device.type == "cuda" else (multiply, 1)
    repeated()
    best_s = min(times_s(device, repeated, REPLAYS)) / products
    return 2 * size**3 / best_s


def _replayed(call: Callable[[], None]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            call()
    return graph.replay


if __name__ == "__main__":
    main()
