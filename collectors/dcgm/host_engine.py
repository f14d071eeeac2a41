"""Whether a DCGM runs on this node, by its processes and by where it listens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_NAMES = ("nv-hostengine", "dcgm-exporter")
"""The host engine, and an exporter that may hold one within itself."""
_PORT = 5555
_LISTENS = "0A"
"""Source: nv-hostengine's page (127.0.0.1:5555); include/net/tcp_states.h (TCP_LISTEN)."""


def signs_of_dcgm(root: Path = Path("/")) -> tuple[str, ...]:
    """What tells of a DCGM, in words; nothing where none is seen. root: where /proc is.

    Another container's processes may be out of sight; a port is told only where no process is, since any program may
    listen there.
    """
    found = tuple(_running(root / "proc"))
    return found or tuple(_listening(root / "proc/net"))


def _running(proc: Path) -> Iterator[str]:
    for folder in sorted(proc.glob("[0-9]*"), key=lambda folder: int(folder.name)):
        try:
            name = (folder / "comm").read_text().strip()
        except OSError:  # It has ended since.
            continue
        if name in _NAMES:
            yield f"{name} runs (process {folder.name})"


def _listening(net: Path) -> Iterator[str]:
    if any(_is_port(line.split()) for name in ("tcp", "tcp6") for line in _lines(net / name)):
        yield f"something listens at TCP port {_PORT}, where nv-hostengine does"
    for line in _lines(net / "unix"):
        path = line.split()[-1]
        if path.rpartition("/")[2] == _NAMES[0]:
            yield f"{path} is listened at, as nv-hostengine does"
            return


def _is_port(columns: list[str]) -> bool:
    return columns[1].endswith(f":{_PORT:04X}") and columns[3] == _LISTENS


def _lines(path: Path) -> list[str]:
    """Without the heading; none where this kernel has no such sockets."""
    try:
        return path.read_text().splitlines()[1:]
    except OSError:
        return []
