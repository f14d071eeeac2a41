"""The state of the node at this moment: NUMA, clocks, links, free GPU memory, monitors and kernel settings.

Sources are /proc, /sys and NVML. Starts no CUDA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from bench.doctor.page import Entry
from bench.errors import say
from bench.machine.gpus import Gpu, Nvml, read_gpus, read_memory
from bench.machine.preflight import told_holders
from collectors.dcgm.host_engine import gpus_by_monitors, gpus_with_held_monitors, signs_of_dcgm
from collectors.nvml.library import FieldSupport

# GPUs by NVML: clocks, PCIe links and free memory.


class StateNvml(Nvml, Protocol):
    """What is used of the module `pynvml` beyond `bench.machine.gpus.Nvml`."""

    NVML_CLOCK_SM: int
    NVML_CLOCK_MEM: int

    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int) -> int: ...  # noqa: N802  # NVML's own names.
    def nvmlDeviceGetMaxClockInfo(self, handle: Any, clock: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any) -> int: ...  # noqa: N802


def installed_nvml() -> StateNvml:
    """Return the module `pynvml`."""
    import pynvml  # Only here: not needed where another module is handed in.

    return cast(StateNvml, pynvml)


def hidden_gpus(nvml: StateNvml, environment: Mapping[str, str]) -> tuple[Entry, ...]:
    """Return why CUDA shows fewer GPUs than the node has; empty if it shows all."""
    found = read_gpus(nvml, environment, on_late=say)
    return () if found.hidden is None else (Entry(name="GPUs that CUDA shows", value=found.hidden.text),)


def free_memory(nvml: StateNvml, gpus: Sequence[Gpu]) -> Iterator[Entry]:
    """Yield the free memory of each GPU, and the processes that hold the rest."""
    for now in read_memory(gpus, nvml):
        name = f"GPU {now.index}, memory free now"
        if now.free_bytes is None:
            yield Entry(name=name, reason=now.reason)
        else:
            yield Entry(name=name, value=now.free_bytes, unit="bytes")
        if now.holders:
            yield Entry(name=f"GPU {now.index}, processes", value=told_holders(now.holders))


def gpu_clocks(nvml: StateNvml, gpus: Sequence[Gpu]) -> tuple[Entry, ...]:
    """Return each GPU's clocks of multiprocessors and memory, now and at most; those of an idle GPU are low."""
    return _ask(nvml, gpus, _clocks)


def pcie_links(nvml: StateNvml, gpus: Sequence[Gpu]) -> tuple[Entry, ...]:
    """Return generation and width of each GPU's PCIe link, now and at most; an idle GPU's generation may be low."""
    return _ask(nvml, gpus, _pcie)


def _ask(
    nvml: StateNvml, gpus: Sequence[Gpu], ask: Callable[[StateNvml, Gpu, Any], Iterator[Entry]]
) -> tuple[Entry, ...]:
    if not gpus:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return (Entry(name="GPUs", reason=f"NVML: {error}"),)
    try:
        return tuple(entry for gpu in gpus for entry in _ask_one(nvml, gpu, ask))
    finally:
        nvml.nvmlShutdown()


def _ask_one(nvml: StateNvml, gpu: Gpu, ask: Callable[[StateNvml, Gpu, Any], Iterator[Entry]]) -> Iterator[Entry]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
    except nvml.NVMLError as error:
        yield Entry(name=f"GPU {gpu.index}", reason=f"NVML: {error}")
        return
    yield from ask(nvml, gpu, handle)


def _clocks(nvml: StateNvml, gpu: Gpu, handle: Any) -> Iterator[Entry]:
    for name, clock in (("SM", nvml.NVML_CLOCK_SM), ("memory", nvml.NVML_CLOCK_MEM)):
        for when, read in (("now", nvml.nvmlDeviceGetClockInfo), ("at most", nvml.nvmlDeviceGetMaxClockInfo)):
            title = f"GPU {gpu.index}, {name} clock {when}"
            try:
                yield Entry(name=title, value=read(handle, clock) * 1_000_000, unit="hertz")
            except nvml.NVMLError as error:
                yield Entry(name=title, reason=f"NVML: {error}")


def _pcie(nvml: StateNvml, gpu: Gpu, handle: Any) -> Iterator[Entry]:
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


# Performance monitors: whether a DCGM or another client holds them, and what to do about it.

_NAME = "performance monitors"
_RELEASE = "`dcgmi profile --pause` frees them, `dcgmi profile --resume` gives them back"


def monitors(standings: Sequence[FieldSupport], root: Path = Path("/")) -> tuple[Entry, ...]:
    """Return whether a DCGM runs, and what that means for measurements here.

    Source: dcgmi-profile's page (pausing releases the resources to profilers); DCGM's page of profiling (GPUs before
    Hopper have monitors for one owner at a time, from Hopper on GPM is shared).
    """
    signs = signs_of_dcgm(root)
    return (Entry(name="DCGM", value="; ".join(signs) or "none is seen"), *_monitors(signs, standings))


def _monitors(signs: Sequence[str], standings: Sequence[FieldSupport]) -> Iterator[Entry]:
    held = gpus_with_held_monitors(standings)
    others = {answer: gpus for answer, gpus in gpus_by_monitors(standings).items() if set(gpus) - set(held)}
    if held:
        yield Entry(name=_NAME, value=f"{_named(held)}: held by {_holder(signs)}; activity of SMs is a gap meanwhile")
    elif signs and "not supported" in others:
        yield Entry(
            name=_NAME,
            value=f"{_named(others['not supported'])}: no GPM, so DCGM holds them alone while it watches fields 1001"
            f" and up, and profilers' counters are refused; {_RELEASE}",
        )
    elif "answers" in others:
        yield Entry(name=_NAME, value=f"{_named(others['answers'])}: GPM answers, and nobody holds them alone")


def _holder(signs: Sequence[str]) -> str:
    if signs:
        return f"another client, perhaps this DCGM; {_RELEASE}"
    return (
        "a client that is not seen here, such as a DCGM in another container or a profiler; where it is DCGM,"
        f" {_RELEASE}"
    )


def _named(gpus: Sequence[str]) -> str:
    return f"GPU {gpus[0]}" if len(gpus) == 1 else f"GPUs {', '.join(gpus)}"


def numa_nodes(root: Path = Path("/")) -> tuple[Entry, ...]:
    """Return the CPUs and the memory of each NUMA node."""
    folders = _numbered(root / "sys/devices/system/node", "node")
    if not folders:
        return (Entry(name="NUMA", reason="/sys/devices/system/node tells of no node"),)
    return tuple(entry for folder in folders for entry in _numa_node(root, folder))


def _numa_node(root: Path, folder: Path) -> Iterator[Entry]:
    name = f"NUMA node {folder.name.removeprefix('node')}"
    cpus = _line(root, folder / "cpulist", f"{name}, CPUs")
    yield cpus if cpus.value != "" else Entry(name=cpus.name, value="none")
    yield _kibibytes(root, folder / "meminfo", "MemTotal", f"{name}, memory")


def cpu_clocks(root: Path = Path("/")) -> tuple[Entry, ...]:
    """Return the governor, the slowest and fastest clock of all CPUs now, and the highest possible."""
    folders = [cpu / "cpufreq" for cpu in _numbered(root / "sys/devices/system/cpu", "cpu")]
    governors = sorted(set(_texts(folders, "scaling_governor")))
    now = _hertz(folders, "scaling_cur_freq") or _cpuinfo_hertz(root)
    most = _hertz(folders, "cpuinfo_max_freq")
    reason = "/sys/devices/system/cpu has no cpufreq: the host or its firmware sets the clocks"
    return (
        _unless_none("CPU governor", ", ".join(governors) or None, reason),
        _unless_none("CPU clock now, slowest", min(now, default=None), reason),
        _unless_none("CPU clock now, fastest", max(now, default=None), reason),
        _unless_none("CPU clock at most", max(most, default=None), reason),
    )


def _unless_none(name: str, value: str | int | None, reason: str) -> Entry:
    if value is None:
        return Entry(name=name, reason=reason)
    return Entry(name=name, value=value, unit="hertz" if isinstance(value, int) else None)


def _texts(folders: list[Path], name: str) -> list[str]:
    """Return the texts of the files of this name, skipping those that cannot be read."""
    found = []
    for folder in folders:
        try:
            found.append((folder / name).read_text().strip())
        except OSError:  # A CPU that is offline has no such file.
            continue
    return found


def _hertz(folders: list[Path], name: str) -> list[int]:
    return [int(text) * 1000 for text in _texts(folders, name) if text.isdecimal()]


def _cpuinfo_hertz(root: Path) -> list[int]:
    """Return the clocks in /proc/cpuinfo, for machines whose kernel does not set them and reads them from the CPU."""
    text = "\n".join(_texts([root / "proc"], "cpuinfo"))
    return [round(float(megahertz) * 1e6) for megahertz in re.findall(r"^cpu MHz\s*:\s*(\d+(?:\.\d+)?)$", text, re.M)]


def interfaces(root: Path = Path("/")) -> tuple[Entry, ...]:
    """Return the speed of each network interface that is up."""
    found = [
        _interface(folder)
        for folder in sorted((root / "sys/class/net").glob("*"))
        if _texts([folder], "operstate") == ["up"]
    ]
    return tuple(found) or (Entry(name="network", value="no interface is up"),)


def _interface(folder: Path) -> Entry:
    speeds = _texts([folder], "speed")  # Unreadable, or -1, if the driver has no speed.
    if not (speeds and speeds[0].isdecimal()):
        return Entry(name=folder.name, reason="it is up, and its driver names no speed")
    return Entry(name=folder.name, value=int(speeds[0]) * 1_000_000, unit="bits_per_second")


def infiniband_ports(root: Path = Path("/")) -> tuple[Entry, ...]:
    """Return state, rate and link layer of each InfiniBand port, RoCE included, in the kernel's words."""
    ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    if not ports:
        return (Entry(name="InfiniBand", value="no port"),)
    return tuple(_port(port) for port in ports)


def _port(port: Path) -> Entry:
    name = f"{port.parents[1].name}, port {port.name}"
    words = [text for part in ("state", "rate", "link_layer") for text in _texts([port], part)]
    if not words:
        return Entry(name=name, reason="its files cannot be read")
    return Entry(name=name, value=", ".join(re.sub(r"^\d+: ", "", word) for word in words))


def kernel_settings(root: Path = Path("/")) -> tuple[Entry, ...]:
    """Return the kernel settings that can change a measurement."""
    pages = _line(root, root / "sys/kernel/mm/transparent_hugepage/enabled", "transparent huge pages")
    if isinstance(pages.value, str) and (chosen := re.search(r"\[(\w+)\]", pages.value)):
        pages = Entry(name=pages.name, value=chosen[1])
    return (
        pages,
        _kibibytes(root, root / "proc/meminfo", "SwapTotal", "swap"),
        _kibibytes(root, root / "proc/meminfo", "SwapFree", "swap, free"),
        _line(root, root / "proc/sys/vm/swappiness", "swappiness"),
        _numa_balancing(root),
    )


def _numa_balancing(root: Path) -> Entry:
    entry = _line(root, root / "proc/sys/kernel/numa_balancing", "NUMA balancing")
    return entry if entry.value is None else Entry(name=entry.name, value="off" if entry.value == "0" else "on")


def _line(root: Path, path: Path, name: str) -> Entry:
    try:
        return Entry(name=name, value=path.read_text().strip())
    except OSError as error:
        return Entry(name=name, reason=f"/{path.relative_to(root)}: {error.strerror}")


def _kibibytes(root: Path, path: Path, field: str, name: str) -> Entry:
    """Return the bytes in a line such as `MemTotal: 1024 kB` (meaning KiB) of a file like /proc/meminfo."""
    whole = _line(root, path, name)
    if not isinstance(whole.value, str):
        return whole
    found = re.search(rf"\b{field}:\s+(\d+) kB", whole.value)
    if found is None:
        return Entry(name=name, reason=f"/{path.relative_to(root)} has no {field}")
    return Entry(name=name, value=int(found[1]) * 1024, unit="bytes")


def _numbered(folder: Path, prefix: str) -> list[Path]:
    """Return folders such as cpu0, cpu1, ..., in order of their numbers."""
    found = [path for path in folder.glob(f"{prefix}*") if path.name.removeprefix(prefix).isdecimal()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(prefix)))
