"""Writes a Timeline of a device as kineto writes a trace, so that it can be read again."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec

from collectors.traces.timeline import ABSENT, KINDS, SpanKind, Timeline

BASE_NS = 1_711_964_646_000_000_000
CATEGORIES: dict[SpanKind, str] = {
    "compute": "kernel",
    "communication": "kernel",
    "copy": "gpu_memcpy",
    "host": "cpu_op",
    "step": "user_annotation",
    "launch": "cuda_runtime",
    "wait": "cuda_sync",
}
DTYPES = {"float32": "Float", "bfloat16": "BFloat16"}


def write_trace(timeline: Timeline, path: Path) -> None:
    """The trace as JSON.gz."""
    trace = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": timeline.rank, "world_size": timeline.about.world_size},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": [_event(timeline, row) for row in range(timeline.start_ns.size)],
    }
    path.write_bytes(gzip.compress(msgspec.json.encode(trace)))


def _event(timeline: Timeline, row: int) -> dict[str, Any]:
    correlation = int(timeline.correlation[row])
    arguments: dict[str, Any] = {} if correlation == ABSENT else {"correlation": correlation}
    if timeline.call[row] != ABSENT:
        call = timeline.calls[timeline.call[row]]
        arguments |= {"Collective name": call.collective}
        if call.group is not None:
            arguments |= {"Process Group Name": call.group, "Process Group Ranks": str(list(call.ranks))}
        if call.dtype is not None:
            arguments |= {
                "dtype": DTYPES[call.dtype],
                "In msg nelems": call.given_elements,
                "Out msg nelems": call.filled_elements,
            }
    if timeline.sequence[row] != ABSENT:
        arguments |= {"Seq": int(timeline.sequence[row])}
    return {
        "ph": "X",
        "cat": CATEGORIES[KINDS[timeline.kind[row]]],
        "name": timeline.names[timeline.name[row]],
        "pid": 0,
        "tid": int(timeline.stream[row]),
        "ts": _microseconds(int(timeline.start_ns[row]) - BASE_NS),
        "dur": _microseconds(int(timeline.end_ns[row] - timeline.start_ns[row])),
        "args": arguments,
    }


def _microseconds(time_ns: int) -> msgspec.Raw:
    return msgspec.Raw(f"{time_ns // 1000}.{time_ns % 1000:03d}".encode())
