"""NVML without a GPU: answers as `pynvml` gives them, and counts what was opened and closed."""

from __future__ import annotations

from dataclasses import dataclass, field


class RecordedError(Exception):
    """NVML's refusal."""


@dataclass(frozen=True)
class RecordedMemory:
    """Bytes of one GPU."""

    total: int


@dataclass
class RecordedNvml:
    """GPUs by name. nvlinks: pairs that have one. levels: the PCIe ancestor of a pair, 50 (system) if not named."""

    names: tuple[str, ...] = ()
    nvlinks: frozenset[tuple[int, int]] = frozenset()
    levels: dict[tuple[int, int], int] = field(default_factory=dict)
    is_without_library: bool = False
    is_without_memory: bool = False
    is_without_topology: bool = False
    open_count: int = 0
    init_count: int = 0

    NVMLError: type[Exception] = RecordedError
    NVML_P2P_CAPS_INDEX_NVLINK: int = 2
    NVML_P2P_STATUS_OK: int = 0

    def nvmlInit(self) -> None:  # noqa: N802  # NVML's own names.
        if self.is_without_library:
            raise RecordedError("NVML Shared Library Not Found")
        self.open_count += 1
        self.init_count += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open_count -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.82.07"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        raise RecordedError(f"Not Found: {uuid}")

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: int) -> int:  # noqa: N802
        return handle

    def nvmlDeviceGetIndex(self, handle: int) -> int:  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return self.names[handle]

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}abc-0000"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> RecordedMemory:  # noqa: N802
        if self.is_without_memory:
            raise RecordedError("Not Supported")
        return RecordedMemory(total=(handle + 1) << 30)

    def nvmlDeviceGetP2PStatus(self, first: int, second: int, index: int) -> int:  # noqa: N802
        assert index == self.NVML_P2P_CAPS_INDEX_NVLINK
        return 0 if (first, second) in self.nvlinks else 1

    def nvmlDeviceGetTopologyCommonAncestor(self, first: int, second: int) -> int:  # noqa: N802
        if self.is_without_topology:
            raise RecordedError("Not Supported")
        return self.levels.get((first, second), 50)
