"""What InfiniBand and RoCE ports send and receive, and whether their links are up."""

from __future__ import annotations

from collections.abc import Iterator

from collectors.catalogue import host
from collectors.host.infiniband_ports import CLASS, Port, counters, ports
from collectors.host.kernel_files import KernelFiles
from collectors.host.part import Absent, Found

_WORD_BYTES = 4
"""Ports count data in words. Source: InfiniBand Architecture Specification, PortXmitData and PortRcvData."""
_DIRECTIONS = {"received": "port_rcv_data", "sent": "port_xmit_data"}
_WAIT = "port_xmit_wait"


def read(files: KernelFiles) -> Iterator[Found]:
    """State, speed and bytes of each port; one that does not answer has a reason, and the others are read."""
    found = list(ports(files))
    if not found:
        yield Absent(f"no InfiniBand or RoCE port (none in /{CLASS})")
    for port in found:
        try:
            yield from _port(files, port)
        except OSError as error:
            yield Absent(f"{port}: {error.filename}: {error.strerror}; left out at times")
        except ValueError as error:
            yield Absent(f"{port}: {error}; its bytes are left out")


def _port(files: KernelFiles, port: Port) -> Iterator[Found]:
    def said(name: str) -> str:
        return files.text(f"{port.folder}/{name}").strip()

    state = said("state").rpartition(": ")[2]  # Of "4: ACTIVE".
    yield host.HOST_INFINIBAND_INFO.at(
        1, **port.labels, layer=said("link_layer"), state=state, physical_state=said("phys_state").rpartition(": ")[2]
    )
    if state == "ACTIVE":  # A port that is down tells the rate of a link that it has not.
        gigabits = float(said("rate").split()[0])  # Of "400 Gb/sec (4X NDR)".
        yield host.HOST_INFINIBAND_LINK.at(gigabits * 1e9 / 8, **port.labels)
    counted = counters(files, port, "counters", (*_DIRECTIONS.values(), _WAIT))
    if not counted.keys() >= set(_DIRECTIONS.values()):
        yield Absent(f"{port}: has no counters of its data; its bytes are left out")
        return
    for direction, name in _DIRECTIONS.items():
        yield host.HOST_INFINIBAND_BYTES.at(counted[name] * _WORD_BYTES, **port.labels, direction=direction)
    if _WAIT in counted:
        yield host.HOST_INFINIBAND_WAIT.at(counted[_WAIT], **port.labels)
