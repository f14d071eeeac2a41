"""How much memory and swap space the host has, and what holds it."""

from __future__ import annotations

from collections.abc import Iterator

from collectors.catalogue import host
from collectors.host.kernel_files import KernelFiles
from collectors.metric import Sample

_FIELDS = {
    "total": "MemTotal",
    "available": "MemAvailable",
    "free": "MemFree",
    "cached": "Cached",
    "shared": "Shmem",
    "buffers": "Buffers",
}
"""Our kinds and the lines of /proc/meminfo."""


def read(files: KernelFiles) -> Iterator[Sample]:
    """Bytes of each kind."""
    held = {line.partition(":")[0]: _bytes(line) for line in files.text("proc/meminfo").splitlines()}
    for kind, field in _FIELDS.items():
        yield host.HOST_MEMORY_BYTES.at(held[field], kind=kind)
    yield host.HOST_MEMORY_BYTES.at(held["MemTotal"] - held["MemAvailable"], kind="used")
    # What is on its way to the disk is no longer called dirty, and not yet safe.
    yield host.HOST_MEMORY_BYTES.at(held["Dirty"] + held["Writeback"], kind="dirty")
    yield host.HOST_SWAP_BYTES.at(held["SwapTotal"], kind="total")
    yield host.HOST_SWAP_BYTES.at(held["SwapTotal"] - held["SwapFree"], kind="used")


def _bytes(line: str) -> int:
    """Of a line such as "MemFree: 512 kB", where the kernel means KiB; a few lines are plain numbers."""
    number, *unit = line.partition(":")[2].split()
    return int(number) * (1024 if unit else 1)
