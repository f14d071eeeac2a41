"""Signs of DCGM on this node: GPUs whose performance monitors are held, and its processes and sockets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pynvml import NVML_ERROR_IN_USE

from collectors.nvml.library import FieldSupport, NVMLError, SupportState

# GPUs whose performance monitors another program holds, such as a profiling DCGM or a profiler.

_MONITORS = "GPM"
"""Name, or beginning of the name, of each question to the monitors."""


def gpus_with_held_monitors(support: Iterable[FieldSupport]) -> tuple[str, ...]:
    """Return the GPUs whose monitors refused because they are in use; they have no GPM samples while that lasts."""
    in_use = str(NVMLError(NVML_ERROR_IN_USE))  # The table keeps NVML's message, and not its code.
    held = (one.gpu for one in support if one.question.startswith(_MONITORS) and one.reason == in_use)
    return tuple(dict.fromkeys(held))


def gpus_by_monitors(support: Iterable[FieldSupport]) -> dict[SupportState, tuple[str, ...]]:
    """Return the GPUs by their answer to the GPM question; a GPU not yet asked, or asked only once, is left out."""
    found: dict[SupportState, list[str]] = {}
    for one in support:
        if one.question == _MONITORS:
            found.setdefault(one.answer, []).append(one.gpu)
    return {answer: tuple(gpus) for answer, gpus in found.items()}


_NAMES = ("nv-hostengine", "dcgm-exporter")
"""The host engine, and an exporter that may embed one."""
_PORT = 5555
_LISTENS = "0A"
"""Source: nv-hostengine's page (127.0.0.1:5555); include/net/tcp_states.h (TCP_LISTEN)."""


def signs_of_dcgm(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the signs of a DCGM, as text; empty where there is none. root: the folder of /proc.

    Another container's processes may be invisible. Sockets are looked at only where no process is found, since any
    program may listen on the port.
    """
    found = tuple(_running(root / "proc"))
    return found or tuple(_listening(root / "proc/net"))


def _running(proc: Path) -> Iterator[str]:
    for folder in sorted(proc.glob("[0-9]*"), key=lambda folder: int(folder.name)):
        try:
            name = (folder / "comm").read_text().strip()
        except OSError:  # The process ended meanwhile.
            continue
        if name in _NAMES:
            yield f"{name} runs (process {folder.name})"


def _listening(net: Path) -> Iterator[str]:
    sockets = [line.split() for name in ("tcp", "tcp6") for line in _lines(net / name)]
    if any(local.endswith(f":{_PORT:04X}") and state == _LISTENS for _, local, _, state, *_ in sockets):
        yield f"something listens at TCP port {_PORT}, where nv-hostengine does"
    for line in _lines(net / "unix"):
        path = line.split()[-1]
        if path.rpartition("/")[2] == _NAMES[0]:
            yield f"{path} is listened at, as nv-hostengine does"
            return


def _lines(path: Path) -> list[str]:
    """Return the lines without the heading; none where this kernel has no such sockets."""
    try:
        return path.read_text().splitlines()[1:]
    except OSError:
        return []
