"""Small files that somebody names, read whole but not without end: the name may be that of a device."""

from __future__ import annotations

from pathlib import Path

from bench.errors import Misuse

MOST_BYTES = 64 << 20
"""More than any file has that is read whole here; traces are streamed and know no such end."""


def read_small(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The file's content.

    Raises:
        Misuse: it goes on for longer than any such file.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise Misuse(f"{path}: it goes on beyond {most_bytes >> 20} MiB, which no such file does; name another")
    return data
