"""Compares the limits of a process (ulimit) and of its control groups with what ranks need."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from bench.errors import InfrastructureFailed
from bench.machine.container import own_groups
from bench.machine.limits.demand import Demand, Reading, size_words
from bench.machine.preflight import PROCESS_BYTES, left_in_groups

FILES, FILES_PER_PEER = 256, 8
"""Files that a rank opens by itself, and for each other rank: gloo connects all ranks of each process group, and a mesh
of three axes makes up to 8. Measured: a rank of `ddp` on a CPU has 20 files open."""
THREADS = 64
"""Threads of a rank, an estimate. Measured: up to 20 on a CPU; CUDA, NCCL's proxies and torch's watchdogs add
theirs."""
WORKER_THREADS = 4
STACK_BYTES = 2 << 20
"""A thread's stack in glibc if the limit is unlimited (pthread_create's page, x86-64)."""
GPU_HOST_BYTES = 1_000_000_000
"""Host memory of a rank on a GPU, an estimate: the libraries of torch and CUDA, and pinned buffers."""
_CAP_IPC_LOCK, _CAP_SYS_RESOURCE = 14, 24

Environment = Mapping[str, str]


def locked_memory(_demand: Demand, _environment: Environment, root: Path) -> Reading:
    """Compare RLIMIT_MEMLOCK with what InfiniBand needs; without a device or with CAP_IPC_LOCK nothing is needed."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    has_devices = any((root / "sys/class/infiniband").glob("*"))
    needed = "unlimited" if has_devices and not _has_capability(root, _CAP_IPC_LOCK) else None
    return Reading(value=_size(soft), needed=needed, is_enough=needed is None or soft == resource.RLIM_INFINITY)


def open_files(demand: Demand, _environment: Environment, _root: Path) -> Reading:
    """Compare RLIMIT_NOFILE with the connections of a rank."""
    return _counted(resource.RLIMIT_NOFILE, FILES + FILES_PER_PEER * demand.world, "a rank")


def require_files(needed: int, whose: str) -> None:
    """Raise this process's limit of open files (RLIMIT_NOFILE) to the hard limit if it is too low.

    Raises:
        InfrastructureFailed: the hard limit is also too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InfrastructureFailed(
            f"{whose} needs {needed} open files, and the hard limit is {hard}; raise it (`ulimit -Hn`, or LimitNOFILE"
            " of the service), or use fewer nodes"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))


def processes(demand: Demand, _environment: Environment, root: Path) -> Reading:
    """Compare RLIMIT_NPROC, which counts all threads of the user, with those of the ranks; root is exempt."""
    reading = _counted(resource.RLIMIT_NPROC, _threads(demand), _ranks(demand))
    is_exempt = os.geteuid() == 0 or _has_capability(root, _CAP_SYS_RESOURCE)
    return Reading(value=reading.value, needed=reading.needed, is_enough=reading.is_enough or is_exempt)


def stack(_demand: Demand, _environment: Environment, _root: Path) -> Reading:
    """Compare RLIMIT_STACK with the usual stack of a thread."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    is_enough = soft == resource.RLIM_INFINITY or soft >= STACK_BYTES
    return Reading(value=_size(soft), needed=f"at least {size_words(STACK_BYTES)}", is_enough=is_enough)


def address_space(demand: Demand, _environment: Environment, _root: Path) -> Reading:
    """Return RLIMIT_AS, which must not limit ranks on GPUs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_enough = soft == resource.RLIM_INFINITY or not demand.is_on_gpus
    return Reading(value=_size(soft), needed="unlimited" if demand.is_on_gpus else None, is_enough=is_enough)


def core_files(demand: Demand, _environment: Environment, root: Path) -> Reading:
    """Return RLIMIT_CORE; ranks on GPUs map so much memory that their core files fill a disk.

    A pattern that begins with "|" hands cores to a program, which limits them itself.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    pattern = "core"
    with suppress(OSError):
        pattern = (root / "proc/sys/kernel/core_pattern").read_text().strip()
    is_file = soft != 0 and not pattern.startswith("|")
    return Reading(
        value=f"{_size(soft)}{f', written to {pattern}' if is_file else ''}",
        needed="0" if demand.is_on_gpus else None,
        is_enough=not (is_file and demand.is_on_gpus),
    )


def group_tasks(demand: Demand, _environment: Environment, root: Path) -> Reading:
    """Compare the tasks that the control groups still allow with the ranks' threads."""
    left = min(_tasks_left(root), default=None)
    if left is None:
        return Reading(value="unlimited")
    needed = _threads(demand)
    return Reading(value=f"{left:,} left", needed=f"{needed:,} for {_ranks(demand)}", is_enough=left >= needed)


def group_memory(demand: Demand, _environment: Environment, root: Path) -> Reading:
    """Compare the memory that the control groups still allow with the least that the ranks' processes take."""
    left_bytes = min(left_in_groups(root), default=None)
    if left_bytes is None:
        return Reading(value="unlimited")
    of_rank = GPU_HOST_BYTES if demand.is_on_gpus else PROCESS_BYTES
    needed_bytes = demand.ranks * (of_rank + demand.workers * PROCESS_BYTES)
    return Reading(
        value=f"{size_words(left_bytes)} left",
        needed=f"{size_words(needed_bytes)} for {_ranks(demand)}",
        is_enough=left_bytes >= needed_bytes,
    )


def _threads(demand: Demand) -> int:
    return demand.ranks * (THREADS + WORKER_THREADS * demand.workers)


def _ranks(demand: Demand) -> str:
    return "1 rank" if demand.ranks == 1 else f"{demand.ranks} ranks"


def _counted(limit: int, needed: int, whose: str) -> Reading:
    soft, hard = resource.getrlimit(limit)
    value = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    if hard != soft:
        value += f" (may be raised to {'unlimited' if hard == resource.RLIM_INFINITY else f'{hard:,}'})"
    is_enough = soft == resource.RLIM_INFINITY or soft >= needed
    return Reading(value=value, needed=f"{needed:,} for {whose}", is_enough=is_enough)


def _size(limit_bytes: int) -> str:
    return "unlimited" if limit_bytes == resource.RLIM_INFINITY else size_words(limit_bytes)


def _has_capability(root: Path, number: int) -> bool:
    """Return whether this process has the capability; False if that is unknown."""
    with suppress(OSError):
        match = re.search(r"^CapEff:\s*([0-9a-f]+)$", (root / "proc/self/status").read_text(), re.MULTILINE)
        return match is not None and bool(int(match[1], 16) >> number & 1)
    return False


def _tasks_left(root: Path) -> Iterator[int]:
    """Yield how many tasks each control group with a limit still allows."""
    for _version, folder in own_groups("pids", root):
        with suppress(OSError, ValueError):  # No such group, or no limit: "max".
            limit, used = (int((folder / f"pids.{name}").read_text()) for name in ("max", "current"))
            yield max(0, limit - used)
