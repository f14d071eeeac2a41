"""Shared memory in /dev/shm: its size, and how much NCCL and data loaders need.

gloo needs none: torch builds it with TCP connections (gloo/transport/tcp).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.machine.limits.demand import Demand, Reading, size_words

NCCL_POOL_BYTES = 33_030_276
"""Bytes of each rank's proxy. Source: NCCL 2.30.7, ncclProxyOpsPool (proxy.h), which proxyProgressInit (proxy.cc)
makes."""
NCCL_CONNECTION_BYTES = 9_637_892
"""Bytes of each connection by shared memory: 512 kiB (LL), 4800 kiB (LL128) and 4 MiB (Simple), a page and a counter.
Source: NCCL 2.30.7, shmRecvSetup (transport/shm.cc) and the buffer sizes of init.cc. fallocate reserves all of it."""
NCCL_CONNECTIONS = 4
"""Connections of each rank if GPUs have no peer access: two channels, each with a neighbour on both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """The file system at /dev/shm. free_bytes: how much this process may still write."""

    size_bytes: int
    free_bytes: int


def find(root: Path = Path("/")) -> SharedMemory | None:
    """Return the size of /dev/shm; None if it is missing."""
    try:
        status = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return SharedMemory(size_bytes=status.f_blocks * status.f_frsize, free_bytes=status.f_bavail * status.f_frsize)


def nccl_bytes(demand: Demand) -> int:
    """Return the bytes that NCCL allocates for these ranks if they reach each other only by shared memory."""
    if not demand.uses_nccl or demand.ranks < 2:
        return 0
    return demand.ranks * (NCCL_POOL_BYTES + NCCL_CONNECTIONS * NCCL_CONNECTION_BYTES)


def read(demand: Demand, _environment: Mapping[str, str], root: Path) -> Reading:
    """Compare the free part of /dev/shm with what ranks need."""
    parts = {"NCCL": nccl_bytes(demand), "data loaders": demand.loader_bytes}
    needed_bytes = sum(parts.values())
    needed = None
    if needed_bytes:
        users = " and ".join(f"{size_words(size)} by {name}" for name, size in parts.items() if size)
        needed = f"{size_words(needed_bytes)} for {demand.ranks} ranks ({users})"
    memory = find(root)
    if memory is None:
        return Reading(value="missing", needed=needed, is_enough=needed is None)
    return Reading(
        value=words(memory),
        needed=needed,
        is_enough=memory.free_bytes >= needed_bytes,
    )


def words(memory: SharedMemory) -> str:
    """Return size and free part in words."""
    return f"{size_words(memory.size_bytes)}, {size_words(memory.free_bytes)} free"
