"""Which GPUs of this node, or slices of them, a rank computes on: by the UUID in its log, else by its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from collectors.metrics.gpu import GPU_INFO, GPU_INSTANCE
from collectors.metrics.metric import Sample
from collectors.nvml.queries import GpuProcess
from collectors.sample_log import Opened

_NAMED_BY_UUID = frozenset({GPU_INFO.name, GPU_INSTANCE.name})

_Where = tuple[str, str]
"""A GPU, by NVML's index, and a slice of it; "" for the whole GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank computes: a GPU, by NVML's index, or a slice of it.

    slice: GPU instance and compute instance, as "1/0"; "" for the whole GPU. memory_bytes: what the rank's process has
    there; None where unknown.
    """

    gpu: str
    slice: str = ""
    memory_bytes: int | None = None


class Placement:
    """Joins ranks to the GPUs that the node's watch shows; asks no driver.

    samples: what is shown of the node. processes: the GPUs of each process, by its pid on this node.
    host: this node's name; the pid of a rank with another host name, as in a container, means nothing here.
    """

    def __init__(
        self,
        samples: Callable[[], Sequence[Sample]],
        processes: Callable[[], Mapping[int, Sequence[GpuProcess]]],
        *,
        host: str,
    ) -> None:
        self._samples = samples
        self._processes = processes
        self._host = host
        self._by_uuid: dict[str, tuple[_Where, ...]] = {}

    def places_of(self, opened: Opened) -> tuple[Place, ...]:
        """Return where the rank computes; empty where unknown."""
        processes = self._processes().get(opened.pid, ()) if opened.host == self._host else ()
        used: dict[_Where, list[int | None]] = {}
        for process in processes:
            used.setdefault((process.gpu, process.instance or ""), []).append(process.memory_bytes)
        found = sorted(used) if opened.gpu_uuid is None else self._of_uuid(opened.gpu_uuid)
        return tuple(
            Place(gpu=gpu, slice=part, memory_bytes=_sum(used.get((gpu, part), (None,)))) for gpu, part in found
        )

    def _of_uuid(self, uuid: str) -> tuple[_Where, ...]:
        if uuid not in self._by_uuid:
            found = tuple(
                (sample.labels["gpu"], sample.labels.get("slice", ""))
                for sample in self._samples()
                if sample.metric in _NAMED_BY_UUID and sample.labels["uuid"].partition("-")[2] == uuid
            )
            if not found:  # Perhaps the GPU is shown later.
                return ()
            self._by_uuid[uuid] = found
        return self._by_uuid[uuid]


def _sum(parts: Sequence[int | None]) -> int | None:
    """Return the sum of the parts; None where one of them is unknown."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
