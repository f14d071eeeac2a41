"""One rank alone: how the profiler and the Flight Recorder call functional gathers and a message to oneself.

Messages to oneself go over NCCL only; prints titles, kernels with what they say, and what our reader makes of them.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "1000")

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, P2POp  # type: ignore[attr-defined]  # Public, but in no __all__.
from torch.distributed._functional_collectives import all_gather_tensor, reduce_scatter_tensor
from torch.profiler import ProfilerActivity, profile

from collectors.rank import flight_recorder
from tests.gpu.scripts.device import device_of_words, wait

ELEMENTS = 1 << 20
WORDS = ("Collective name", "Seq", "Process Group Name", "In msg nelems", "Out msg nelems", "Group size")
"""What a kernel may say of its collective."""


def main() -> None:
    device = device_of_words().device
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=HashStore(), rank=0, world_size=1, device_id=device if backend == "nccl" else None
    )
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    sent, received = torch.ones(ELEMENTS, device=device), torch.zeros(ELEMENTS, device=device)
    _round(sent, received, backend)
    before = flight_recorder.dump(backend)
    with profile(activities=activities) as profiled:
        _round(sent, received, backend)
        wait(device)
    after = flight_recorder.dump(backend)
    trace = Path("selfring.json")
    profiled.export_chrome_trace(str(trace))
    entries = json.loads(after).get("entries", [])
    report = {
        "backend": backend,
        "titles": sorted({entry["profiling_name"] for entry in entries}),
        "messages": sum(bool(entry.get("is_p2p")) for entry in entries),
        "entered": sorted({entered.name for entered in flight_recorder.entered_since(before, after)}),
        "kernels": _kernels(json.loads(trace.read_text())["traceEvents"]),
        "is_message_whole": bool(torch.equal(sent, received)) if backend == "nccl" else None,
    }
    print(json.dumps(report))


def _round(sent: Tensor, received: Tensor, backend: str) -> None:
    """Each kind of collective once."""
    group = dist.group.WORLD
    assert group is not None
    dist.all_reduce(sent)
    all_gather_tensor(sent, 0, group).sum()
    reduce_scatter_tensor(sent, "sum", 0, group).sum()
    if backend == "nccl":
        receive = P2POp(dist.irecv, received, group_peer=0, group=group)
        send = P2POp(dist.isend, sent, group_peer=0, group=group)
        for work in dist.batch_isend_irecv([receive, send]):
            work.wait()
        torch.cuda.synchronize()


def _kernels(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"name": event["name"][:90], "words": {word: event["args"][word] for word in WORDS if word in event["args"]}}
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy")
    ]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
    sys.stdout.flush()
    os._exit(0)  # A live group may abort when the interpreter exits.
