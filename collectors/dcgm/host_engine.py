"""Whether a DCGM runs on this node, by its processes and by where it listens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pynvml import NVML_ERROR_IN_USE

from collectors.nvml.library import Answer, NVMLError, Standing

# Which GPUs' performance monitors something else holds, such as a DCGM that profiles or a profiler.

_MONITORS = "GPM"
"""What questions to the monitors are called, or begin with."""


def gpus_with_held_monitors(standings: Iterable[Standing]) -> tuple[str, ...]:
    """The GPUs whose monitors refused because they are in use; their samples are a gap for as long as that lasts."""
    in_use = str(NVMLError(NVML_ERROR_IN_USE))  # A standing keeps NVML's words, and not its number.
    held = (one.gpu for one in standings if one.question.startswith(_MONITORS) and one.reason == in_use)
    return tuple(dict.fromkeys(held))


def gpus_by_monitors(standings: Iterable[Standing]) -> dict[Answer, tuple[str, ...]]:
    """GPUs by how they stand to being monitored; a GPU that was not asked, or not yet twice, is nowhere."""
    found: dict[Answer, list[str]] = {}
    for one in standings:
        if one.question == _MONITORS:
            found.setdefault(one.answer, []).append(one.gpu)
    return {answer: tuple(gpus) for answer, gpus in found.items()}


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
