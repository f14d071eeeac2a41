"""Messages of known size from one rank to another, and what the GPUs' NVLink counters grew by meanwhile.

This process starts both ranks and reads NVML; it touches no CUDA itself. Prints bytes as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

from collectors.metrics.gpu_health import GPU_NVLINK_BYTES
from collectors.nvml.collector import NvmlCollector

_RANK = """
import os, sys, torch, torch.distributed as dist
rank, store, device, size, count = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
device = torch.device(device, rank) if device == "cuda" else torch.device(device)
if device.type == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo", init_method=f"file://{store}", rank=rank,
                        world_size=2, device_id=device if device.type == "cuda" else None)
held = torch.zeros(size, dtype=torch.uint8, device=device)
for number in range(count + 1):
    dist.send(held, 1) if rank == 0 else dist.recv(held, 0)
    if number == 0:
        if device.type == "cuda":
            torch.cuda.synchronize()
        print("met", flush=True)
        sys.stdin.readline()
if device.type == "cuda":
    torch.cuda.synchronize()
print("sent", flush=True)
sys.stdin.readline()
os._exit(0)
"""


def main() -> None:
    from tests.gpu.scripts.device import device_of_words

    arguments = device_of_words(("size", int, 1 << 30), ("count", int, 20))
    kind = arguments.device.type
    with tempfile.TemporaryDirectory() as folder:
        words = [f"{folder}/store", kind, str(arguments.size), str(arguments.count)]
        ranks = [_started(rank, words) for rank in range(2)]
        collector = NvmlCollector() if kind == "cuda" else None
        _await(ranks)
        before = _counted(collector)
        _go_on(ranks)
        _await(ranks)
        after = _counted(collector)
        _go_on(ranks)
        for rank in ranks:
            rank.wait()
    grown = {direction: after[direction] - before[direction] for direction in after.keys() & before.keys()}
    print(json.dumps({"sent_bytes": arguments.size * arguments.count, "counted_bytes": grown}))


def _started(rank: int, words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _RANK, str(rank), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _await(ranks: list[subprocess.Popen[str]]) -> None:
    for rank in ranks:
        assert rank.stdout is not None
        if not rank.stdout.readline():
            sys.exit(f"rank {rank.args!r} ended early"[:200])


def _go_on(ranks: list[subprocess.Popen[str]]) -> None:
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()


def _counted(collector: NvmlCollector | None) -> dict[str, float]:
    """The bytes of all GPUs by direction; nothing where none is counted."""
    found: dict[str, float] = {}
    for sample in [] if collector is None else collector.read():
        if sample.metric == GPU_NVLINK_BYTES.name:
            direction = sample.labels["direction"]
            found[direction] = found.get(direction, 0.0) + sample.value
    return found


if __name__ == "__main__":
    main()
