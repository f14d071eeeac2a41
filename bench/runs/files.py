"""Reading small files whole, with a limit on their size: a name that a user gives may be that of a device."""

from __future__ import annotations

from pathlib import Path

from bench.errors import Misuse

MOST_BYTES = 64 << 20
"""Size limit of a file that is read whole. Traces are streamed and have no limit."""


def read_small(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the file's content.

    Raises:
        Misuse: it is larger than the limit.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise Misuse(f"{path}: it goes on beyond {most_bytes >> 20} MiB, which no such file does; name another")
    return data
