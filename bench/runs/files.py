"""Where runs and their history are kept unless the command line says so, and the reading of small files."""

from __future__ import annotations

import codecs
from pathlib import Path

import platformdirs

from bench.errors import Misuse
from collectors.regular_files import open_regular

APPLICATION = "parallel-observatory"
RUNS_VARIABLE = "OBSERVATORY_RUNS"
STORE_VARIABLE = "OBSERVATORY_STORE"
"""Environment variables in place of --runs and --store: unlike a command line, other users cannot read them."""


def data_folder() -> Path:
    """Return the folder of everything that we keep."""
    return Path(platformdirs.user_data_dir(APPLICATION))


MOST_BYTES = 64 << 20
"""Size limit of a file that is read whole. Traces are streamed and have no limit."""


def read_small(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file, within a limit: a name that a user gives may be that of anything.

    A byte order mark, which some editors put in front, is left out: neither TOML nor JSON has one.

    Raises:
        Misuse: it is larger than the limit.
        OSError: it cannot be read, or is a folder, a pipe, a socket or a device.
    """
    with open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise Misuse(f"{path}: it goes on beyond {most_bytes >> 20} MiB, which no such file does; name another")
    return data.removeprefix(codecs.BOM_UTF8)
