"""NVML with clocks and PCIe links, without a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import pynvml

from tests.bench.made.recorded_nvml import RecordedError, RecordedNvml


@dataclass
class RecordedState(RecordedNvml):
    """Clocks in MHz by GPU; one whose clock is None refuses."""

    clocks_mhz: tuple[int | None, ...] = ()
    is_without_pcie: bool = False

    NVML_CLOCK_SM: int = 1
    NVML_CLOCK_MEM: int = 2

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802  # NVML's own names.
        found = self.clocks_mhz[handle]
        if found is None:
            raise RecordedError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return found * clock

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        return 1980 * clock

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:  # noqa: N802
        if self.is_without_pcie:
            raise RecordedError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 1

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:  # noqa: N802
        return 8

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:  # noqa: N802
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:  # noqa: N802
        return 16
