"""Time of the host's CPUs by mode."""

from __future__ import annotations

from collections.abc import Iterator

from collectors.catalogue import host
from collectors.host.kernel_files import KernelFiles
from collectors.metric import Sample

_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""In the order of /proc/stat. Two more follow there, a guest's times, which `user` and `nice` hold already."""


class CpuTime:
    """All CPUs together, by /proc/stat.

    The kernel sets back `idle` and `iowait` by moments, as its documentation says; a counter that falls would be taken
    for one that began anew, so that each mode keeps its highest value until it is passed.
    """

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def read(self, files: KernelFiles) -> Iterator[Sample]:
        """Seconds of each mode since the host's start."""
        name, *ticks = files.text("proc/stat").partition("\n")[0].split()
        if name != "cpu":
            raise ValueError(f"/proc/stat begins with {name!r}")
        for mode, counted in zip(_MODES, ticks, strict=False):
            highest = self._highest[mode] = max(int(counted), self._highest.get(mode, 0))
            yield host.HOST_CPU_SECONDS.at(highest / files.ticks_per_s, mode=mode)
