"""Copies of known size from one GPU to another, and what the GPUs' NVLink counters grew by meanwhile; prints JSON."""

from __future__ import annotations

import json

import torch

from collectors.metrics.gpu_health import GPU_NVLINK_BYTES
from collectors.nvml.collector import NvmlCollector
from tests.gpu.scripts.device import device_of_words, wait


def main() -> None:
    arguments = device_of_words(("size", int, 1 << 30), ("count", int, 20))
    is_gpu = arguments.device.type == "cuda"
    devices = [torch.device("cuda", number) if is_gpu else arguments.device for number in range(2)]
    sent, received = (torch.zeros(arguments.size, dtype=torch.uint8, device=device) for device in devices)
    collector = NvmlCollector() if is_gpu else None
    received.copy_(sent)  # The first copy maps the peer's memory.
    before = _counted(collector, devices)
    for _ in range(arguments.count):
        received.copy_(sent)
    after = _counted(collector, devices)
    grown = {direction: after[direction] - before[direction] for direction in after}
    print(json.dumps({"sent_bytes": arguments.size * arguments.count, "counted_bytes": grown}))


def _counted(collector: NvmlCollector | None, devices: list[torch.device]) -> dict[str, float]:
    """Return the bytes of all GPUs by direction, when all copies have ended; nothing where none is counted."""
    for device in devices:
        wait(device)
    counted: dict[str, float] = {}
    for sample in [] if collector is None else collector.read():
        if sample.metric == GPU_NVLINK_BYTES.name:
            direction = sample.labels["direction"]
            counted[direction] = counted.get(direction, 0.0) + sample.value
    return counted


if __name__ == "__main__":
    main()
