"""The collectors that are polled on each node, one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from collectors.host import HostCollector
from collectors.metric import Sample
from collectors.nvml.collector import NvmlCollector


class NodeCollector(Protocol):
    """Something on a node that is asked for its samples now and then, by one thread at a time."""

    @property
    def name(self) -> str:
        """What it is called where it is named."""

    @property
    def absent(self) -> tuple[str, ...]:
        """What it cannot give and why, each reason once; any read may add to it."""

    def read(self) -> list[Sample]:
        """What is true now; nothing where there is nothing to collect."""


Opener = Callable[[], NodeCollector]

OPENERS: tuple[tuple[str, Opener], ...] = (
    ("host", HostCollector),
    ("nvml", NvmlCollector),
)


def open_collectors(openers: tuple[tuple[str, Opener], ...] = OPENERS) -> tuple[NodeCollector, ...]:
    """Every collector of this node, in order; one that cannot be opened has a reason and no samples."""
    return tuple(_open(name, opener) for name, opener in openers)


def _open(name: str, opener: Opener) -> NodeCollector:
    try:
        return opener()
    except Exception as error:  # noqa: BLE001  # Whatever ails one, the others watch the node.
        return _Unopened(name, f"{name}: cannot be opened ({type(error).__name__}: {error}); its samples are left out")


class _Unopened:
    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.absent = (reason,)

    def read(self) -> list[Sample]:
        return []
