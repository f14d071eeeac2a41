"""What a probe's module gives a rank: a `probe` function that measures the machine, and what it is handed for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup

Quantity = Literal["collective_s", "copy_s", "matmul_s", "rounds", "sent_bytes", "peak_node_bytes"]
"""What a rank can find of one call.

collective_s, copy_s, matmul_s: its time, as the stopwatch gives it.
rounds: rounds of messages, those included in which the rank has none. sent_bytes: all that it sent.
peak_node_bytes: the most that it sent, or received, in one round.
"""


class ProbeSetup(Setup, Protocol):
    """What a probe reads of a case."""

    @property
    def steps(self) -> int:
        """Measured calls of each measurement."""

    @property
    def warm_up(self) -> int:
        """Calls before them."""


class Record(Protocol):
    """Takes one measurement: figures that share their labels. Labels are those of the quantity's metric."""

    def __call__(self, figures: Mapping[Quantity, float], **labels: str) -> None: ...


class Stopwatch(Protocol):
    """Times calls on the rank's device. All ranks must ask for the same, in the same order: they start together."""

    def back_to_back(self, call: Callable[[], object], *, warm_up: int, calls: int) -> float:
        """Seconds of one call, where each is queued behind the one before: the time of all, divided by their number."""

    def each(self, call: Callable[[], object], *, warm_up: int, calls: int) -> list[float]:
        """Seconds of every single call, each begun when the one before was through."""


Probe = Callable[[ProbeSetup, DeviceMesh, Record, Stopwatch], None]
"""A probe's module has a function `probe` of this type.

Raises:
    RuntimeError: what was computed is wrong, or what was asked for does not fit into memory.
"""
