"""What a part of the host is, and how it says that it lacks something."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from collectors.host.kernel_files import KernelFiles
from collectors.metric import Sample


@dataclass(frozen=True, slots=True)
class Absent:
    """Something that this host does not give now. reason: names it, and says why."""

    reason: str


Found = Sample | Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the host.

    read: what the kernel says now; raises OSError where it says nothing, LookupError or ValueError where it says
    something else than is known. pause_s: how long an answer will do, since asking for it costs more than for others.
    """

    name: str
    read: Callable[[KernelFiles], Iterable[Found]]
    pause_s: float = 0.0
