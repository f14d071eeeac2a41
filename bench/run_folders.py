"""Which runs of a folder somebody works on, and which have ended: told by a lock that ends with its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Container, Iterator
from pathlib import Path


def ended_folders(runs: Path) -> Iterator[Path]:
    """Folders of runs that nobody works on any more, oldest first."""
    return (folder for folder in _folders(runs) if not is_running(folder))


def running_folders(runs: Path, ended: Container[str] = ()) -> Iterator[Path]:
    """Folders of runs that somebody works on, oldest first. ended: names of folders that need no look."""
    return (
        folder
        for folder in _folders(runs)
        if folder.name not in ended and not (folder / "summary.json").exists() and is_running(folder)
    )


def is_running(folder: Path) -> bool:
    """Whether somebody works on the run.

    Looks through a lock that any number may hold, so that those who look do not see each other as runs.
    """
    try:
        lock = lock_folder(folder, fcntl.LOCK_SH)
    except OSError:  # Deleted while we looked, or another user's: none that could be shown.
        return False
    if lock is None:
        return True
    os.close(lock)
    return False


def lock_folder(folder: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    """The folder's lock as a file descriptor, None where somebody else has it. It ends with its process."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _folders(runs: Path) -> Iterator[Path]:
    if not runs.is_dir():
        return
    for folder in sorted(runs.iterdir()):
        with contextlib.suppress(PermissionError):  # Another user's.
            if not (folder / "case.json").is_file():
                continue
            yield folder
