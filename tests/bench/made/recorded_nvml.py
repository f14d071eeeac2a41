"""NVML without a GPU: answers as `pynvml` gives them, and counts what was opened and closed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pynvml

RecordedError = cast(type[Exception], pynvml.NVMLError)
"""NVML's refusal, by its own number."""


@dataclass(frozen=True)
class RecordedProcess:
    """A process on a GPU, as the driver numbers it."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815  # NVML's own name.


@dataclass(frozen=True)
class RecordedMemory:
    """Bytes of one GPU."""

    total: int
    free: int


@dataclass
class RecordedNvml:
    """GPUs by name, the first of 1 GiB, the next of 2, and so on.

    nvlinks: pairs that have one. levels: the PCIe ancestor of a pair, 50 (system) if not named.
    slices: of a GPU that MIG split, the UUIDs of its instances; each has a handle beyond those of the GPUs.
    near_cpus: of a GPU, the CPUs of its NUMA node as a mask; NVML refuses where it is not named.
    forbidden: GPUs whose device files this process may not open.
    free_bytes: of a GPU; all of it where it is not named. processes: of a GPU, those that compute on it.
    failure: NVML's number, where it does not start.
    """

    names: tuple[str, ...] = ()
    nvlinks: frozenset[tuple[int, int]] = frozenset()
    levels: dict[tuple[int, int], int] = field(default_factory=dict)
    slices: dict[int, tuple[str, ...]] = field(default_factory=dict)
    near_cpus: dict[int, int] = field(default_factory=dict)
    forbidden: frozenset[int] = frozenset()
    free_bytes: dict[int, int] = field(default_factory=dict)
    processes: dict[int, tuple[RecordedProcess, ...]] = field(default_factory=dict)
    cuda_version: int = 13000
    driver_version: str = "580.82.07"
    failure: int | None = None
    is_without_library: bool = False
    is_without_memory: bool = False
    is_without_topology: bool = False
    open_count: int = 0
    init_count: int = 0

    NVMLError: type[Exception] = RecordedError
    NVML_P2P_CAPS_INDEX_NVLINK: int = 2
    NVML_P2P_STATUS_OK: int = 0
    NVML_CLOCK_SM: int = 1

    def nvmlInit(self) -> None:  # noqa: N802  # NVML's own names.
        failure = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND if self.is_without_library else self.failure
        if failure is not None:
            raise RecordedError(failure)
        self.open_count += 1
        self.init_count += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open_count -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return self.driver_version

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return self.cuda_version

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index in self.forbidden:
            raise RecordedError(pynvml.NVML_ERROR_NO_PERMISSION)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        known: dict[str, int] = {
            self.nvmlDeviceGetUUID(handle): handle for handle in (*range(len(self.names)), *self._slices())
        }
        if uuid not in known:
            raise RecordedError(pynvml.NVML_ERROR_NOT_FOUND)
        return known[uuid]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: int) -> int:  # noqa: N802
        return self._slices()[handle][0]

    def nvmlDeviceGetIndex(self, handle: int) -> int:  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        if handle in self._slices():
            return f"{self.names[self._slices()[handle][0]]} MIG 1g.5gb"
        return self.names[handle]

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return self._slices()[handle][1] if handle in self._slices() else f"GPU-{handle}abc-0000"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> RecordedMemory:  # noqa: N802
        if self.is_without_memory:
            raise RecordedError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        total = (handle + 1) << 30
        return RecordedMemory(total=total, free=self.free_bytes.get(handle, total))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:  # noqa: N802
        return 700_000  # Milliwatts.

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        return 1980

    def nvmlDeviceGetCpuAffinity(self, handle: int, words: int) -> list[int]:  # noqa: N802
        if handle not in self.near_cpus:
            raise RecordedError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [self.near_cpus[handle] >> 64 * word & (1 << 64) - 1 for word in range(words)]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802
        if not self.slices:
            raise RecordedError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        is_on = int(handle in self.slices)
        return [is_on, is_on]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> int:  # noqa: N802
        mine = [number for number, (whole, _) in self._slices().items() if whole == handle]
        if index >= len(mine):
            raise RecordedError(pynvml.NVML_ERROR_NOT_FOUND)
        return mine[index]

    def nvmlDeviceGetGpuInstanceId(self, handle: int) -> int:  # noqa: N802
        return handle

    def nvmlDeviceGetComputeInstanceId(self, handle: int) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: int) -> list[RecordedProcess]:  # noqa: N802
        return list(self.processes.get(handle, ()))

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: int) -> list[RecordedProcess]:  # noqa: N802
        return []

    def _slices(self) -> dict[int, tuple[int, str]]:
        """Of each slice's handle, the whole GPU and the UUID."""
        every = [(whole, uuid) for whole, uuids in sorted(self.slices.items()) for uuid in uuids]
        return dict(enumerate(every, start=len(self.names)))

    def nvmlDeviceGetP2PStatus(self, first: int, second: int, index: int) -> int:  # noqa: N802
        assert index == self.NVML_P2P_CAPS_INDEX_NVLINK
        return 0 if (first, second) in self.nvlinks else 1

    def nvmlDeviceGetTopologyCommonAncestor(self, first: int, second: int) -> int:  # noqa: N802
        if self.is_without_topology:
            raise RecordedError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self.levels.get((first, second), 50)
