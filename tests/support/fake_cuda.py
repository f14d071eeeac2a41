"""Fakes of `torch.cuda` and `torch.distributed` for a rank; they record its calls in order."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

UUIDS = tuple(f"b2c1a0f4-6d0e-4a5b-9c3d-2f1e0d9c8b7{place}" for place in range(8))


@dataclass
class FakeProperties:
    """The fields of `torch.cuda.get_device_properties` that ranks read, with an H200's values."""

    uuid: str = UUIDS[0]
    name: str = "NVIDIA H200"
    total_memory: int = 150_123_184_128
    major: int = 9
    minor: int = 0


@dataclass
class FakeCuda:
    """The module `torch.cuda` with `count` GPUs. calls: each with its device; each thread has its own current device.

    uuids: of the GPUs, by CUDA's numbers. error, broken: raised by `synchronize` and by `init`.
    """

    count: int = 2
    uuids: tuple[str, ...] = UUIDS
    calls: list[str] = field(default_factory=list)
    error: Exception | None = None
    broken: Exception | None = None
    _current: threading.local = field(default_factory=threading.local)

    def init(self) -> None:
        if self.broken is not None:
            raise self.broken

    def device_count(self) -> int:
        return self.count

    def set_device(self, device: Any) -> None:
        self._current.index = device if isinstance(device, int) else device.index
        self.calls.append(f"set_device {self._current.index}")

    def current_device(self) -> int:
        """Return this thread's device, as `torch.cuda` does."""
        return getattr(self._current, "index", 0)

    def get_device_properties(self, device: Any) -> FakeProperties:
        self.calls.append(f"get_device_properties of {device} at current {self.current_device()}")
        return FakeProperties(uuid=self.uuids[device.index])

    def synchronize(self, device: Any) -> None:
        self.calls.append(f"synchronize {device}")
        if self.error is not None:
            raise self.error


@dataclass
class FakeGroups:
    """The module `torch.distributed`, which records its calls in the rank's `FakeCuda`.

    hangs: `destroy_process_group` does not return until it is set.
    """

    cuda: FakeCuda
    hangs: threading.Event | None = None

    def init_process_group(
        self,
        backend: str | None = None,
        *,
        store: Any = None,
        rank: int = -1,
        world_size: int = -1,
        timeout: timedelta | None = None,
        device_id: Any = None,
    ) -> None:
        self.cuda.calls.append(f"init_process_group {backend} on {device_id}")

    def is_initialized(self) -> bool:
        return any(call.startswith("init_process_group") for call in self.cuda.calls)

    def barrier(self) -> None:
        self.cuda.calls.append("barrier")

    def destroy_process_group(self) -> None:
        self.cuda.calls.append(f"destroy_process_group on {self.cuda.current_device()}")
        if self.hangs is not None:
            self.hangs.wait()
