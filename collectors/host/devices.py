"""The host's disks, file systems and network interfaces: traffic, time of requests, room, lost packets and errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from collectors.host.procfs import HostAnswer, KernelFiles
from collectors.metrics import host
from collectors.metrics.metric import Sample
from workloads.cost_models.absent import Absent

_SECTOR_BYTES = 512
"""Size of a sector in /proc/diskstats, whatever the disk's own sectors are."""
_VIRTUAL = "/virtual/"
_DISK_DIRECTIONS = {"read": 3, "written": 7}
"""Index of a direction's first column: requests, merged requests, sectors, milliseconds."""
_BUSY_MS = 12


def read_disks(files: KernelFiles) -> Iterator[Sample]:
    """Return bytes, requests and seconds of each disk that is a separate device.

    Disks made of other disks (loop, RAID, device mapper, an NVMe disk over all its paths) would count them twice.
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
    """Return a reader of the room on the file systems of these folders; folders on one file system count once."""

    def read(files: KernelFiles) -> Iterator[HostAnswer]:
        known = set()
        for folder in folders:
            # A folder that is not there yet will be where its parent is.
            paths = (files.root / str(place).lstrip("/") for place in (folder, *folder.parents))
            try:
                path = next(path for path in paths if path.exists())
                device, room = path.stat().st_dev, os.statvfs(path)
            except OSError as error:
                yield Absent(f"the file system of {folder}: {error.strerror}; left out at times")
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
