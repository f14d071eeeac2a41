"""What the host's network interfaces send, receive and lose."""

from __future__ import annotations

from collections.abc import Iterator

from collectors.catalogue import host
from collectors.host.kernel_files import KernelFiles
from collectors.metric import Sample

_HEADINGS = 2
_DIRECTIONS = {"received": 0, "sent": 8}
"""Where a direction's columns begin: bytes, packets, errors, dropped."""


def read(files: KernelFiles) -> Iterator[Sample]:
    """Bytes, dropped packets and errors of each interface of the network namespace that the agent lives in.

    An interface that begins anew is a counter reset, as Prometheus knows it.
    """
    for line in files.text("proc/net/dev").splitlines()[_HEADINGS:]:
        name, _, columns = line.partition(":")
        counted = [int(column) for column in columns.split()]
        for direction, first in _DIRECTIONS.items():
            moved_bytes, _, errors, dropped = counted[first : first + 4]
            labels = {"interface": name.strip(), "direction": direction}
            yield host.HOST_NETWORK_BYTES.at(moved_bytes, **labels)
            yield host.HOST_NETWORK_DROPPED.at(dropped, **labels)
            yield host.HOST_NETWORK_ERRORS.at(errors, **labels)
