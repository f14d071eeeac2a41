"""Which lines of a folder of job files are ours, told by a file that outlives us, so that a successor can end them."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

SCHEMA_VERSION = 1
_PREFIX = ".observatory-"
"""dcgm-exporter reads files whose names are numbers, and passes over all others."""
_DRAFT = ".draft"


class Claim(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One line of one file. file: its name, which is the GPU's. line: the run."""

    file: str
    line: str


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int


class Claims:
    """What one process has written into a folder. A lock on its file, which ends with the process, says that it lives.

    draft: a name in the folder that nobody else writes to.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{_PREFIX}{secrets.token_hex(6)}"
        self.draft = _draft_of(self._path)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._size_bytes = os.write(self._fd, msgspec.json.encode(_Head(schema_version=SCHEMA_VERSION)) + b"\n")

    def add(self, claim: Claim) -> None:
        """To be said before the line is written, so that a death in between leaves no line that nobody ends.

        Raises:
            OSError: the disk is full.
        """
        os.write(self._fd, msgspec.json.encode(claim) + b"\n")

    def forget(self) -> None:
        """No line is ours any more."""
        os.ftruncate(self._fd, self._size_bytes)

    def close(self, *, are_ended: bool) -> None:
        """End with us; lines that are not ended are left to a successor."""
        if are_ended:
            self.draft.unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)
        os.close(self._fd)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Who is inside is alone among those of us who change job files in this folder.

    Raises:
        OSError: the folder cannot be opened.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def inherit(folder: Path, claims: Claims) -> set[Claim]:
    """Take over the lines of all who died without ending theirs; only for one who is alone in the folder.

    Files of another user that cannot be opened are left to that user, and those of a newer program to it.

    Raises:
        OSError: the folder cannot be read or written.
    """
    inherited: set[Claim] = set()
    for path in list(folder.glob(f"{_PREFIX}*")):
        left = _left_by_the_dead(path) if path.suffix != _DRAFT else None
        if left is None:
            continue
        for claim in left - inherited:
            claims.add(claim)
        inherited |= left
        _draft_of(path).unlink(missing_ok=True)
        path.unlink()
    return inherited


def _left_by_the_dead(path: Path) -> set[Claim] | None:
    """What they had claimed; None of one who lives, or who is none of ours."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        head, *lines = path.read_bytes().splitlines(keepends=True) or [b""]
        if not head:
            return set()
        if msgspec.json.decode(head, type=_Head).schema_version > SCHEMA_VERSION:
            return None
        # A last line without an end was cut off by a death, before its job file was touched.
        return {msgspec.json.decode(line, type=Claim) for line in lines if line.endswith(b"\n")}
    except (BlockingIOError, msgspec.DecodeError):
        return None
    finally:
        os.close(fd)


def _draft_of(path: Path) -> Path:
    return path.with_name(f"{path.name}{_DRAFT}")
