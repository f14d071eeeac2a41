"""The questions that have a function of NVML each, and how its answer becomes samples in base units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pynvml import (
    NVML_CLOCK_MEM,
    NVML_CLOCK_SM,
    NVML_CLOCK_VIDEO,
    NVML_TEMPERATURE_GPU,
    nvmlMemory_v2,
)

from collectors.catalogue import gpu as use
from collectors.catalogue import gpu_identity as identity
from collectors.catalogue import gpu_power as power
from collectors.metric import Sample
from collectors.nvml.fabric import fabric
from collectors.nvml.library import Nvml
from collectors.nvml.pcie import link_bytes_per_second

Read = Callable[[Nvml, Any, str], list[Sample]]
"""From NVML, a GPU's handle and its label to samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question about a GPU.

    name: what a driver that has no answer lacks. is_slow: what it asks for changes rarely; see `Gpu`.
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
        use.GPU_UTILIZATION.at(percent.gpu / 100, gpu=gpu),
        use.GPU_MEMORY_UTILIZATION.at(percent.memory / 100, gpu=gpu),
    ]


def _encoder(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    percent, _ = nvml.nvmlDeviceGetEncoderUtilization(handle)
    return [use.GPU_ENCODER_UTILIZATION.at(percent / 100, gpu=gpu)]


def _decoder(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    percent, _ = nvml.nvmlDeviceGetDecoderUtilization(handle)
    return [use.GPU_DECODER_UTILIZATION.at(percent / 100, gpu=gpu)]


def _memory(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvmlMemory_v2)
    # Not `used`: NVIDIA's pages of different years disagree on whether it holds what is reserved.
    used = memory.total - memory.free - memory.reserved
    return [
        use.GPU_MEMORY_USED_BYTES.at(used, gpu=gpu),
        use.GPU_MEMORY_RESERVED_BYTES.at(memory.reserved, gpu=gpu),
        use.GPU_MEMORY_FREE_BYTES.at(memory.free, gpu=gpu),
        use.GPU_MEMORY_BYTES.at(memory.total, gpu=gpu),
    ]


def _bar1(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    window = nvml.nvmlDeviceGetBAR1MemoryInfo(handle)
    return [
        use.GPU_BAR1_USED_BYTES.at(window.bar1Used, gpu=gpu),
        use.GPU_BAR1_BYTES.at(window.bar1Total, gpu=gpu),
    ]


def _power(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    milliwatts = nvml.nvmlDeviceGetPowerUsage(handle)
    return [power.GPU_POWER_WATTS.at(milliwatts / 1e3, gpu=gpu)]


def _temperature(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    celsius = nvml.nvmlDeviceGetTemperature(handle, NVML_TEMPERATURE_GPU)
    return [power.GPU_TEMPERATURE_CELSIUS.at(celsius, gpu=gpu)]


def _margin(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    return [power.GPU_TEMPERATURE_MARGIN_CELSIUS.at(nvml.nvmlDeviceGetMarginTemperature(handle), gpu=gpu)]


def _clock(name: str, clock: int) -> Read:
    def read(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
        megahertz = nvml.nvmlDeviceGetClockInfo(handle, clock)
        return [power.GPU_CLOCK_HERTZ.at(megahertz * 1e6, gpu=gpu, clock=name)]

    return read


def _clock_limit(name: str, clock: int) -> Read:
    def read(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
        megahertz = nvml.nvmlDeviceGetMaxClockInfo(handle, clock)
        return [identity.GPU_CLOCK_LIMIT_HERTZ.at(megahertz * 1e6, gpu=gpu, clock=name)]

    return read


def _reasons(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return [power.GPU_CLOCK_HELD_RATIO.at(float(bool(mask & bit)), gpu=gpu, reason=name) for name, bit in _REASONS]


def _pcie_now(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    generation = nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)
    return _pcie_link(generation, nvml.nvmlDeviceGetCurrPcieLinkWidth(handle), gpu=gpu, link="now")


def _pcie_most(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
    return _pcie_link(generation, nvml.nvmlDeviceGetMaxPcieLinkWidth(handle), gpu=gpu, link="maximum")


def _pcie_link(generation: int, lanes: int, **labels: str) -> list[Sample]:
    rate = link_bytes_per_second(generation, lanes)
    return [
        identity.GPU_PCIE_GENERATION.at(generation, **labels),
        identity.GPU_PCIE_LANES.at(lanes, **labels),
        *([] if rate is None else [identity.GPU_PCIE_LINK.at(rate, **labels)]),
    ]


QUESTIONS = (
    Question(name="utilization counter", read=_utilization),
    Question(name="encoder utilization", read=_encoder),
    Question(name="decoder utilization", read=_decoder),
    Question(name="account of device memory", read=_memory),
    Question(name="BAR1 window", read=_bar1, is_slow=True),
    Question(name="power sensor", read=_power),
    Question(name="temperature sensor", read=_temperature),
    Question(name="temperature margin", read=_margin),
    *(Question(name=f"{name} clock", read=_clock(name, clock)) for name, clock in _CLOCKS),
    *(Question(name=f"{name} clock limit", read=_clock_limit(name, clock), is_slow=True) for name, clock in _CLOCKS),
    Question(name="clock event reasons", read=_reasons),
    Question(name="PCIe link now", read=_pcie_now, is_slow=True),
    Question(name="PCIe link at most", read=_pcie_most, is_slow=True),
    Question(name="NVLink fabric", read=fabric, is_slow=True),
)
