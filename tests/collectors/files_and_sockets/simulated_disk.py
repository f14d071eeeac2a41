"""A disk that loses power: what it holds of each file is what was last synced, and a name is lost until its folder is.

It watches the real calls (os.open, os.fsync, os.replace) on real files; nothing is lost in truth. A process may also
crash at any of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest


class Crash(BaseException):
    """The process ends here."""


class SimulatedDisk:
    """Watches calls from its making on; see `after_power_loss` and `may_hold`.

    unsynced: the names that were given to files whose content was not on the disk by then.
    crash_at: the number of the call before which the process crashes, counted from 0; None for none.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, crash_at: int | None = None) -> None:
        self.unsynced: list[str] = []
        self.replaced: list[str] = []
        self._calls, self._crash_at = count(), crash_at
        self._contents: dict[int, bytes] = {}  # By inode, when it was synced.
        self._names: set[Path] = set()  # On the disk: their folder was synced while it had them.
        self._inodes: dict[Path, set[int | None]] = {}  # Which file a name may be of on the disk; None: it may be none.
        opens, fsync, replace = os.open, os.fsync, os.replace

        def watched_open(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if not flags & os.O_CREAT:
                return opens(path, flags, mode, dir_fd=dir_fd)
            self._may_crash()
            fd = opens(path, flags, mode, dir_fd=dir_fd)
            if flags & os.O_EXCL:
                self._inodes[_whole(path, dir_fd)] = {None, os.fstat(fd).st_ino}
            return fd

        def watched_fsync(fd: int) -> None:
            self._may_crash()
            fsync(fd)
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if path.is_dir():
                names = set(path.iterdir())
                self._names |= names
                for name in self._inodes:
                    if name.parent == path:
                        self._inodes[name] = {name.lstat().st_ino if name in names else None}
            else:
                self._contents[os.fstat(fd).st_ino] = path.read_bytes()

        def watched_replace(
            source: str, target: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
        ) -> None:
            self._may_crash()
            path, new = _whole(source, src_dir_fd), _whole(target, dst_dir_fd)
            self.replaced.append(Path(target).name)
            if self._contents.get(path.stat().st_ino) != path.read_bytes():
                self.unsynced.append(Path(target).name)
            if new not in self._inodes:
                self._inodes[new] = {None}
                with suppress(FileNotFoundError):  # What was there before this disk was watched is on it.
                    self._inodes[new] = {inode := new.lstat().st_ino}
                    self._contents.setdefault(inode, new.read_bytes())
            self._inodes[new].add(path.stat().st_ino)
            replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        monkeypatch.setattr(os, "open", watched_open)
        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(os, "replace", watched_replace)

    def _may_crash(self) -> None:
        if next(self._calls) == self._crash_at:
            raise Crash

    def has_name(self, path: Path) -> bool:
        """Whether the name of a file or folder is on the disk."""
        return path in self._names

    def after_power_loss(self, path: Path) -> bytes | None:
        """Return what of a file is on the disk in the worst case; None where its name is not."""
        return self._contents.get(path.stat().st_ino, b"") if path in self._names else None

    def may_hold(self, path: Path) -> set[bytes | None]:
        """Return what a name may hold after a loss of power: the content of each file that it may be of."""
        if path not in self._inodes:
            return {path.read_bytes() if path.exists() else None}
        return {None if inode is None else self._contents.get(inode, b"") for inode in self._inodes[path]}


def _whole(path: str | Path, dir_fd: int | None) -> Path:
    return (Path() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()) / path


def after_each_crash(
    monkeypatch: pytest.MonkeyPatch, prepare: Callable[[], Path], write: Callable[[], object]
) -> Iterator[tuple[bytes | None, set[bytes | None]]]:
    """Crash at each call of a write, and at none; yield what the file holds then, and what after a loss of power.

    prepare: makes everything as it was before the write, and returns the file.
    """
    for crash_at in count():
        path, has_crashed = prepare(), False
        with monkeypatch.context() as patch:
            disk = SimulatedDisk(patch, crash_at=crash_at)
            try:
                write()
            except Crash:
                has_crashed = True
        yield (path.read_bytes() if path.exists() else None), disk.may_hold(path)
        if not has_crashed:
            return
