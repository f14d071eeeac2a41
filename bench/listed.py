"""This node in a list of targets, as long as it serves."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench.errors import InfrastructureFailed, Misuse
from bench.targets import Targets

BEAT_S = 60.0
"""Pause between two signs of life."""
_END_S = 20.0
"""How long the disk may take for the sign that is just given, when it is time to end."""


def published_address(host: str, port: int) -> str:
    """Where others reach what listens there: in place of a host that means "all", this node's name."""
    name = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
    return f"{f'[{name}]' if ':' in name else name}:{port}"


@contextlib.contextmanager
def listed(
    path: Path,
    address: str,
    labels: Mapping[str, str],
    *,
    beat_s: float = BEAT_S,
    on_notice: Callable[[str], None],
) -> Iterator[None]:
    """The address is in the list in this file as long as one is inside.

    on_notice: is told of trouble on the way, and again where it lasts; the next sign of life tries again.

    Raises:
        Misuse: the file is none that Prometheus would read, or holds something else.
        InfrastructureFailed: it cannot be written.
    """
    targets = Targets(path, on_notice=on_notice)
    targets.add(address, labels)
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(beat_s):
            with _saying(on_notice):
                targets.add(address, labels)

    # A daemon: a disk that does not answer must not keep the program from ending.
    keeping = threading.Thread(target=keep, name="targets", daemon=True)
    keeping.start()
    try:
        yield
    finally:
        ended.set()
        keeping.join(_END_S)
        if keeping.is_alive():
            on_notice(f"{path}: the disk does not answer; {address} stays in the list until others find it stale")
        else:
            with _saying(on_notice):
                targets.remove(address)


@contextlib.contextmanager
def _saying(on_notice: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except (InfrastructureFailed, Misuse) as error:
        on_notice(str(error))
