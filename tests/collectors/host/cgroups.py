"""Processes in real cgroups, which a test makes and takes away again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_GONE_S = 10.0


def mount_of(version: str) -> Path:
    """Return where a hierarchy of cgroups is mounted. version: v1, of which any will do, or v2."""
    kind = {"v1": "cgroup", "v2": "cgroup2"}[version]
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, folder, found, *_ = line.split()
        if found == kind and (Path(folder) / "cgroup.procs").exists() and "cpuset" not in folder:
            return Path(folder)
    pytest.skip(f"no cgroups {version} are mounted here")


@contextmanager
def process_in(folder: Path) -> Iterator[int]:
    """Yield the pid of a process in a cgroup, which is made with all its parents that are not there."""
    made = [one for one in reversed([folder, *folder.parents]) if not one.exists()]
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here ({error.strerror})")
    process = subprocess.Popen(["sleep", "600"])
    try:
        (folder / "cgroup.procs").write_text(f"{process.pid}\n")
        yield process.pid
    finally:
        process.kill()
        process.wait()
        for one in reversed(made):
            _remove(one)


def _remove(folder: Path) -> None:
    """Remove a cgroup; it is busy for a moment after its last process has ended."""
    until_s = time.monotonic() + _GONE_S
    while True:
        try:
            return folder.rmdir()
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)
