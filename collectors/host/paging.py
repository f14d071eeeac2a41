"""How often processes had to wait for their memory, and what was swapped."""

from __future__ import annotations

from collections.abc import Iterator

from collectors.catalogue import host
from collectors.host.kernel_files import KernelFiles
from collectors.host.part import Absent, Found

_SWAPPED = {"in": "pswpin", "out": "pswpout"}


def read(files: KernelFiles) -> Iterator[Found]:
    """Page faults, and bytes swapped, since the host's start.

    Minor faults are not told apart: the kernel counts a major one when its waiting begins, and any at its end, so that
    the difference falls while a disk is slow.
    """
    words = files.text("proc/vmstat").split()
    counted = dict(zip(words[::2], words[1::2], strict=True))
    yield host.HOST_PAGE_FAULTS.at(int(counted["pgfault"]))
    yield host.HOST_MAJOR_PAGE_FAULTS.at(int(counted["pgmajfault"]))
    if not counted.keys() >= set(_SWAPPED.values()):
        yield Absent("paging: the kernel was built without swap; bytes swapped are left out")
        return
    for direction, field in _SWAPPED.items():
        yield host.HOST_SWAPPED_BYTES.at(int(counted[field]) * files.page_bytes, direction=direction)
