"""A disk that loses power: what it holds of each file is what was last synced, and a name is lost until its folder is.

It watches the real calls (os.fsync, os.replace) on real files; nothing is lost in truth.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class SimulatedDisk:
    """Watches calls from its making on; see `after_power_loss`.

    unsynced: the names that were given to files whose content was not on the disk by then.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unsynced: list[str] = []
        self.replaced: list[str] = []
        self._contents: dict[int, bytes] = {}  # By inode, when it was synced.
        self._names: set[Path] = set()  # On the disk: their folder was synced while it had them.
        fsync, replace = os.fsync, os.replace

        def watched_fsync(fd: int) -> None:
            fsync(fd)
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if path.is_dir():
                self._names |= set(path.iterdir())
            else:
                self._contents[os.fstat(fd).st_ino] = path.read_bytes()

        def watched_replace(
            source: str, target: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
        ) -> None:
            folder = Path() if src_dir_fd is None else Path(f"/proc/self/fd/{src_dir_fd}").readlink()
            path = folder / source
            self.replaced.append(Path(target).name)
            if self._contents.get(path.stat().st_ino) != path.read_bytes():
                self.unsynced.append(Path(target).name)
            replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(os, "replace", watched_replace)

    def after_power_loss(self, path: Path) -> bytes | None:
        """Return what of a file is on the disk in the worst case; None where its name is not."""
        return self._contents.get(path.stat().st_ino, b"") if path in self._names else None
