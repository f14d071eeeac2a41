"""How long tasks waited for CPU, memory, disks or interrupts: the kernel's pressure stall information."""

from __future__ import annotations

from collections.abc import Iterator

from collectors.catalogue import host
from collectors.host.kernel_files import KernelFiles
from collectors.metric import Sample

_FOLDER = "proc/pressure"
_UNDEFINED = ("cpu", "full")
"""The kernel writes zero there for the sake of form."""


def read(files: KernelFiles) -> Iterator[Sample]:
    """Seconds in which some or all tasks were stalled, of each resource that this kernel has."""
    for resource in files.names(_FOLDER):
        for line in files.text(f"{_FOLDER}/{resource}").splitlines():
            stalled, *figures = line.split()
            if (resource, stalled) != _UNDEFINED:
                total_us = dict(figure.split("=") for figure in figures)["total"]
                yield host.HOST_PRESSURE_SECONDS.at(int(total_us) / 1e6, resource=resource, stalled=stalled)
