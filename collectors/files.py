"""Files that several processes share: locks, replacement in one piece, and the schema version of what they hold."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec


class _Versioned(msgspec.Struct):
    schema_version: int


def schema_version_of(document: bytes) -> int:
    """Return the schema version that a JSON document bears. Ask before decoding it: a newer form may not decode.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: it is not JSON, or bears none.
    """
    return msgspec.json.decode(document, type=_Versioned).schema_version


def replace_file(path: Path, content: bytes, *, draft: Path, mode: int | None = None) -> None:
    """Write the file in one piece: a reader sees the old content or the new, and after a crash it is one of both.

    draft: a path on the same file system that nobody else writes to. mode: the file's permissions; None for those of
    a new file.

    Raises:
        OSError: it cannot be written; the old file is as it was.
    """
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def try_lock(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file or folder unless another holds it; return whether it is locked now.

    The lock ends when the file is closed, and with the process.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, however long another holds it first.

    Raises:
        OSError: the folder cannot be opened, or its file system has no locks.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
