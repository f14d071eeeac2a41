"""The questions to NVML, and how each answer becomes samples in base units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pynvml import NVML_CLOCK_MEM, NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, nvmlMemory_v2

from collectors.catalogue import gpu as catalogue
from collectors.metric import Sample
from collectors.nvml.library import Nvml


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One question about a GPU.

    what: what a driver that knows no answer lacks. left_out: what the run then does without, in the plural.
    read: from NVML, the GPU's handle and its label to samples.
    """

    what: str
    left_out: str
    read: Callable[[Nvml, Any, str], list[Sample]]


def _utilization(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    percent = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    return [catalogue.GPU_UTILIZATION.at(percent / 100, gpu=gpu)]


def _memory(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvmlMemory_v2)
    # Not `used`: NVIDIA's pages of different years disagree on whether it holds what is reserved.
    used = memory.total - memory.free - memory.reserved
    return [
        catalogue.GPU_MEMORY_USED_BYTES.at(used, gpu=gpu),
        catalogue.GPU_MEMORY_BYTES.at(memory.total, gpu=gpu),
    ]


def _power(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    milliwatts = nvml.nvmlDeviceGetPowerUsage(handle)
    return [catalogue.GPU_POWER_WATTS.at(milliwatts / 1e3, gpu=gpu)]


def _energy(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    millijoules = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    return [catalogue.GPU_ENERGY_JOULES.at(millijoules / 1e3, gpu=gpu)]


def _temperature(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    celsius = nvml.nvmlDeviceGetTemperature(handle, NVML_TEMPERATURE_GPU)
    return [catalogue.GPU_TEMPERATURE_CELSIUS.at(celsius, gpu=gpu)]


def _clock(name: str, clock: int) -> Callable[[Nvml, Any, str], list[Sample]]:
    def read(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
        megahertz = nvml.nvmlDeviceGetClockInfo(handle, clock)
        return [catalogue.GPU_CLOCK_HERTZ.at(megahertz * 1e6, gpu=gpu, clock=name)]

    return read


FIELDS = (
    Field(what="utilization counter", left_out="utilization ratios", read=_utilization),
    Field(what="account of device memory", left_out="memory bytes", read=_memory),
    Field(what="power sensor", left_out="watts", read=_power),
    Field(what="energy counter", left_out="joules", read=_energy),
    Field(what="temperature sensor", left_out="degrees", read=_temperature),
    Field(what="SM clock", left_out="its hertz", read=_clock("sm", NVML_CLOCK_SM)),
    Field(what="memory clock", left_out="its hertz", read=_clock("memory", NVML_CLOCK_MEM)),
)
