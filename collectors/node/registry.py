"""Registry of the collectors that are polled on each node, with their protocols and time limits."""

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
"""Share of a beat for which all collectors together are waited for; the rest is for processing their answers."""
_PART_RATIO = 0.8
"""Share of a beat in which a collector's parts must answer, so that the collector itself can say which one is late."""
_HOLD_BEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingConfig:
    """Settings of the collectors.

    beat_s: time between two polls. per_nvlink: also the bytes of each NVLink. read_costs: also what each of
    NVML's functions and fields takes to read. per_process: also what each process uses of a GPU. folders: those that
    must not become full.
    """

    beat_s: float = 1.0
    per_nvlink: bool = False
    read_costs: bool = False
    per_process: bool = True
    folders: tuple[Path, ...] = ()

    def all_within_s(self, longest_s: float) -> float:
        """Return how long all collectors together are waited for: at most `longest_s`, and less than a beat."""
        return min(longest_s, _ALL_RATIO * self.beat_s)

    def part_within_s(self, longest_s: float) -> float:
        """Return how long a collector waits for its parts, such as GPUs: less than it is waited for itself."""
        return min(longest_s, _PART_RATIO * self.beat_s)

    def held_s(self, shortest_s: float) -> float:
        """Return how long a late part's last answer is shown: at least `shortest_s`, and for 3 beats."""
        return max(shortest_s, _HOLD_BEATS * self.beat_s)


USUAL = PollingConfig()


class NodeCollector(Protocol):
    """A source of samples on a node, polled by one thread at a time. Whoever opens it closes it."""

    @property
    def name(self) -> str:
        """Its name in labels and messages."""

    @property
    def absent(self) -> tuple[str, ...]:
        """The reasons why samples are missing, without repetition; any read may add some."""

    def read(self) -> list[Sample]:
        """Return the current samples; empty if there is nothing to collect."""

    def close(self) -> None:
        """Release all resources; nothing is read afterwards."""


@runtime_checkable
class GpuCollector(Protocol):
    """A collector that knows the processes on the GPUs that it reads."""

    def processes(self) -> Mapping[int, tuple[GpuProcess, ...]]:
        """Return the GPUs that each process computes on, by its pid, as last read; called from any thread."""


@runtime_checkable
class CountingCollector(Protocol):
    """A collector that counts its requests."""

    @property
    def fields_asked(self) -> int:
        """Number of fields and single values that it has asked for since it was opened; read from any thread."""


def open_nvml(polling: PollingConfig, nvml: Nvml | None = None, *, owner_of: OwnerOf | None = None) -> NvmlCollector:
    """Open the collector of this node's GPUs, or of the GPUs of the given NVML, whose processes `owner_of` knows."""
    return NvmlCollector(
        nvml,
        per_process=polling.per_process,
        owner_of=owner_of,
        per_link=polling.per_nvlink,
        tells_costs=polling.read_costs,
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
    """Open every collector of this node, in order; one that cannot be opened has a reason and no samples."""
    opened: list[NodeCollector] = []
    for name, opener in openers:
        try:
            opened.append(opener(polling))
        except Exception as error:  # noqa: BLE001  # Whatever fails in one, the others watch the node.
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
