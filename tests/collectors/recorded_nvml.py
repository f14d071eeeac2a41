"""NVML of GPUs under load and then idle, as `pynvml` answers: in its units, with its errors.

The load is that of an H200 (driver 590.48.01, nvidia-smi under gpu_burn); the idle values are made up beside it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pynvml import (
    NVML_CLOCK_MEM,
    NVML_CLOCK_SM,
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_TEMPERATURE_GPU,
    NVMLError,
    nvmlMemory_v2,
)

from tests.bench.recorded_nvml import RecordedNvml


@dataclass(frozen=True)
class RecordedUtilization:
    """Percent."""

    gpu: int
    memory: int


@dataclass(frozen=True)
class RecordedMemory:
    """Bytes; `used` as older drivers give it, with what is reserved."""

    total: int
    free: int
    reserved: int

    @property
    def used(self) -> int:
        """What is not free."""
        return self.total - self.free


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What a GPU answers at one beat."""

    utilization: RecordedUtilization
    memory: RecordedMemory
    power_mw: int
    energy_mj: int
    celsius: int
    sm_mhz: int
    memory_mhz: int


_TOTAL, _RESERVED = 150_754_820_096, 643_825_664

LOAD = Moment(
    utilization=RecordedUtilization(gpu=100, memory=7),
    memory=RecordedMemory(total=_TOTAL, free=116_178_026_496, reserved=_RESERVED),
    power_mw=627_400,
    energy_mj=5_000_000_000_125,
    celsius=52,
    sm_mhz=1980,
    memory_mhz=3201,
)
IDLE = Moment(
    utilization=RecordedUtilization(gpu=0, memory=0),
    memory=RecordedMemory(total=_TOTAL, free=_TOTAL - _RESERVED, reserved=_RESERVED),
    power_mw=76_250,
    energy_mj=5_000_000_627_525,
    celsius=35,
    sm_mhz=345,
    memory_mhz=3201,
)


@dataclass
class RecordedLoad(RecordedNvml):
    """Each beat is one of `moments`; the last one stays.

    without_energy: GPUs whose driver has no energy counter. lost_from: the beat from which a GPU is gone.
    refusals: error codes by GPU, function and beat. start_error: what nvmlInit says. calls: how often each was asked.
    """

    moments: tuple[Moment, ...] = (LOAD, IDLE)
    beat: int = 0
    without_energy: frozenset[int] = frozenset()
    lost_from: dict[int, int] = field(default_factory=dict)
    refusals: dict[tuple[int, str, int], int] = field(default_factory=dict)
    start_error: int | None = None
    calls: Counter[str] = field(default_factory=Counter)

    NVMLError: type[Exception] = NVMLError

    def nvmlInit(self) -> None:  # noqa: N802  # NVML's own names.
        if self.start_error is not None:
            raise NVMLError(self.start_error)
        super().nvmlInit()

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        self._asked(index, "nvmlDeviceGetHandleByIndex")
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> RecordedUtilization:  # noqa: N802
        return self._asked(handle, "nvmlDeviceGetUtilizationRates").utilization

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> RecordedMemory:  # type: ignore[override]  # noqa: N802
        assert version == nvmlMemory_v2, "version 1 does not tell what is reserved"
        return self._asked(handle, "nvmlDeviceGetMemoryInfo").memory

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return self._asked(handle, "nvmlDeviceGetPowerUsage").power_mw

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        moment = self._asked(handle, "nvmlDeviceGetTotalEnergyConsumption")
        if handle in self.without_energy:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        return moment.energy_mj

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        assert sensor == NVML_TEMPERATURE_GPU
        return self._asked(handle, "nvmlDeviceGetTemperature").celsius

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        moment = self._asked(handle, "nvmlDeviceGetClockInfo")
        clocks = {NVML_CLOCK_SM: moment.sm_mhz, NVML_CLOCK_MEM: moment.memory_mhz}
        if clock not in clocks:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        return clocks[clock]

    def _asked(self, gpu: int, function: str) -> Moment:
        self.calls[function] += 1
        if self.beat >= self.lost_from.get(gpu, self.beat + 1):
            raise NVMLError(NVML_ERROR_GPU_IS_LOST)
        if (gpu, function, self.beat) in self.refusals:
            raise NVMLError(self.refusals[gpu, function, self.beat])
        return self.moments[min(self.beat, len(self.moments) - 1)]
