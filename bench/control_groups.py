"""What the control groups of this process leave it of memory: those of a container, or of a job on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """How a version of control groups names its files. cache: the line of memory.stat that counts files' pages."""

    place: str
    limit: str
    usage: str
    cache: str


_SECOND = _Files(place="sys/fs/cgroup", limit="memory.max", usage="memory.current", cache="inactive_file")
_FIRST = _Files(
    place="sys/fs/cgroup/memory",
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    cache="total_inactive_file",
)


def left_in_groups(root: Path = Path("/")) -> list[int]:
    """Bytes that each group with a limit leaves, from the process's own up to the root; pages of files can be had back.

    root: where /proc and /sys are. Groups without a limit, or that cannot be read, are left out.
    """
    return [
        left
        for files, name in _groups(root)
        for folder in _upwards(root / files.place, name)
        if (left := _left(folder, files)) is not None
    ]


def _groups(root: Path) -> Iterator[tuple[_Files, str]]:
    """The process's group in either version; the root's where nothing tells it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/", "0:memory:/"]
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            yield _SECOND, name
        elif "memory" in controllers.split(","):
            yield _FIRST, name


def _upwards(place: Path, name: str) -> Iterator[Path]:
    folder = place / name.lstrip("/")
    yield folder
    while folder != place:
        folder = folder.parent
        yield folder


def _left(folder: Path, files: _Files) -> int | None:
    try:
        limit, usage = int((folder / files.limit).read_text()), int((folder / files.usage).read_text())
    except (OSError, ValueError):  # There is no such group, or it has no limit ("max").
        return None
    return max(0, limit - usage + _cache(folder, files))


def _cache(folder: Path, files: _Files) -> int:
    try:
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(counts.get(files.cache, 0))
    except (OSError, ValueError):
        return 0
