"""The host as a whole, from its kernel: identity, CPU time, load, memory, swap, NUMA, paging, pressure, clock."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from importlib import metadata

from collectors.host.procfs import ClockState, HostAnswer, KernelFiles
from collectors.metrics import host
from collectors.metrics.metric import Sample
from workloads.cost_models.absent import Absent

_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""In the order of /proc/stat. The two guest times after them are left out: `user` and `nice` include them."""


class CpuTime:
    """Reads the total time of all CPUs by mode, from /proc/stat.

    The kernel's `idle` and `iowait` may fall slightly, as its documentation says. Prometheus would take this for a
    counter reset, so each mode keeps its highest value until the kernel exceeds it.
    """

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def read(self, files: KernelFiles) -> Iterator[Sample]:
        """Return the seconds in each mode since the host's start."""
        name, *ticks = files.text("proc/stat").partition("\n")[0].split()
        if name != "cpu":
            raise ValueError(f"/proc/stat begins with {name!r}")
        for mode, count in zip(_MODES, ticks, strict=False):
            highest = self._highest[mode] = max(int(count), self._highest.get(mode, 0))
            yield host.HOST_CPU_SECONDS.at(highest / files.ticks_per_s, mode=mode)


def read_identity(files: KernelFiles) -> Iterator[Sample]:
    """Return the info of the node: names and versions of its host, system and kernel, and this program's version."""
    release = dict(line.split("=", 1) for line in _text_if_any(files, "etc/os-release").splitlines() if "=" in line)
    yield host.NODE_INFO.at(
        1,
        host=files.text("proc/sys/kernel/hostname").strip(),
        os=release.get("PRETTY_NAME", "").strip('"'),
        kernel=files.text("proc/sys/kernel/osrelease").strip(),
        driver=_text_if_any(files, "sys/module/nvidia/version").strip(),
        version=own_version() or "",
        python=platform.python_version(),
    )


def own_version() -> str | None:
    """Return the version of this program; None if it runs from its source tree without being installed."""
    try:
        return metadata.version("parallel-observatory")
    except metadata.PackageNotFoundError:
        return None


def _text_if_any(files: KernelFiles, path: str) -> str:
    try:
        return files.text(path)
    except FileNotFoundError:
        return ""


def read_load(files: KernelFiles) -> Iterator[Sample]:
    """Return the number of tasks that ran or waited to run: the kernel's average over the last minute."""
    yield host.HOST_LOAD.at(float(files.text("proc/loadavg").split()[0]))


# Memory and swap space.

_FIELDS = {
    "total": "MemTotal",
    "available": "MemAvailable",
    "free": "MemFree",
    "cached": "Cached",
    "shared": "Shmem",
    "buffers": "Buffers",
}
"""Lines of /proc/meminfo, by our kinds."""


def read_memory(files: KernelFiles) -> Iterator[Sample]:
    """Return the bytes of memory and swap space, by kind."""
    sizes = {}
    for line in files.text("proc/meminfo").splitlines():
        name, _, amount = line.partition(":")
        number, *unit = amount.split()  # "MemFree: 512 kB", where kB means KiB; a few lines are plain numbers.
        sizes[name] = int(number) * (1024 if unit else 1)
    for kind, field in _FIELDS.items():
        yield host.HOST_MEMORY_BYTES.at(sizes[field], kind=kind)
    yield host.HOST_MEMORY_BYTES.at(sizes["MemTotal"] - sizes["MemAvailable"], kind="used")
    # Pages that are being written no longer count as Dirty, but are not on disk yet.
    yield host.HOST_MEMORY_BYTES.at(sizes["Dirty"] + sizes["Writeback"], kind="dirty")
    yield host.HOST_SWAP_BYTES.at(sizes["SwapTotal"], kind="total")
    yield host.HOST_SWAP_BYTES.at(sizes["SwapTotal"] - sizes["SwapFree"], kind="used")


_NUMA_FOLDER = "sys/devices/system/node"
_SWITCH = "proc/sys/vm/numa_stat"
_KINDS = {"total": "MemTotal:", "free": "MemFree:", "cached": "FilePages:"}
_OUTCOMES = {"hit": "numa_hit", "miss": "numa_miss"}
_CPUS = {"local": "local_node", "remote": "other_node"}


def read_numa(files: KernelFiles) -> Iterator[HostAnswer]:
    """Return the bytes of each NUMA node, and its allocations by outcome and by the requesting CPU."""
    try:
        is_counting = files.text(_SWITCH).strip() != "0"
    except OSError:  # A kernel without this switch always counts.
        is_counting = True
    if not is_counting:
        yield Absent(f"NUMA: the kernel is set not to count allocations (/{_SWITCH} is 0); they are left out")
    for name in files.names(_NUMA_FOLDER):
        numa = name.removeprefix("node")
        if not numa.isdecimal():
            continue
        try:
            sizes = dict(line.split()[2:4] for line in files.text(f"{_NUMA_FOLDER}/{name}/meminfo").splitlines())
            counts = dict(line.split() for line in files.text(f"{_NUMA_FOLDER}/{name}/numastat").splitlines())
        except FileNotFoundError:
            if name in files.names(_NUMA_FOLDER):
                raise
            continue  # The node went offline meanwhile.
        for kind, field in _KINDS.items():
            yield host.HOST_NUMA_MEMORY_BYTES.at(int(sizes[field]) * 1024, numa=numa, kind=kind)
        if not is_counting:
            continue
        for outcome, field in _OUTCOMES.items():
            yield host.HOST_NUMA_ALLOCATIONS.at(int(counts[field]), numa=numa, outcome=outcome)
        for cpu, field in _CPUS.items():
            yield host.HOST_NUMA_ALLOCATORS.at(int(counts[field]), numa=numa, cpu=cpu)


# Page faults and swapping.

_SWAPPED = {"in": "pswpin", "out": "pswpout"}


def read_paging(files: KernelFiles) -> Iterator[HostAnswer]:
    """Return page faults and swapped bytes since the host's start.

    Minor faults are not derived: the kernel counts a major fault when its wait begins, but every fault at its end, so
    the difference falls while a disk is slow.
    """
    words = files.text("proc/vmstat").split()
    counts = dict(zip(words[::2], words[1::2], strict=True))
    yield host.HOST_PAGE_FAULTS.at(int(counts["pgfault"]))
    yield host.HOST_MAJOR_PAGE_FAULTS.at(int(counts["pgmajfault"]))
    if not counts.keys() >= set(_SWAPPED.values()):
        yield Absent("paging: the kernel was built without swap; bytes swapped are left out")
        return
    for direction, field in _SWAPPED.items():
        yield host.HOST_SWAPPED_BYTES.at(int(counts[field]) * files.page_bytes, direction=direction)


# Pressure stall information: how long tasks waited for CPU, memory, disks or interrupts.

_PRESSURE_FOLDER = "proc/pressure"
_UNDEFINED = ("cpu", "full")
"""The kernel does not define this value and writes zero."""


def read_pressure(files: KernelFiles) -> Iterator[Sample]:
    """Return the seconds in which some or all tasks were stalled, for each resource that this kernel reports."""
    for resource in files.names(_PRESSURE_FOLDER):
        for line in files.text(f"{_PRESSURE_FOLDER}/{resource}").splitlines():
            stalled, *figures = line.split()
            if (resource, stalled) != _UNDEFINED:
                total_us = dict(figure.split("=") for figure in figures)["total"]
                yield host.HOST_PRESSURE_SECONDS.at(int(total_us) / 1e6, resource=resource, stalled=stalled)


# The clock: its offset, its maximum error, and whether it is synchronised.

_UNSYNCHRONISED = 0x0040
_IN_NANOSECONDS = 0x2000
"""Bits of the status. Source: linux/timex.h, STA_UNSYNC and STA_NANO."""


def read_clock(ask: Callable[[], ClockState]) -> Iterator[Sample]:
    """Return the clock's offset, its maximum error, and whether it is synchronised.

    The offset is the remaining correction: near 0 if chrony corrects by frequency, whatever the error was.
    """
    state = ask()
    per_second = 1e9 if state.status & _IN_NANOSECONDS else 1e6
    yield host.HOST_CLOCK_OFFSET_SECONDS.at(state.offset / per_second)
    yield host.HOST_CLOCK_ERROR_SECONDS.at(state.max_error_us / 1e6)
    yield host.HOST_CLOCK_KEPT.at(0 if state.status & _UNSYNCHRONISED else 1)
