"""The container of this process: its image, and the limits of its control groups on CPUs and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

UNLIMITED_BYTES = 1 << 62
"""Control groups of version 1 show about 2^63 bytes if there is no limit."""
IMAGE_VARIABLES = ("OBSERVATORY_IMAGE", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
"""Variables that name the image: ours, which the manifests for Kubernetes set, then those of Apptainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The limits of this process. An unknown value is None, with its reason under the field's name in `absent`.

    image: as the container engine names it. cpu_limit_cores: CPU seconds per second, for example 7.5.
    memory_limit_bytes: the smallest of all groups.
    """

    image: str | None
    cpu_limit_cores: float | None
    memory_limit_bytes: int | None
    absent: dict[str, str]


def read_container(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Container:
    """Return the limits of this process. root: where /proc and /sys are."""
    absent: dict[str, str] = {}
    image = next((environment[name] for name in IMAGE_VARIABLES if environment.get(name)), None)
    if image is None:
        absent["image"] = f"none of {', '.join(IMAGE_VARIABLES)} is set"
    cores = min(_cpu_limits(root), default=None)
    if cores is None:
        absent["cpu_limit_cores"] = "no control group limits CPU time"
    memory_bytes = min(_memory_limits(root), default=None)
    if memory_bytes is None:
        absent["memory_limit_bytes"] = "no control group limits memory"
    return Container(image=image, cpu_limit_cores=cores, memory_limit_bytes=memory_bytes, absent=absent)


def out_of_memory_kills(root: Path = Path("/")) -> int | None:
    """Return how many processes of this process's control group the kernel has killed because memory ran out.

    None if the group has no such counter: a root group of version 2, or a kernel before Linux 4.13. Version 2 also
    counts the groups below. root: where /proc and /sys are.
    """
    for version, folder in own_groups("memory", root):
        with suppress(OSError, KeyError, ValueError):  # In a container, the group's folder may be a parent's.
            file = folder / ("memory.events" if version == 2 else "memory.oom_control")
            return int(dict(line.split() for line in file.read_text().splitlines())["oom_kill"])
    return None


def own_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of the control groups of this process, from its own up to the root.

    controller: its name in version 1, where each controller has its own groups. root: where /proc and /sys are.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/", f"0:{controller}:/"]  # Without /proc, use the root group.
    for line in lines:
        # "0::/job" is a group of version 2, "4:memory:/job" one of version 1.
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            version, top = 2, root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            version, top = 1, root / "sys/fs/cgroup" / controller
        else:
            continue
        group = top / name.lstrip("/")
        for folder in (group, *group.parents):
            yield version, folder
            if folder == top:
                break


def _cpu_limits(root: Path) -> Iterator[float]:
    for version, folder in own_groups("cpu", root):
        with suppress(OSError, ValueError):  # No such group, or no limit: "max".
            if version == 2:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0 and period > 0:  # -1 means none in version 1.
                yield quota / period


def _memory_limits(root: Path) -> Iterator[int]:
    for version, folder in own_groups("memory", root):
        with suppress(OSError, ValueError):
            limit_bytes = int((folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).read_text())
            if limit_bytes < UNLIMITED_BYTES:
                yield limit_bytes
