"""The current state of the node: NUMA, clocks, links, free GPU memory, monitors and kernel settings.

Sources are /proc, /sys and NVML. Starts no CUDA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.machine.doctor.page import Entry
from bench.machine.gpus import Gpu, Nvml, read_memory
from bench.machine.preflight import holders_text
from collectors.dcgm import gpus_by_monitors, gpus_with_held_monitors, signs_of_dcgm
from collectors.nvml.inventory import gpu_at
from collectors.nvml.library import FieldSupport

# GPUs by NVML: clocks, PCIe links and free memory.


def free_memory(nvml: Nvml, gpus: Sequence[Gpu]) -> Iterator[Entry]:
    """Yield the free memory of each GPU, and the processes that hold the rest."""
    for now in read_memory(gpus, nvml):
        name = f"GPU {now.index}, memory free now"
        if now.free_bytes is None:
            yield Entry(name=name, reason=now.reason)
        else:
            yield Entry(name=name, value=now.free_bytes, unit="bytes")
        if now.holders:
            yield Entry(name=f"GPU {now.index}, processes", value=holders_text(now.holders))


def gpu_clocks(nvml: Nvml, gpus: Sequence[Gpu]) -> tuple[Entry, ...]:
    """Return each GPU's current and highest clocks of multiprocessors and memory; those of an idle GPU are low."""
    return _ask_each(nvml, gpus, _clocks)


def pcie_links(nvml: Nvml, gpus: Sequence[Gpu]) -> tuple[Entry, ...]:
    """Return current and highest generation and width of each GPU's PCIe link; an idle GPU's generation may be low."""
    return _ask_each(nvml, gpus, _pcie)


def _ask_each(nvml: Nvml, gpus: Sequence[Gpu], ask: Callable[[Nvml, Gpu, Any], Iterator[Entry]]) -> tuple[Entry, ...]:
    """Return the entries of `ask` for each GPU, given NVML, the GPU and its handle."""
    if not gpus:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return (Entry(name="GPUs", reason=f"NVML: {error}"),)
    entries: list[Entry] = []
    try:
        for gpu in gpus:
            try:
                handle = gpu_at(nvml, gpu.index).handle  # Of the whole GPU, even if MIG splits it.
            except nvml.NVMLError as error:
                entries.append(Entry(name=f"GPU {gpu.index}", reason=f"NVML: {error}"))
            else:
                entries += ask(nvml, gpu, handle)
    finally:
        nvml.nvmlShutdown()
    return tuple(entries)


def _clocks(nvml: Nvml, gpu: Gpu, handle: Any) -> Iterator[Entry]:
    for name, clock in (("SM", nvml.NVML_CLOCK_SM), ("memory", nvml.NVML_CLOCK_MEM)):
        for when, read in (("now", nvml.nvmlDeviceGetClockInfo), ("at most", nvml.nvmlDeviceGetMaxClockInfo)):
            title = f"GPU {gpu.index}, {name} clock {when}"
            try:
                yield Entry(name=title, value=read(handle, clock) * 1_000_000, unit="hertz")
            except nvml.NVMLError as error:
                yield Entry(name=title, reason=f"NVML: {error}")


def _pcie(nvml: Nvml, gpu: Gpu, handle: Any) -> Iterator[Entry]:
    title = f"GPU {gpu.index}, PCIe"
    try:
        generation, width = (
            nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        )
        best, widest = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
        yield Entry(name=title, value=f"generation {generation} x{width} now, {best} x{widest} at most")
    except nvml.NVMLError as error:
        yield Entry(name=title, reason=f"NVML: {error}")


# Performance monitors: whether DCGM or another client holds them, and what to do about it.

_RELEASE = "`dcgmi profile --pause` releases them, `dcgmi profile --resume` returns them to DCGM"


def monitors(fields: Sequence[FieldSupport], root: Path = Path("/")) -> tuple[Entry, ...]:
    """Return whether DCGM runs, and what that means for measurements here.

    Source: dcgmi-profile's page (pausing releases the resources to profilers); DCGM's profiling page (GPUs before
    Hopper have monitors for one owner at a time; from Hopper on, GPM is shared).
    """
    signs = signs_of_dcgm(root)
    dcgm = Entry(name="DCGM", value="; ".join(signs) or "none found")
    held_gpus = gpus_with_held_monitors(fields)
    other_gpus = {answer: gpus for answer, gpus in gpus_by_monitors(fields).items() if set(gpus) - set(held_gpus)}
    if held_gpus:
        holder = (
            "another client, perhaps this DCGM;"
            if signs
            else "a client that is not visible here, for example DCGM in another container or a profiler; if it is"
            " DCGM,"
        )
        text = f"{_named(held_gpus)}: held by {holder} {_RELEASE}; SM activity is missing meanwhile"
    elif signs and "not supported" in other_gpus:
        text = (
            f"{_named(other_gpus['not supported'])}: no GPM, so DCGM holds the monitors exclusively while it watches"
            f" fields 1001 and up, and profilers get no counters; {_RELEASE}"
        )
    elif "answers" in other_gpus:
        text = f"{_named(other_gpus['answers'])}: GPM answers, and no client holds them exclusively"
    else:
        return (dcgm,)
    return dcgm, Entry(name="performance monitors", value=text)


def _named(gpus: Sequence[str]) -> str:
    return f"GPU {gpus[0]}" if len(gpus) == 1 else f"GPUs {', '.join(gpus)}"


# The host by /proc and /sys: NUMA nodes, clocks, network and kernel settings. root: where /proc and /sys are.


def numa_nodes(root: Path = Path("/")) -> Iterator[Entry]:
    """Yield the CPUs and the memory of each NUMA node."""
    folders = _numbered(root / "sys/devices/system/node", "node")
    if not folders:
        yield Entry(name="NUMA", reason="/sys/devices/system/node lists no node")
    for folder in folders:
        name = f"NUMA node {folder.name.removeprefix('node')}"
        cpus = _line(root, folder / "cpulist", f"{name}, CPUs")
        yield cpus if cpus.value != "" else Entry(name=cpus.name, value="none")
        yield _kibibytes(root, folder / "meminfo", "MemTotal", f"{name}, memory")


def cpu_clocks(root: Path = Path("/")) -> Iterator[Entry]:
    """Yield the governor, the slowest and fastest current clock of all CPUs, and the highest possible clock."""
    folders = [cpu / "cpufreq" for cpu in _numbered(root / "sys/devices/system/cpu", "cpu")]
    governors = ", ".join(sorted(set(_texts(folders, "scaling_governor"))))
    now, most = (
        [int(text) * 1000 for text in _texts(folders, name) if text.isdecimal()]
        for name in ("scaling_cur_freq", "cpuinfo_max_freq")
    )
    if not now:  # If the kernel does not set the clocks, /proc/cpuinfo has the clocks that it reads from the CPU.
        text = "\n".join(_texts([root / "proc"], "cpuinfo"))
        now = [round(float(mhz) * 1e6) for mhz in re.findall(r"^cpu MHz\s*:\s*(\d+(?:\.\d+)?)$", text, re.M)]
    reason = "/sys/devices/system/cpu has no cpufreq: the host or its firmware sets the clocks"
    if governors:
        yield Entry(name="CPU governor", value=governors)
    else:
        yield Entry(name="CPU governor", reason=reason)
    slowest, fastest, highest = min(now, default=None), max(now, default=None), max(most, default=None)
    for name, hertz in (("now, slowest", slowest), ("now, fastest", fastest), ("at most", highest)):
        if hertz is None:
            yield Entry(name=f"CPU clock {name}", reason=reason)
        else:
            yield Entry(name=f"CPU clock {name}", value=hertz, unit="hertz")


def interfaces(root: Path = Path("/")) -> Iterator[Entry]:
    """Yield the speed of each network interface that is up."""
    folders = sorted((root / "sys/class/net").glob("*"))
    up = [folder for folder in folders if _texts([folder], "operstate") == ["up"]]
    if not up:
        yield Entry(name="network", value="no interface is up")
    for folder in up:
        megabits = "".join(_texts([folder], "speed"))  # Unreadable, or -1, if the driver has no speed.
        if megabits.isdecimal():
            yield Entry(name=folder.name, value=int(megabits) * 1_000_000, unit="bits_per_second")
        else:
            yield Entry(name=folder.name, reason="it is up, and its driver reports no speed")


def infiniband_ports(root: Path = Path("/")) -> Iterator[Entry]:
    """Yield state, rate and link layer of each InfiniBand port, RoCE included, in the kernel's words."""
    ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    if not ports:
        yield Entry(name="InfiniBand", value="no port")
    for port in ports:
        name = f"{port.parents[1].name}, port {port.name}"
        texts = [text for file in ("state", "rate", "link_layer") for text in _texts([port], file)]
        # The kernel writes a number before the state: "4: ACTIVE".
        value = ", ".join(re.sub(r"^\d+: ", "", text) for text in texts)
        yield Entry(name=name, value=value) if texts else Entry(name=name, reason="its files cannot be read")


def kernel_settings(root: Path = Path("/")) -> Iterator[Entry]:
    """Yield the kernel settings that can change a measurement."""
    pages = _line(root, root / "sys/kernel/mm/transparent_hugepage/enabled", "transparent huge pages")
    chosen = re.search(r"\[(\w+)\]", str(pages.value))  # As in "always [madvise] never".
    yield pages if chosen is None else Entry(name=pages.name, value=chosen[1])
    yield _kibibytes(root, root / "proc/meminfo", "SwapTotal", "swap")
    yield _kibibytes(root, root / "proc/meminfo", "SwapFree", "swap, free")
    yield _line(root, root / "proc/sys/vm/swappiness", "swappiness")
    balancing = _line(root, root / "proc/sys/kernel/numa_balancing", "NUMA balancing")
    if balancing.value is not None:
        balancing = Entry(name=balancing.name, value="off" if balancing.value == "0" else "on")
    yield balancing


def _texts(folders: Sequence[Path], name: str) -> list[str]:
    """Return the contents of the files of this name, skipping unreadable ones."""
    texts = []
    for folder in folders:
        with suppress(OSError):  # An offline CPU has no such file.
            texts.append((folder / name).read_text().strip())
    return texts


def _line(root: Path, path: Path, name: str) -> Entry:
    try:
        return Entry(name=name, value=path.read_text().strip())
    except OSError as error:
        return Entry(name=name, reason=f"/{path.relative_to(root)}: {error.strerror}")


def _kibibytes(root: Path, path: Path, field: str, name: str) -> Entry:
    """Return the bytes in a line such as `MemTotal: 1024 kB` (meaning KiB) of a file like /proc/meminfo."""
    text = _line(root, path, name)
    if text.value is None:
        return text
    match = re.search(rf"\b{field}:\s+(\d+) kB", str(text.value))
    if match is None:
        return Entry(name=name, reason=f"/{path.relative_to(root)} has no {field}")
    return Entry(name=name, value=int(match[1]) * 1024, unit="bytes")


def _numbered(folder: Path, prefix: str) -> list[Path]:
    """Return folders such as cpu0, cpu1, ..., in order of their numbers."""
    folders = [path for path in folder.glob(f"{prefix}*") if path.name.removeprefix(prefix).isdecimal()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix(prefix)))
