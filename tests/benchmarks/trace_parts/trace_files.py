"""Writes traces of any length as kineto lays them out, with the answers that they must give.

The mix is that of a training on a GPU: of nine events three are operators, two calls of the driver, one a kernel, and
three the arrows between them.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.trace_parts.trace_mix import BEGUN_NS, Operator, busy_ns, operators

STEPS = 5
EVENTS_OF_AN_OPERATOR = 9
BASE_NS = 1711964646000000000
COMPUTE_STREAM, COMMUNICATION_STREAM = 7, 20
OPERATORS = tuple(
    (outer, inner)
    for outer in ("aten::linear", "aten::layer_norm", "aten::gelu", "aten::dropout", "aten::softmax", "aten::add_")
    for inner in ("aten::addmm", "aten::native_layer_norm", "aten::empty", "aten::as_strided", "aten::copy_")
)
KERNELS = tuple(
    f"void at::native::vectorized_elementwise_kernel<{width}, at::native::{functor}<c10::BFloat16, c10::BFloat16,"
    " float>, std::array<char*, 3ul> >(int, at::native::BinaryFunctor<float, float, float>, std::array<char*, 3ul>)"
    for width in range(1, 40)
    for functor in ("CUDAFunctor_add", "MulFunctor", "GeluCUDAKernelImpl", "AUnaryFunctor")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the written trace holds, over all its length."""

    events: int
    size_bytes: int
    compute_ns: int
    communication_ns: int
    overlap_ns: int


def write(path: Path, *, events: int, rank: int = 0, ranks: int = 1) -> Truth:
    """Write a trace of about so many events, of one of so many ranks."""
    count, written = max(STEPS, events // EVENTS_OF_AN_OPERATOR), 1
    with path.open("w", encoding="ascii", buffering=1 << 20) as file:
        file.write(_head(rank, ranks))
        written += _write_host(file, count, rank)
        written += _write_device(file, count, rank, ranks)
        file.write(_tail(path))
    compute_ns, communication_ns, overlap_ns = busy_ns(count, rank)
    return Truth(
        events=written,
        size_bytes=path.stat().st_size,
        compute_ns=compute_ns,
        communication_ns=communication_ns,
        overlap_ns=overlap_ns,
    )


def _write_host(file: io.TextIOBase, count: int, rank: int) -> int:
    """Operators and steps, as kineto writes them first; how many."""
    written, in_step = 0, -(-count // STEPS)
    begun_ns = BEGUN_NS
    for at in operators(count, rank):
        thread, number = 2910249 + rank, at.number
        outer, inner = OPERATORS[number % len(OPERATORS)]
        if at.is_collective:
            outer, inner = "c10d::allreduce_", "record_param_comms"
        for depth, name in enumerate((outer, inner, "aten::view")):
            start_ns = at.called_ns + 700 * depth
            dims = "[[8, 2048, 4096], [4096, 4096], [4096]]" if depth < 2 else "[[8, 2048], []]"
            file.write(
                f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": {thread}, "tid": {thread},\n'
                f'    "ts": {_us(start_ns)}, "dur": {_us(at.returned_ns - 1000 * depth - start_ns)},\n'
                f'    "args": {{\n      "External id": {3 * number + depth},"Record function id": {3 * number + depth},'
                f' "Concrete Inputs": ["", "", ""], "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"],'
                f' "Input Strides": [[8388608, 4096, 1], [1, 4096], [1]], "Input Dims": {dims},'
                f' "Ev Idx": {3 * number + depth}\n    }}\n  }},\n'
            )
        written += 3
        if (number + 1) % in_step == 0 or number + 1 == count:
            file.write(
                f'  {{\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{number // in_step}",'
                f' "pid": {thread}, "tid": {thread},\n    "ts": {_us(begun_ns)},'
                f' "dur": {_us(at.returned_ns + 1 - begun_ns)},\n    "args": {{\n'
                f'      "External id": 1,"Record function id": 1, "Ev Idx": {3 * number}\n    }}\n  }},\n'
            )
            begun_ns, written = at.returned_ns + 1, written + 1
    return written


def _write_device(file: io.TextIOBase, count: int, rank: int, ranks: int) -> int:
    """Calls of the driver, the device's events and the arrows between them; how many."""
    for at in operators(count, rank):
        thread, number = 2910249 + rank, at.number
        looked, launch = 2 * number + 1000, 2 * number + 1001
        stream = COMMUNICATION_STREAM if at.is_collective else COMPUTE_STREAM
        _write_call(file, "cudaStreamIsCapturing", 317, at.launched_ns - 2_000, 930, thread, looked)
        _write_arrow(file, "f", thread, thread, at.launched_ns - 2_000, looked)
        called, code = ("cudaMemcpyAsync", 41) if at.is_copy else ("cudaLaunchKernel", 211)
        _write_call(file, called, code, at.launched_ns, 3_517, thread, launch)
        _write_arrow(file, "s", thread, thread, at.launched_ns, launch)
        _write_on_device(file, at, stream, launch, rank, ranks)
        _write_arrow(file, "f", rank, stream, at.start_ns, launch)
    return 6 * count


def _write_call(
    file: io.TextIOBase, name: str, code: int, start_ns: int, duration_ns: int, thread: int, correlation: int
) -> None:
    file.write(
        f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "{name}", "pid": {thread}, "tid": {thread},\n'
        f'    "ts": {_us(start_ns)}, "dur": {_us(duration_ns)},\n'
        f'    "args": {{\n      "External id": {correlation},      "cbid": {code}, "correlation": {correlation}\n'
        "    }\n  },\n"
    )


def _write_arrow(file: io.TextIOBase, phase: str, process: int, thread: int, at_ns: int, number: int) -> None:
    end = ', "bp": "e"' if phase == "f" else ""
    file.write(
        f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {process}, "tid": {thread}, "ts": {_us(at_ns)},\n'
        f'    "cat": "ac2g", "name": "ac2g"{end}\n  }},\n'
    )


def _write_on_device(file: io.TextIOBase, at: Operator, stream: int, correlation: int, rank: int, ranks: int) -> None:
    if at.is_copy:
        category, name = "gpu_memcpy", "Memcpy DtoD (Device -> Device)"
        args = '      "bytes": 8388608, "memory bandwidth (GB/s)": 912.4017857142857'
    else:
        category, name = "kernel", KERNELS[at.number % len(KERNELS)]
        args = (
            '      "registers per thread": 40,      "shared memory": 400,      "blocks per SM": 4.740741,'
            '      "warps per SM": 75.851852,      "grid": [512, 1, 1],      "block": [512, 1, 1],'
            '      "est. achieved occupancy %": 75'
        )
    if at.is_collective:
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        args += (
            ', "Collective name": "allreduce", "In msg nelems": 6637568, "Out msg nelems": 6637568,'
            f' "Group size": {ranks}, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]",'
            ' "Process Group Name": "0", "Process Group Description": "default_pg",'
            f' "Process Group Ranks": "{list(range(ranks))}", "Seq": {at.number // 20}'
        )
    file.write(
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {rank}, "tid": {stream},\n'
        f'    "ts": {_us(at.start_ns)}, "dur": {_us(at.duration_ns)},\n'
        f'    "args": {{\n      "External id": {correlation},      "queued": 0, "device": {rank}, "context": 1,'
        f'      "stream": {stream}, "correlation": {correlation},{args}\n    }}\n  }},\n'
    )


def _head(rank: int, ranks: int) -> str:
    groups = f'[{{"pg_name": "0", "pg_desc": "default_pg", "pg_size": {ranks}, "ranks": {list(range(ranks))}}}]'
    return (
        '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {\n      "id": 0, "name": "NVIDIA A100-SXM4-80GB",'
        ' "totalGlobalMem": 85097971712\n    }\n  ],\n'
        f'  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {ranks}, "pg_count": 1,'
        f' "pg_config": {groups}, "nccl_version": "2.20.5"}},\n'
        '  "record_shapes": 1,\n  "traceEvents": [\n'
    )


def _tail(path: Path) -> str:
    return (
        '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
        f'    "pid": "", "tid": "", "ts": {_us(BEGUN_NS)}\n  }}\n  ],\n'
        f'  "traceName": "{path}",\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE_NS}\n}}'
    )


def _us(time_ns: int) -> str:
    """Nanoseconds as the decimal microseconds that kineto writes."""
    return f"{time_ns // 1000}.{time_ns % 1000:03}"
