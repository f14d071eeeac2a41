"""The folder of an unpacked source tree: locked while in use, and removed afterwards."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import InfrastructureFailed
from bench.machine.temporary_folders import TemporaryFolder, sweep_in_background


def digest_of(archive: bytes) -> str:
    """Return the SHA-256 of an archive, which names the tree."""
    return hashlib.sha256(archive).hexdigest()


@contextmanager
def unpacked(archive: bytes) -> Iterator[Path]:
    """Yield the folder of the tree that a tar archive holds; it is removed at the end.

    Raises:
        InfrastructureFailed: it cannot be unpacked.
    """
    sweep_in_background()
    with TemporaryFolder("observatory-tree-") as folder:
        tree = folder / "tree"
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(tree, filter="data")
        except (tarfile.TarError, OSError) as error:
            raise InfrastructureFailed(f"a source tree cannot be unpacked in {folder}: {error}") from None
        yield tree
