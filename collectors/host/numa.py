"""The memory of each of the host's NUMA nodes, and whether it went to those that wanted it."""

from __future__ import annotations

from collections.abc import Iterator

from collectors.catalogue import host
from collectors.host.kernel_files import KernelFiles
from collectors.host.part import Absent, Found

_FOLDER = "sys/devices/system/node"
_SWITCH = "proc/sys/vm/numa_stat"
_KINDS = {"total": "MemTotal:", "free": "MemFree:", "cached": "FilePages:"}
_OUTCOMES = {"hit": "numa_hit", "miss": "numa_miss"}
_CPUS = {"local": "local_node", "remote": "other_node"}


def read(files: KernelFiles) -> Iterator[Found]:
    """Bytes and allocations of each NUMA node."""
    is_counting = _is_counting(files)
    if not is_counting:
        yield Absent(f"NUMA: the kernel is told not to count allocations (/{_SWITCH} is 0); they are left out")
    for name in files.names(_FOLDER):
        numa = name.removeprefix("node")
        if not numa.isdecimal():
            continue
        try:
            held = dict(line.split()[2:4] for line in files.text(f"{_FOLDER}/{name}/meminfo").splitlines())
            counted = dict(line.split() for line in files.text(f"{_FOLDER}/{name}/numastat").splitlines())
        except FileNotFoundError:
            if name in files.names(_FOLDER):
                raise
            continue  # It went offline since.
        for kind, field in _KINDS.items():
            yield host.HOST_NUMA_MEMORY_BYTES.at(int(held[field]) * 1024, numa=numa, kind=kind)
        if not is_counting:
            continue
        for outcome, field in _OUTCOMES.items():
            yield host.HOST_NUMA_ALLOCATIONS.at(int(counted[field]), numa=numa, outcome=outcome)
        for cpu, field in _CPUS.items():
            yield host.HOST_NUMA_ALLOCATORS.at(int(counted[field]), numa=numa, cpu=cpu)


def _is_counting(files: KernelFiles) -> bool:
    try:
        return files.text(_SWITCH).strip() != "0"
    except OSError:  # Of a kernel that always does.
        return True
