"""The collector of a node's host, part by part: CPU, memory, disks, network, clock, InfiniBand.

Imports no torch and knows no process of ours. Linux only.
"""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collectors.files import in_words
from collectors.host import devices, system
from collectors.host.procfs import HostPart, KernelFiles
from collectors.host.system import CpuTime
from collectors.metrics.metric import Sample
from workloads.cost_models.absent import Absent

MODERATE_S = 0.5
"""Pause for parts with dozens of small files: read at each beat of 1 s, but not at each of 0.1 s."""
SELDOM_S = 5.0
"""Pause for hundreds of counters that rarely change, each of which queries an adapter's firmware."""


ROOT = Path("/")


def parts(folders: Sequence[Path]) -> tuple[HostPart, ...]:
    """Return every part of the host, in order; reads nothing yet. folders: their file systems are watched."""
    return (
        HostPart(name="identity", read=system.read_identity, pause_s=SELDOM_S),
        HostPart(name="CPU time", read=CpuTime().read),
        HostPart(name="load", read=system.read_load),
        HostPart(name="pressure", read=system.read_pressure),
        HostPart(name="memory", read=system.read_memory),
        HostPart(name="paging", read=system.read_paging),
        HostPart(name="disks", read=devices.read_disks, pause_s=MODERATE_S),
        HostPart(name="file systems", read=devices.read_filesystems(folders), pause_s=SELDOM_S),
        HostPart(name="network", read=devices.read_network),
        HostPart(name="clock", read=lambda files: system.read_clock(files.clock), pause_s=MODERATE_S),
        HostPart(name="NUMA", read=system.read_numa, pause_s=MODERATE_S),
        HostPart(name="InfiniBand", read=devices.read_infiniband, pause_s=MODERATE_S),
        HostPart(name="InfiniBand errors", read=devices.read_infiniband_errors, pause_s=SELDOM_S),
    )


_FOR_GOOD = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EOPNOTSUPP})
"""Errors of a kernel that lacks the value or denies us access; any other error may be temporary."""


@dataclass(slots=True, kw_only=True)
class _Watched:
    part: HostPart
    samples: list[Sample] = field(default_factory=list)
    read_ns: int | None = None
    is_given_up: bool = False


class HostCollector:
    """Reads the host's values from its kernel; a part that the kernel withholds is absent and not read again.

    folders: the collector watches their file systems and the root folder's. clock_ns: a monotonic clock.
    """

    name = "host"

    def __init__(
        self,
        files: KernelFiles | None = None,
        *,
        folders: Sequence[Path] = (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._files = KernelFiles() if files is None else files
        self._clock_ns = clock_ns
        self._reasons: dict[str, None] = {}
        self._watched: list[_Watched] = []
        if (self._files.root / "proc").is_dir():
            self._watched = [_Watched(part=part) for part in parts((ROOT, *folders))]
        else:
            self._say(f"this system has no /proc ({sys.platform}); samples of the host are left out")

    @property
    def absent(self) -> tuple[str, ...]:
        """Parts that the kernel withholds, each with its reason."""
        return tuple(self._reasons)

    def read(self) -> list[Sample]:
        """Return the current counters and levels; a part within its pause repeats its last samples."""
        now_ns = self._clock_ns()
        for watched in self._watched:
            is_due = watched.read_ns is None or now_ns - watched.read_ns >= watched.part.pause_s * 1e9
            if is_due and not watched.is_given_up:
                watched.read_ns = now_ns
                watched.samples = self._ask(watched)
        return [sample for watched in self._watched for sample in watched.samples]

    def close(self) -> None:
        """Do nothing: the collector holds no resources between reads."""

    def _ask(self, watched: _Watched) -> list[Sample]:
        name = watched.part.name
        try:
            samples = list(watched.part.read(self._files))
        except OSError as error:
            watched.is_given_up = error.errno in _FOR_GOOD
            until = "left out from here on" if watched.is_given_up else "sometimes left out"
            self._say(f"{name}: {error.filename}: {error.strerror}; {until}")
            return []
        except (LookupError, ValueError) as error:
            watched.is_given_up = True
            self._say(f"{name}: its format is unknown ({in_words(error)}); left out from here on")
            return []
        for sample in samples:
            if isinstance(sample, Absent):
                self._say(sample.reason)
        return [sample for sample in samples if isinstance(sample, Sample)]

    def _say(self, reason: str) -> None:
        self._reasons.setdefault(f"host: {reason}")
