"""How many tasks ran or waited to run."""

from __future__ import annotations

from collections.abc import Iterator

from collectors.catalogue import host
from collectors.host.kernel_files import KernelFiles
from collectors.metric import Sample


def read(files: KernelFiles) -> Iterator[Sample]:
    """The kernel's average over the last minute."""
    yield host.HOST_LOAD.at(float(files.text("proc/loadavg").split()[0]))
