"""The host's disks, file systems, network interfaces and InfiniBand ports: traffic, space, states, drops and errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from collectors.host.procfs import HostAnswer, KernelFiles
from collectors.metrics import host
from collectors.metrics.metric import Sample
from workloads.cost_models.absent import Absent

_SECTOR_BYTES = 512
"""Size of a sector in /proc/diskstats, whatever the disk's own sector size is."""
_VIRTUAL = "/virtual/"
_DISK_DIRECTIONS = {"read": 3, "written": 7}
"""Index of a direction's first column: requests, merged requests, sectors, milliseconds."""
_BUSY_MS = 12


def read_disks(files: KernelFiles) -> Iterator[Sample]:
    """Return bytes, requests and seconds of each physical disk.

    Disks made of other disks (loop, RAID, device mapper, an NVMe disk over all its paths) would count traffic twice.
    """
    disks = set()
    for name in files.names("sys/block"):
        with suppress(FileNotFoundError):  # The disk was removed meanwhile.
            if _VIRTUAL not in files.target(f"sys/block/{name}"):
                disks.add(name)
    for line in files.text("proc/diskstats").splitlines():
        columns = line.split()
        device = columns[2]
        if device.replace("/", "!") not in disks:  # /sys writes a slash in a name as "!".
            continue
        for direction, first in _DISK_DIRECTIONS.items():
            requests, _, sectors, spent_ms = map(int, columns[first : first + 4])
            labels = {"device": device, "direction": direction}
            yield host.HOST_DISK_BYTES.at(sectors * _SECTOR_BYTES, **labels)
            yield host.HOST_DISK_REQUESTS.at(requests, **labels)
            yield host.HOST_DISK_REQUEST_SECONDS.at(spent_ms / 1e3, **labels)
        yield host.HOST_DISK_BUSY_SECONDS.at(int(columns[_BUSY_MS]) / 1e3, device=device)


def read_filesystems(folders: Sequence[Path]) -> Callable[[KernelFiles], Iterable[HostAnswer]]:
    """Return a reader of the space on the file systems of these folders; folders on one file system count once."""

    def read(files: KernelFiles) -> Iterator[HostAnswer]:
        known = set()
        for folder in folders:
            # A folder that does not exist yet will be on its parent's file system.
            paths = (files.root / str(place).lstrip("/") for place in (folder, *folder.parents))
            try:
                path = next(path for path in paths if path.exists())
                device, room = path.stat().st_dev, os.statvfs(path)
            except OSError as error:
                yield Absent(f"the file system of {folder}: {error.strerror}; sometimes left out")
                continue
            if device not in known:
                known.add(device)
                for kind, blocks in (("total", room.f_blocks), ("available", room.f_bavail)):
                    yield host.HOST_FILESYSTEM_BYTES.at(blocks * room.f_frsize, folder=str(folder), kind=kind)

    return read


# Network interfaces.

_HEADINGS = 2
_NETWORK_DIRECTIONS = {"received": 0, "sent": 8}
"""Index of a direction's first column: bytes, packets, errors, dropped."""


def read_network(files: KernelFiles) -> Iterator[Sample]:
    """Return bytes, dropped packets and errors of each interface in the agent's network namespace.

    An interface that is created again starts at 0, which Prometheus sees as a counter reset.
    """
    for line in files.text("proc/net/dev").splitlines()[_HEADINGS:]:
        name, _, columns = line.partition(":")
        counters = [int(column) for column in columns.split()]
        for direction, first in _NETWORK_DIRECTIONS.items():
            moved_bytes, _, errors, dropped = counters[first : first + 4]
            labels = {"interface": name.strip(), "direction": direction}
            yield host.HOST_NETWORK_BYTES.at(moved_bytes, **labels)
            yield host.HOST_NETWORK_DROPPED.at(dropped, **labels)
            yield host.HOST_NETWORK_ERRORS.at(errors, **labels)


CLASS = "sys/class/infiniband"
"""The kernel's folder of RDMA ports, of InfiniBand and RoCE adapters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """An RDMA port. device, number: the kernel's names; folder: of the port's files."""

    device: str
    number: str
    folder: str

    def __str__(self) -> str:
        return f"InfiniBand {self.device} port {self.number}"

    @property
    def labels(self) -> dict[str, str]:
        return {"device": self.device, "port": self.number}


def ports(files: KernelFiles) -> Iterator[Port]:
    """Return all ports, in order; empty without an adapter."""
    for device in _names(files, CLASS):
        for number in _names(files, f"{CLASS}/{device}/ports"):
            yield Port(device=device, number=number, folder=f"{CLASS}/{device}/ports/{number}")


def counters(files: KernelFiles, port: Port, folder: str, names: tuple[str, ...]) -> dict[str, int]:
    """Return those of the named counters that the port has; adapters and drivers differ.

    Raises:
        OSError: the port does not answer.
        ValueError: an answer is not a number.
    """
    existing = set(_names(files, f"{port.folder}/{folder}"))
    return {name: int(files.text(f"{port.folder}/{folder}/{name}")) for name in names if name in existing}


def _names(files: KernelFiles, folder: str) -> tuple[str, ...]:
    try:
        return files.names(folder)
    except FileNotFoundError:
        return ()


_WORD_BYTES = 4
"""Ports count data in words. Source: InfiniBand Architecture Specification, PortXmitData and PortRcvData."""
_DIRECTIONS = {"received": "port_rcv_data", "sent": "port_xmit_data"}
_WAIT = "port_xmit_wait"


def read_infiniband(files: KernelFiles) -> Iterator[HostAnswer]:
    """Return state, speed and bytes of each port; a port that does not answer yields a reason instead."""
    active = list(ports(files))
    if not active:
        yield Absent(f"no InfiniBand or RoCE port (none in /{CLASS})")
    for port in active:
        try:
            yield from _port(files, port)
        except OSError as error:
            yield Absent(f"{port}: {error.filename}: {error.strerror}; sometimes left out")
        except ValueError as error:
            yield Absent(f"{port}: {error}; its bytes are left out")


def _port(files: KernelFiles, port: Port) -> Iterator[HostAnswer]:
    words = {name: files.text(f"{port.folder}/{name}").strip() for name in ("state", "link_layer", "phys_state")}
    state, physical_state = (words[name].rpartition(": ")[2] for name in ("state", "phys_state"))  # From "4: ACTIVE".
    yield host.HOST_INFINIBAND_INFO.at(
        1, **port.labels, layer=words["link_layer"], state=state, physical_state=physical_state
    )
    if state == "ACTIVE":  # A port that is down reports the rate of a link that it does not have.
        gigabits = float(files.text(f"{port.folder}/rate").split()[0])  # From "400 Gb/sec (4X NDR)".
        yield host.HOST_INFINIBAND_LINK.at(gigabits * 1e9 / 8, **port.labels)
    counts = counters(files, port, "counters", (*_DIRECTIONS.values(), _WAIT))
    if not counts.keys() >= set(_DIRECTIONS.values()):
        yield Absent(f"{port}: no data counters; its bytes are left out")
        return
    for direction, name in _DIRECTIONS.items():
        yield host.HOST_INFINIBAND_BYTES.at(counts[name] * _WORD_BYTES, **port.labels, direction=direction)
    if _WAIT in counts:
        yield host.HOST_INFINIBAND_WAIT.at(counts[_WAIT], **port.labels)


# Errors of ports.

_BY_FOLDER = {
    "counters": (
        "symbol_error",
        "link_error_recovery",
        "link_downed",
        "port_rcv_errors",
        "port_rcv_remote_physical_errors",
        "port_xmit_discards",
        "port_rcv_constraint_errors",
        "port_xmit_constraint_errors",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
        "VL15_dropped",
    ),
    "hw_counters": (
        "out_of_sequence",
        "packet_seq_err",
        "local_ack_timeout_err",
        "implied_nak_seq_err",
        "rnr_nak_retry_err",
        "out_of_buffer",
        "rx_icrc_encapsulated",
    ),
}
"""counters: of any port; hw_counters: RDMA counters of Mellanox adapters. port_rcv_switch_relay_errors is left out,
since healthy adapters also count it."""


def read_infiniband_errors(files: KernelFiles) -> Iterator[HostAnswer]:
    """Return errors of each port by kind; if there is no port, `read_infiniband` reports it."""
    for port in ports(files):
        try:
            for folder, names in _BY_FOLDER.items():
                for kind, count in counters(files, port, folder, names).items():
                    yield host.HOST_INFINIBAND_ERRORS.at(count, **port.labels, kind=kind)
        except OSError as error:
            yield Absent(f"{port}: {error.filename}: {error.strerror}; its errors are sometimes left out")
        except ValueError as error:
            yield Absent(f"{port}: {error}; its errors are left out")
