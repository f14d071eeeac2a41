"""What the node's host is doing: CPU time, memory, load, network bytes.

Imports no torch and knows no process of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import psutil

from collectors.catalogue import host
from collectors.metric import Sample

_COUNTED_TWICE = frozenset({"guest", "guest_nice"})
"""Linux counts a guest's time in `user` and `nice` already."""


class HostReader(Protocol):
    """What is asked of the module `psutil`, so that a recorded one can take its place."""

    def cpu_times(self) -> Any: ...
    def virtual_memory(self) -> Any: ...
    def getloadavg(self) -> tuple[float, float, float]: ...
    def net_io_counters(self, pernic: bool, nowrap: bool) -> Any: ...


class HostCollector:
    """The host as its kernel counts it; a part that the kernel withholds is absent, and asked for no more."""

    name = "host"

    def __init__(self, reader: HostReader | None = None) -> None:
        self._reader: HostReader = psutil if reader is None else reader
        self._parts: dict[str, Callable[[HostReader], list[Sample]]] = {
            "CPU time": _cpu,
            "memory": _memory,
            "load": _load,
            "network bytes": _network,
        }
        self._reasons: list[str] = []

    @property
    def absent(self) -> tuple[str, ...]:
        """Parts that the kernel withholds, each with its reason."""
        return tuple(self._reasons)

    def read(self) -> list[Sample]:
        """The counters and levels of this moment."""
        samples: list[Sample] = []
        for name, part in list(self._parts.items()):
            try:
                samples += part(self._reader)
            except (OSError, RuntimeError, NotImplementedError, psutil.Error) as error:
                # psutil says so where /proc is closed to us or the platform has no such figure.
                del self._parts[name]
                self._reasons.append(f"host: {name} cannot be read ({error}) and is left out from here on")
        return samples


def _cpu(reader: HostReader) -> list[Sample]:
    modes = reader.cpu_times()._asdict()
    return [
        host.HOST_CPU_SECONDS.at(seconds, mode=mode) for mode, seconds in modes.items() if mode not in _COUNTED_TWICE
    ]


def _memory(reader: HostReader) -> list[Sample]:
    memory = reader.virtual_memory()
    return [
        host.HOST_MEMORY_BYTES.at(memory.total, kind="total"),
        host.HOST_MEMORY_BYTES.at(memory.available, kind="available"),
    ]


def _load(reader: HostReader) -> list[Sample]:
    last_minute, _, _ = reader.getloadavg()
    return [host.HOST_LOAD.at(last_minute)]


def _network(reader: HostReader) -> list[Sample]:
    # Without psutil's memory of wrap-around: an interface that begins anew is a counter reset, as Prometheus knows it.
    interfaces = reader.net_io_counters(pernic=True, nowrap=False)
    return [
        host.HOST_NETWORK_BYTES.at(value, interface=interface, direction=direction)
        for interface, counted in interfaces.items()
        for direction, value in (("received", counted.bytes_recv), ("sent", counted.bytes_sent))
    ]
