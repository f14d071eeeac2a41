"""Default places of runs and their history, and reading of small files."""

from __future__ import annotations

import codecs
import os
from contextlib import suppress
from pathlib import Path

import platformdirs

from bench.errors import Misuse
from collectors.files import exposed_by, is_open_to_others, open_regular, open_to_read, user_name

APPLICATION = "parallel-observatory"
RUNS_VARIABLE = "OBSERVATORY_RUNS"
STORE_VARIABLE = "OBSERVATORY_STORE"
"""Environment variables instead of --runs and --store: unlike a command line, other users cannot read them."""


def data_folder() -> Path:
    """Return the folder of everything that we store. It need not exist.

    Raises:
        Misuse: the folder belongs to another user, others may replace it, or there is no setting for user data.
    """
    try:
        folder, home = Path(platformdirs.user_data_dir(APPLICATION)), Path(os.environ.get("HOME") or "/")
    except RuntimeError:  # No HOME, and no account with one.
        raise Misuse("there is no data folder: set HOME or XDG_DATA_HOME to a folder of your own") from None
    for place in (
        folder,
        *(parent for parent in folder.parents if parent == folder.parent or parent.is_relative_to(home)),
    ):
        with suppress(OSError):  # The code that needs it reports an inaccessible path.
            status = place.stat()
            name = "HOME" if place == home else "the data folder" if place == folder else "the data folder's parent"
            if is_open_to_others(status):
                raise Misuse(
                    f"{name} {place} may be written by others (mode {status.st_mode & 0o7777:o}), who could put"
                    f" anything in place of your results; chmod go-w {place}"
                )
            if place == folder and status.st_uid != os.geteuid():
                raise Misuse(
                    f"{name} {place} belongs to {user_name(status.st_uid)} and not to you; set HOME or XDG_DATA_HOME to"
                    " a folder of your own"
                )
    try:
        folder.lstat()
    except PermissionError:
        return folder
    except OSError:
        pass
    if (why := exposed_by(folder)) is not None:
        raise Misuse(
            f"the data folder {folder} could be replaced: {why}; set HOME or XDG_DATA_HOME to a folder of your own"
        )
    return folder


def is_data_folder(folder: Path) -> bool:
    """Whether this is the folder of everything that we store, safe or not (see `data_folder`)."""
    try:
        return folder == Path(platformdirs.user_data_dir(APPLICATION))
    except RuntimeError:  # No HOME, and no account with one.
        return False


MOST_BYTES = 64 << 20
"""Size limit of a file that is read whole. Traces are streamed and have no limit."""


def read_small(path: Path, most_bytes: int = MOST_BYTES, *, follows_link: bool = True) -> bytes:
    """Return the content of a regular file, up to a size limit: a user may name any kind of file.

    A byte order mark, which some editors write, is left out: neither TOML nor JSON has one.

    Raises:
        Misuse: the file is larger than the limit.
        OSError: it cannot be read, or is a folder, a pipe, a socket or a device, or a link if links are not followed.
    """
    with open_regular(path) if follows_link else open_to_read(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise Misuse(f"{path}: it is larger than {most_bytes >> 20} MiB, unlike any such file; name another")
    return data.removeprefix(codecs.BOM_UTF8)
