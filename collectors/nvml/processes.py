"""The processes that compute on a GPU, so that a rank finds its GPU by its pid."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectors.nvml.library import Nvml

_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""Of the host itself. Source: include/linux/proc_ns.h, PROC_PID_INIT_INO (0xEFFFFFFC)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process with a compute context on a GPU.

    pid: as the driver sees it, which is the host's number and not that of a container. gpu: NVML's index.
    instance: which part of a GPU that MIG split, None for the whole. memory_bytes: None where the driver does not tell.
    """

    pid: int
    gpu: str
    uuid: str
    instance: str | None = None
    memory_bytes: int | None = None


def names_all_processes(proc: Path = Path("/proc")) -> bool:
    """Whether the driver names to this process all that compute: not in a container with PIDs of its own."""
    try:
        return str((proc / "self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def processes_on(
    nvml: Nvml, handle: Any, *, gpu: str, uuid: str, instance: str | None = None
) -> tuple[GpuProcess, ...]:
    """The processes on a GPU or on a part of one."""
    return tuple(
        GpuProcess(pid=one.pid, gpu=gpu, uuid=uuid, instance=instance, memory_bytes=one.usedGpuMemory)
        for one in nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    )
