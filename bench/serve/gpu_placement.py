"""Finds the GPUs of this node, or slices of them, that a rank computes on: by the UUID in its log, or by its process.

Also finds which processes on a node's GPUs are ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collectors.metrics.gpu import GPU_INFO, GPU_INSTANCE, GPU_PROCESS_MEMORY, GPU_PROCESS_UTILIZATION
from collectors.metrics.metric import Sample
from collectors.nvml.queries import GpuProcess
from collectors.sample_log import Opened

_NAMED_BY_UUID = frozenset({GPU_INFO.name, GPU_INSTANCE.name})

_OF_PROCESSES = frozenset({GPU_PROCESS_MEMORY.name, GPU_PROCESS_UTILIZATION.name})

_Where = tuple[str, str]
"""A GPU, by NVML's index, and a slice of it; "" for the whole GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank computes: a GPU, by NVML's index, or a slice of it.

    slice: GPU instance and compute instance, for example "1/0"; "" for the whole GPU. memory_bytes: the memory of the
    rank's process there; None if unknown.
    """

    gpu: str
    slice: str = ""
    memory_bytes: int | None = None


class Placement:
    """Joins ranks to the GPUs that the node's watch shows, without querying a driver.

    samples: the node's samples. processes: the GPUs of each process, by its pid on this node.
    host: this node's name. If a rank has another host name, as in a container, its pid means nothing here.
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
        """Return where the rank computes; empty if unknown."""
        processes = self._processes().get(opened.pid, ()) if opened.host == self._host else ()
        used: dict[_Where, list[int | None]] = {}
        for process in processes:
            used.setdefault((process.gpu, process.instance or ""), []).append(process.memory_bytes)
        places = sorted(used) if opened.gpu_uuid is None else self._of_uuid(opened.gpu_uuid)
        return tuple(
            Place(gpu=gpu, slice=part, memory_bytes=_sum(used.get((gpu, part), (None,)))) for gpu, part in places
        )

    def _of_uuid(self, uuid: str) -> tuple[_Where, ...]:
        if uuid not in self._by_uuid:
            places = tuple(
                (sample.labels["gpu"], sample.labels.get("slice", ""))
                for sample in self._samples()
                if sample.metric in _NAMED_BY_UUID and sample.labels["uuid"].partition("-")[2] == uuid
            )
            if not places:  # A later sample may show the GPU.
                return ()
            self._by_uuid[uuid] = places
        return self._by_uuid[uuid]


RanksByPid = Mapping[tuple[str, str], tuple[str, str]]
"""The run and the rank of a process, by its host and its pid there."""


def with_ranks(samples: Iterable[Sample], ranks: RanksByPid, *, host: str) -> Iterator[Sample]:
    """Yield a node's samples; add run and rank to those of a process that is a rank."""
    for sample in samples:
        if sample.metric in _OF_PROCESSES and (place := ranks.get((host, sample.labels["pid"]))) is not None:
            run, rank = place
            yield Sample(sample.metric, sample.value, {**sample.labels, "run": run, "rank": rank})
        else:
            yield sample


def _sum(parts: Sequence[int | None]) -> int | None:
    """Return the sum of the parts; None if a part is unknown."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
