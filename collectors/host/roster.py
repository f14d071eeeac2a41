"""The parts of a host that are read, one line each."""

from __future__ import annotations

from collectors.host import disks, infiniband, infiniband_errors, load, memory, network, numa, paging, pressure
from collectors.host.cpu import CpuTime
from collectors.host.part import Part

MODERATE_S = 0.5
"""For dozens of small files: read at each beat of a second, and not at each of a tenth."""
SELDOM_S = 5.0
"""For hundreds of counters, each of which is a question to an adapter's firmware, and which seldom move."""


def parts() -> tuple[Part, ...]:
    """Every part, in order, with nothing read yet."""
    return (
        Part(name="CPU time", read=CpuTime().read),
        Part(name="load", read=load.read),
        Part(name="pressure", read=pressure.read),
        Part(name="memory", read=memory.read),
        Part(name="paging", read=paging.read),
        Part(name="disks", read=disks.read, pause_s=MODERATE_S),
        Part(name="network", read=network.read),
        Part(name="NUMA", read=numa.read, pause_s=MODERATE_S),
        Part(name="InfiniBand", read=infiniband.read, pause_s=MODERATE_S),
        Part(name="InfiniBand errors", read=infiniband_errors.read, pause_s=SELDOM_S),
    )
