"""Registry of the collectors that the agent polls on each node, with their protocols and time limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from collectors.files import in_words
from collectors.host.collector import HostCollector
from collectors.metrics.metric import Sample
from collectors.nvml.collector import DEADLINE_S, HOLD_S, NvmlCollector
from collectors.nvml.library import Nvml
from collectors.nvml.processes import OwnerOf
from collectors.nvml.queries import GpuProcess

_ALL_RATIO = 0.9
"""Share of a beat that polling waits for all collectors together; the rest is for processing their answers."""
_PART_RATIO = 0.8
"""Share of a beat in which a collector's parts must answer, so that the collector can report which part is late."""
_HOLD_BEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingConfig:
    """Settings of the collectors.

    beat_s: time between two polls. per_nvlink: also report the bytes of each NVLink. read_costs: also report the time
    that reading each of NVML's functions and fields takes. per_process: also report each process's use of a GPU.
    folders: folders whose file systems must not fill up.
    """

    beat_s: float = 1.0
    per_nvlink: bool = False
    read_costs: bool = False
    per_process: bool = True
    folders: tuple[Path, ...] = ()

    def all_within_s(self, longest_s: float) -> float:
        """Return how long to wait for all collectors together: at most `longest_s`, and less than a beat."""
        return min(longest_s, _ALL_RATIO * self.beat_s)

    def part_within_s(self, longest_s: float) -> float:
        """Return how long a collector waits for its parts, for example GPUs: less than `all_within_s`."""
        return min(longest_s, _PART_RATIO * self.beat_s)

    def held_s(self, shortest_s: float) -> float:
        """Return how long a late part's last answer is shown: at least `shortest_s`, and at least 3 beats."""
        return max(shortest_s, _HOLD_BEATS * self.beat_s)


USUAL = PollingConfig()


class NodeCollector(Protocol):
    """A source of samples on a node, polled by one thread at a time. The code that opens it also closes it."""

    @property
    def name(self) -> str:
        """The collector's name in labels and messages."""

    @property
    def absent(self) -> tuple[str, ...]:
        """The reasons why samples are missing, each once; any read may add some."""

    def read(self) -> list[Sample]:
        """Return the current samples; empty if there is nothing to collect."""

    def close(self) -> None:
        """Release all resources; nothing is read afterwards."""


@runtime_checkable
class GpuCollector(Protocol):
    """A collector that also reports the processes on its GPUs."""

    def processes(self) -> Mapping[int, tuple[GpuProcess, ...]]:
        """Return the GPUs that each process computes on, by pid, as last read; callable from any thread."""


@runtime_checkable
class CountingCollector(Protocol):
    """A collector that counts its requests."""

    @property
    def fields_requested(self) -> int:
        """Number of fields and single values that it has requested since it was opened; readable from any thread."""


def open_nvml(polling: PollingConfig, nvml: Nvml | None = None, *, owner_of: OwnerOf | None = None) -> NvmlCollector:
    """Open the collector of this node's GPUs, or of the given NVML's. owner_of: identifies the processes on them."""
    return NvmlCollector(
        nvml,
        per_process=polling.per_process,
        owner_of=owner_of,
        per_link=polling.per_nvlink,
        reads_costs=polling.read_costs,
        deadline_s=polling.part_within_s(DEADLINE_S),
        hold_s=polling.held_s(HOLD_S),
    )


Opener = Callable[[PollingConfig], NodeCollector]

OPENERS: tuple[tuple[str, Opener], ...] = (
    ("host", lambda polling: HostCollector(folders=polling.folders)),
    ("nvml", open_nvml),
)


def open_collectors(
    polling: PollingConfig = USUAL, openers: tuple[tuple[str, Opener], ...] = OPENERS
) -> tuple[NodeCollector, ...]:
    """Open every collector of this node, in order; a collector that cannot be opened has a reason and no samples."""
    opened: list[NodeCollector] = []
    for name, opener in openers:
        try:
            opened.append(opener(polling))
        except Exception as error:  # noqa: BLE001  # The other collectors must still watch the node.
            opened.append(_Unopened(name, f"{name}: cannot be opened ({in_words(error)}); its samples are left out"))
    return tuple(opened)


class _Unopened:
    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.absent = (reason,)

    def read(self) -> list[Sample]:
        return []

    def close(self) -> None:
        """Do nothing: nothing was opened."""
