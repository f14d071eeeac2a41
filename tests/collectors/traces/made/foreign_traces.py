"""Small traces as other programs may write them: good steps of a millisecond, and what a test puts beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from collectors.traces.reading.reader import read_trace
from collectors.traces.timeline import Timeline

Event = dict[str, Any]

UNIX_US = 1_764_000_000_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(category: str, name: str, ts: object, dur: object, *, tid: int = 1, **args: object) -> Event:
    """A complete event; on the device, tid is the stream."""
    pid = 0 if category in ("kernel", "gpu_memcpy", "gpu_memset") else 1
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name: str, ts: object, dur: object, correlation: int, *, stream: int = 7, **args: object) -> Event:
    """A kernel of the first GPU."""
    return event("kernel", name, ts, dur, tid=stream, device=0, stream=stream, correlation=correlation, **args)


def good_steps(base_us: int = UNIX_US, *, steps: int = 3, synchronised_us: int = 650) -> list[Event]:
    """Steps of 1 ms: 400 us of computation, then an all-reduce of 200 us, and a synchronisation until 50 us later."""
    return list(_steps(base_us, steps, synchronised_us))


def _steps(base_us: int, steps: int, synchronised_us: int) -> Iterator[Event]:
    for step in range(steps):
        at, number = base_us + 1000 * step, 3 * step
        yield event("user_annotation", f"ProfilerStep#{step}", at, 1000)
        yield event("cuda_runtime", "cudaLaunchKernel", at + 10, 5, correlation=number + 1)
        yield kernel("ampere_sgemm_128x64_tn", at + 50, 400, number + 1)
        yield event("cuda_runtime", "cudaLaunchKernel", at + 30, 5, correlation=number + 2)
        said = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": 2, "Seq": step + 1}
        yield kernel(NCCL, at + 450, 200, number + 2, stream=20, **said)
        yield event("cuda_runtime", "cudaDeviceSynchronize", at + 60, synchronised_us, correlation=number + 3)


def is_at_work(one: Event) -> bool:
    """Whether the event is the device's."""
    return bool(one["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"))


def changed(events: list[Event], chosen: Callable[[Event], bool], **values: object) -> list[Event]:
    """The events, of which the chosen have other values; a callable makes one of the old value."""
    return [
        {**one, **{key: value(one[key]) if callable(value) else value for key, value in values.items()}}
        if chosen(one)
        else one
        for one in events
    ]


def written(path: Path, events: list[Event], *, rank: int | None = 0, **keys: object) -> Path:
    """The path of a file with these events."""
    about = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    path.write_text(json.dumps({"schemaVersion": 1, **about, **keys, "traceEvents": events}))
    return path


def read(folder: Path, events: list[Event], *, rank: int = 0, **keys: object) -> Timeline:
    """The Timeline of these events, read from a file."""
    return read_trace(written(folder / "rank0.json", events, rank=rank, **keys))
