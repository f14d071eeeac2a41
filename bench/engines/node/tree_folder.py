"""The folder of an unpacked source tree: locked while in use, removed afterwards, swept if its user was killed."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.errors import InfrastructureFailed
from collectors.files import is_ours, try_lock

PREFIX = "observatory-tree-"
LOCK = "lock"
UNLOCKED_S = 3600.0
"""How old a folder without a lock must be before it is swept: a younger one may be about to be locked."""


def digest_of(archive: bytes) -> str:
    """Return the SHA-256 of an archive, which names the tree."""
    return hashlib.sha256(archive).hexdigest()


@contextmanager
def unpacked(archive: bytes) -> Iterator[Path]:
    """Yield the folder of the tree that a tar archive holds; it is removed at the end, and others' leftovers before.

    Raises:
        InfrastructureFailed: it cannot be unpacked.
    """
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try_lock(lock)
        tree = folder / "tree"
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(tree, filter="data")
        except (tarfile.TarError, OSError) as error:
            raise InfrastructureFailed(f"a source tree cannot be unpacked in {folder}: {error}") from None
        yield tree
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep() -> None:
    """Remove folders of trees whose user was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if not is_ours(folder) or folder.is_symlink():
            continue
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            with suppress(OSError):
                if time.time() - folder.stat().st_mtime > UNLOCKED_S:
                    shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            if try_lock(lock):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # The file system has no locks.
            pass
        finally:
            os.close(lock)
