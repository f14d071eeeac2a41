"""What a probe's module gives a rank: a `probe` function that measures the machine, and what it is handed for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup

Quantity = Literal["collective_s", "copy_s", "matmul_s", "rounds", "sent_bytes", "peak_node_bytes"]
"""What a rank can find of one call.

collective_s, copy_s, matmul_s: its time, as the stopwatch gives it; these are handed over as `Elapsed`.
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


class Elapsed(Protocol):
    """What one call took, in seconds, and what of it is known."""

    @property
    def elapsed_s(self) -> float:
        """Of the device alone, where that can be told; on a CPU the call does the work itself."""

    @property
    def with_host_s(self) -> float | None:
        """What a loop in Python waits for it, the launch by the host included; None on a CPU, where both are one."""

    @property
    def why_with_host(self) -> str | None:
        """Why the host is in `elapsed_s`, too, on a device; None where it is not."""

    @property
    def begun_ns(self) -> int | None:
        """Unix time since when the device did nothing but this call; None on a CPU."""


class Record(Protocol):
    """Takes one measurement: figures that share their labels. Labels are those of the quantity's metric."""

    def __call__(self, figures: Mapping[Quantity, float | Elapsed], **labels: str) -> None: ...


class Stopwatch(Protocol):
    """Times calls on the rank's device. All ranks must ask for the same, in the same order: they start together."""

    def back_to_back(self, call: Callable[[], object], *, warm_up: int, calls: int) -> Elapsed:
        """One call, where each is queued behind the one before: the time of all, divided by their number."""

    def each(self, call: Callable[[], object], *, warm_up: int, calls: int, warm_up_s: float = 0.0) -> Elapsed:
        """One call: the median of all, each begun when the one before was through. Ranks must not meet in a call.

        warm_up_s: for so long the call is made again and again after the calls of the warm-up, until the device has the
        clock that it keeps.
        """


Probe = Callable[[ProbeSetup, DeviceMesh, Record, Stopwatch], None]
"""A probe's module has a function `probe` of this type.

Raises:
    RuntimeError: what was computed is wrong, or what was asked for does not fit into memory.
"""
