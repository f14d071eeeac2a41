"""The folder of an unpacked source tree: locked while in use, and removed afterwards."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import InfrastructureFailed
from bench.machine.temporary_folders import TemporaryFolder, sweep_in_background


def digest_of(archive: bytes) -> str:
    """Return the SHA-256 of an archive, which names the tree."""
    return hashlib.sha256(archive).hexdigest()


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack files and folders, none of them outside of the folder. Python before 3.11.4 has no filters."""
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, filter="data")
        return
    for member in tar:
        link = Path(member.name).parent / member.linkname if member.issym() else Path(member.linkname)
        is_inside = all(
            Path(os.path.normpath(folder / path)).is_relative_to(folder) for path in (Path(member.name), link)
        )
        if not is_inside or not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
            raise tarfile.ExtractError(f"{member.name} is not a file, folder or link within the tree")
        tar.extract(member, folder)


@contextmanager
def unpacked(archive: bytes) -> Iterator[Path]:
    """Unpack the tar archive of a source tree; yield the tree's folder, which is removed at the end.

    Raises:
        InfrastructureFailed: it cannot be unpacked.
    """
    sweep_in_background()
    with TemporaryFolder("observatory-tree-") as folder:
        tree = folder / "tree"
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                _extract(tar, tree)
        except (tarfile.TarError, OSError) as error:
            raise InfrastructureFailed(f"a source tree cannot be unpacked in {folder}: {error}") from None
        yield tree
