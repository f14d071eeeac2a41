"""Questions to a GPU that NVML answers with a function each, and their answers as samples in base units.

`collectors/nvml/fields.py` has the numbered fields, which NVML returns together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
from pynvml import (
    NVML_AFFINITY_SCOPE_NODE,
    NVML_CLOCK_MEM,
    NVML_CLOCK_SM,
    NVML_CLOCK_VIDEO,
    NVML_TEMPERATURE_GPU,
    nvmlMemory_v2,
)

from collectors.metrics import gpu as gpu_metrics
from collectors.metrics.gpu import GPU_INFO
from collectors.metrics.metric import Metric, Sample
from collectors.nvml.fields import link_bytes_per_second
from collectors.nvml.inventory import pci_address
from collectors.nvml.library import FieldSupportTable, Nvml, NVMLError, says_unsupported

# The fabric of NVLink switches, and a GPU's progress in joining it.

_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}
"""Source: nvml.h, nvmlGpuFabricState_t; 0 means a GPU without a fabric."""


def fabric(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    """Return the GPU's fabric state and clique; nothing if it has no fabric.

    Uses the second version of NVML's structure, which drivers have supported since 535.
    """
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    state = _STATES.get(info.state)
    if state is None:
        return []
    return [gpu_metrics.GPU_FABRIC.at(1, gpu=gpu, state=state, clique=str(info.cliqueId))]


# Identity and setup of a GPU, as labels of an info series.

UNKNOWN = "unknown"
_NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""Source: nvml.h, nvmlNvlinkVersion_t."""


class Identity:
    """The labels of a GPU's info series, each from a question of its own; a label without an answer is "unknown".

    A fact that cannot change is queried until it is known. A fact that can change keeps its last value if a query is
    refused, so that the series stays the same.
    """

    def __init__(
        self, nvml: Nvml, handle: Any, support: FieldSupportTable, *, gpu: str, uuid: str, driver: str, cuda: str
    ) -> None:
        self._nvml, self._handle = nvml, handle
        self._support = support
        self._labels = {"gpu": gpu, "uuid": uuid, "driver": driver, "cuda": cuda}
        self._labels |= {fact.label: UNKNOWN for fact in _FACTS}

    def read(self) -> Sample:
        """Return the GPU's info series.

        Raises:
            GpuLost: the GPU is gone.
        """
        for fact in _FACTS:
            if fact.can_change or self._labels[fact.label] == UNKNOWN:
                answer = self._support.ask(fact.question, partial(fact.read, self._nvml, self._handle))
                self._labels[fact.label] = answer or self._labels[fact.label]
        return GPU_INFO.at(1, **self._labels)


def nvlinks(nvml: Nvml, handle: Any) -> list[bool]:
    """Return for each NVLink of the GPU whether it is up; empty if it has none.

    Raises:
        NVMLError: the GPU is gone, or refuses.
    """
    states: list[bool] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except NVMLError as error:
            if not says_unsupported(error):
                raise
            break  # There are no more links.
    return states


@dataclass(frozen=True, slots=True)
class _Fact:
    """A label of the info series. question: its name in messages about refusals."""

    label: str
    question: str
    read: Callable[[Nvml, Any], str]
    can_change: bool = False


def _nvlink(nvml: Nvml, handle: Any) -> str:
    states = nvlinks(nvml, handle)
    if not any(states):
        return "none"
    version = _NVLINK_VERSIONS.get(nvml.nvmlDeviceGetNvLinkVersion(handle, states.index(True)), UNKNOWN)
    return f"{version} x{sum(states)}"


_NODE_WORDS = 16
"""Number of 64-bit words for a set of NUMA nodes; enough for Linux's maximum."""


def _numa_nodes(nvml: Nvml, handle: Any) -> str:
    """Return the GPU's own NUMA node, if its memory is one (GB200); else the nearest nodes, for example "0,1"."""
    try:
        return str(nvml.nvmlDeviceGetNumaNodeId(handle))
    except NVMLError as error:
        if not says_unsupported(error):
            raise
    words = nvml.nvmlDeviceGetMemoryAffinity(handle, _NODE_WORDS, NVML_AFFINITY_SCOPE_NODE)
    return ",".join(str(64 * place + bit) for place, word in enumerate(words) for bit in range(64) if word >> bit & 1)


def _on_or_off(state: int) -> str:
    return "on" if state else "off"


_FACTS = (
    _Fact("name", "name", lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu)),
    _Fact("serial", "serial number", lambda nvml, gpu: nvml.nvmlDeviceGetSerial(gpu)),
    _Fact("pci_address", "PCI address", pci_address),
    _Fact(
        "pcie",
        "PCIe capability",
        lambda nvml, gpu: f"{nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)} x{nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)}",
    ),
    _Fact("vbios", "VBIOS version", lambda nvml, gpu: nvml.nvmlDeviceGetVbiosVersion(gpu)),
    _Fact("numa", "NUMA node", _numa_nodes),
    _Fact(
        "persistence",
        "persistence mode",
        lambda nvml, gpu: _on_or_off(nvml.nvmlDeviceGetPersistenceMode(gpu)),
        can_change=True,
    ),
    _Fact("mig", "MIG mode", lambda nvml, gpu: _on_or_off(nvml.nvmlDeviceGetMigMode(gpu)[0]), can_change=True),
    _Fact("nvlink", "NVLink states", _nvlink, can_change=True),
)


# Processes that compute on a GPU; they lead from a rank's pid to its GPU.

_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The host's own PID namespace. Source: include/linux/proc_ns.h, PROC_PID_INIT_INO (0xEFFFFFFC)."""


_MOST_BYTES = 1 << 48


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process with a compute context on a GPU.

    pid: the driver's, which is the host's number and not a container's. gpu: NVML's index.
    instance: label of the MIG instance; None for a whole GPU. memory_bytes: None if the driver does not report it.
    """

    pid: int
    gpu: str
    uuid: str
    instance: str | None = None
    memory_bytes: int | None = None


def names_all_processes(proc: Path = Path("/proc")) -> bool:
    """Return whether the driver lists all processes to this one, which it does only in the host's PID namespace."""
    try:
        return str((proc / "self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def processes_on(
    nvml: Nvml, handle: Any, *, gpu: str, uuid: str, instance: str | None = None
) -> tuple[GpuProcess, ...]:
    """Return the processes that compute on a GPU or on a MIG instance."""
    return tuple(
        GpuProcess(pid=process.pid, gpu=gpu, uuid=uuid, instance=instance, memory_bytes=memory_of(process))
        for process in nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    )


def memory_of(process: Any) -> int | None:
    """Return the memory that a process holds on a GPU; None if the driver reports none or an impossible value."""
    used_bytes: int | None = process.usedGpuMemory
    return used_bytes if used_bytes is not None and 0 <= used_bytes <= _MOST_BYTES else None


Read = Callable[[Nvml, Any, str], list[Sample]]
"""Takes NVML, a GPU's handle and its label; returns samples."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a GPU.

    name: in messages about refusals. is_slow: its answer changes rarely; see `PolledGpu`.
    """

    name: str
    read: Read
    is_slow: bool = False


_CLOCKS = (("sm", NVML_CLOCK_SM), ("memory", NVML_CLOCK_MEM), ("video", NVML_CLOCK_VIDEO))
_REASONS = (
    ("idle", 0x1),
    ("application_clocks", 0x2),
    ("software_power_cap", 0x4),
    ("hardware_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("software_thermal", 0x20),
    ("hardware_thermal", 0x40),
    ("hardware_power_brake", 0x80),
    ("display_clocks", 0x100),
)
"""Bits of nvmlDeviceGetCurrentClocksEventReasons. Source: nvml.h, nvmlClocksEventReasons."""


def _utilization(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    percent = nvml.nvmlDeviceGetUtilizationRates(handle)
    return [
        gpu_metrics.GPU_UTILIZATION.at(percent.gpu / 100, gpu=gpu),
        gpu_metrics.GPU_MEMORY_UTILIZATION.at(percent.memory / 100, gpu=gpu),
    ]


def _one_value(metric: Metric, ask: Callable[[Nvml, Any], float], **labels: str) -> Read:
    """Return a reader for a metric; `ask` returns its value in base units."""
    return lambda nvml, handle, gpu: [metric.at(ask(nvml, handle), gpu=gpu, **labels)]


def _memory(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvmlMemory_v2)
    # Not `used`: NVIDIA's documentation has changed on whether it includes reserved memory.
    used = memory.total - memory.free - memory.reserved
    return [
        gpu_metrics.GPU_MEMORY_USED_BYTES.at(used, gpu=gpu),
        gpu_metrics.GPU_MEMORY_RESERVED_BYTES.at(memory.reserved, gpu=gpu),
        gpu_metrics.GPU_MEMORY_FREE_BYTES.at(memory.free, gpu=gpu),
        gpu_metrics.GPU_MEMORY_BYTES.at(memory.total, gpu=gpu),
    ]


def _bar1(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    window = nvml.nvmlDeviceGetBAR1MemoryInfo(handle)
    return [
        gpu_metrics.GPU_BAR1_USED_BYTES.at(window.bar1Used, gpu=gpu),
        gpu_metrics.GPU_BAR1_BYTES.at(window.bar1Total, gpu=gpu),
    ]


def _clock(name: str, clock: int) -> Read:
    return _one_value(
        gpu_metrics.GPU_CLOCK_HERTZ, lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, clock) * 1e6, clock=name
    )


def _clock_limit(name: str, clock: int) -> Read:
    return _one_value(
        gpu_metrics.GPU_CLOCK_LIMIT_HERTZ,
        lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, clock) * 1e6,
        clock=name,
    )


def _reasons(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return [
        gpu_metrics.GPU_CLOCK_HELD_RATIO.at(float(bool(mask & bit)), gpu=gpu, reason=name) for name, bit in _REASONS
    ]


def _pcie_now(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    generation = nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)
    return _pcie_link(generation, nvml.nvmlDeviceGetCurrPcieLinkWidth(handle), gpu=gpu, link="now")


def _pcie_most(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
    return _pcie_link(generation, nvml.nvmlDeviceGetMaxPcieLinkWidth(handle), gpu=gpu, link="maximum")


def _pcie_link(generation: int, lanes: int, **labels: str) -> list[Sample]:
    rate = link_bytes_per_second(generation, lanes)
    return [
        gpu_metrics.GPU_PCIE_GENERATION.at(generation, **labels),
        gpu_metrics.GPU_PCIE_LANES.at(lanes, **labels),
        *([] if rate is None else [gpu_metrics.GPU_PCIE_LINK.at(rate, **labels)]),
    ]


QUESTIONS = (
    Question("utilization counter", _utilization),
    Question(
        "encoder utilization",
        _one_value(
            gpu_metrics.GPU_ENCODER_UTILIZATION, lambda nvml, gpu: nvml.nvmlDeviceGetEncoderUtilization(gpu)[0] / 100
        ),
    ),
    Question(
        "decoder utilization",
        _one_value(
            gpu_metrics.GPU_DECODER_UTILIZATION, lambda nvml, gpu: nvml.nvmlDeviceGetDecoderUtilization(gpu)[0] / 100
        ),
    ),
    Question("account of device memory", _memory),
    Question("BAR1 window", _bar1, is_slow=True),
    Question(
        "power sensor",
        _one_value(gpu_metrics.GPU_POWER_WATTS, lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
    ),
    Question(
        "temperature sensor",
        _one_value(
            gpu_metrics.GPU_TEMPERATURE_CELSIUS,
            lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, NVML_TEMPERATURE_GPU),
        ),
    ),
    Question(
        "temperature margin",
        _one_value(
            gpu_metrics.GPU_TEMPERATURE_MARGIN_CELSIUS, lambda nvml, gpu: nvml.nvmlDeviceGetMarginTemperature(gpu)
        ),
    ),
    *(Question(f"{name} clock", _clock(name, clock)) for name, clock in _CLOCKS),
    *(Question(f"{name} clock limit", _clock_limit(name, clock), is_slow=True) for name, clock in _CLOCKS),
    Question("clock event reasons", _reasons),
    Question("PCIe link now", _pcie_now, is_slow=True),
    Question("PCIe link at most", _pcie_most, is_slow=True),
    Question("NVLink fabric", fabric, is_slow=True),
)
