"""Active and ended runs of a folder: a run is active while its process holds a lock on the run's folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from collectors.files import holder_of, is_locked_by_another, is_ours, try_lock

Stage = Literal["not begun", "running", "ended"]

PRUNED = ".pruned-"
"""Beginning of the name of a folder that is being deleted: it is no longer a run, whatever is left in it."""
SETTLED_S = 5.0
"""How long a folder's mtime must have been unchanged before its listing can be reused: file systems record mtime in
ticks, some of seconds, so that two changes within one tick look the same.
"""
AGAIN_S = 30.0
"""How long a listing may be reused at most: network file systems may report a change late, or never."""


def ended_folders(runs: Path, *, of_all_users: bool = False) -> Iterator[Path]:
    """Return the folders of runs that no process works on, nor writes to, oldest first; see `run_folders`."""
    folders = run_folders(runs, of_all_users=of_all_users)
    return (folder for folder in folders if not is_running(folder) and not is_written(folder))


def running_folders(runs: Path, *, of_all_users: bool = False) -> Iterator[Path]:
    """Return the folders of runs that a process works on, oldest first; see `run_folders`."""
    return (folder for folder in run_folders(runs, of_all_users=of_all_users) if stage_of(folder) == "running")


def stage_of(folder: Path) -> Stage:
    """Return the stage of the run in this folder; "ended" also if we may not read it."""
    try:
        # The case first: a run takes its lock before it writes its case.
        if not has_case(folder):
            return "not begun"
        is_over = (folder / "summary.json").exists()
    except PermissionError:
        return "ended"
    return "running" if not is_over and is_running(folder) else "ended"


class FollowedFolders:
    """The running runs of a folder, polled repeatedly; a run that has ended is not examined again.

    A poll therefore costs as much as the running runs, however many old runs there are. The folder is listed again if
    its mtime has changed, or if its mtime is not reliable; see SETTLED_S and AGAIN_S.

    of_all_users: also follow runs of other users. stage: returns the stage of a run's folder. clock_ns: a monotonic
        clock.
    """

    def __init__(
        self,
        runs: Path,
        *,
        of_all_users: bool = False,
        stage: Callable[[Path], Stage] = stage_of,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._runs, self._of_all_users = runs, of_all_users
        self._stage, self._clock_ns = stage, clock_ns
        self._names: list[str] = []
        self._ended: set[str] = set()
        self._change: tuple[int, int] | None = None
        self._changed_ns = self._listed_ns = 0

    def running(self) -> dict[str, Path]:
        """Return the folders of the running runs, by name, oldest first; none if there is no folder of runs.

        Raises:
            OSError: the folder of runs cannot be read.
        """
        self._list()
        running: dict[str, Path] = {}
        for name in tuple(self._names):
            folder = self._runs / name
            stage = self._stage(folder)
            if stage == "running":
                running[name] = folder
            elif stage == "ended":
                self.leave_out(name)
        return running

    def leave_out(self, name: str) -> None:
        """Treat the run as ended."""
        self._ended.add(name)
        self._names.remove(name)

    def _list(self) -> None:
        now_ns = self._clock_ns()
        try:
            folder_stat = self._runs.stat()
        except FileNotFoundError:
            self._names, self._change = [], None
            return
        change = (folder_stat.st_ino, folder_stat.st_mtime_ns)
        if change != self._change:
            self._change, self._changed_ns = change, now_ns
        elif self._listed_ns - self._changed_ns >= SETTLED_S * 1e9 and now_ns - self._listed_ns < AGAIN_S * 1e9:
            return
        with os.scandir(self._runs) as entries:
            names = {
                entry.name
                for entry in entries
                if entry.name in self._ended
                or (
                    entry.is_dir(follow_symlinks=False)
                    and not entry.name.startswith(PRUNED)
                    and (self._of_all_users or is_ours(self._runs / entry.name))
                )
            }
        self._ended &= names
        self._names = sorted(names - self._ended)
        self._listed_ns = now_ns


def is_running(folder: Path) -> bool:
    """Whether a process works on the run.

    Tries a shared lock, so that two simultaneous checks do not take each other for the run.
    """
    try:
        lock = lock_folder(folder, fcntl.LOCK_SH)
    except OSError:  # Just deleted, or another user's: not a run to show.
        return False
    if lock is None:
        return True
    os.close(lock)
    return False


def is_written(folder: Path) -> bool:
    """Whether a rank of a watched run still writes its steps, though the watch itself may have died.

    Each rank locks its own file. A run with a summary has ended.
    """
    if (folder / "summary.json").exists():
        return False
    return any(map(is_locked_by_another, folder.glob("watch_rank*.jsonl")))


def lock_folder(folder: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    """Lock the folder until the process ends; return the lock's file descriptor, None if it is already locked."""
    fd = os.open(folder, _TO_LOCK)
    if try_lock(fd, kind):
        return fd
    os.close(fd)
    return None


_TO_LOCK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def lock_holder(folder: Path) -> str:
    """Return who holds the folder's lock; see `collectors.files.holder_of`."""
    fd = os.open(folder, _TO_LOCK)
    try:
        return holder_of(fd)
    finally:
        os.close(fd)


def run_folders(runs: Path, *, of_all_users: bool = False) -> Iterator[Path]:
    """Return the folders of this user's runs, oldest first; of_all_users: include readable ones of other users.

    Another user's run is not ours to judge, store or delete: anyone could put one here. A link is not a run folder.
    """
    if not runs.is_dir():
        return
    for folder in sorted(runs.iterdir()):
        if folder.is_symlink() or folder.name.startswith(PRUNED) or not (of_all_users or is_ours(folder)):
            continue
        with contextlib.suppress(PermissionError):  # Another user's.
            if has_case(folder):
                yield folder


_RUN = re.compile(r"\d{8}-\d{6}-(.+)-[0-9a-f]{6}")


def name_of(folder: Path) -> str | None:
    """Return the strategy or watched job that a run's folder is named after; None if it has no such name."""
    match = _RUN.fullmatch(folder.name)
    return None if match is None else match[1]


def unreported_folders(runs: Path, *, of_all_users: bool = False) -> Iterator[Path]:
    """Return the folders of this user's watched commands that have no report of any process; links are left out.

    of_all_users: include readable ones of other users.
    """
    if not runs.is_dir():
        return
    for folder in sorted(runs.iterdir()):
        if folder.is_symlink() or folder.name.startswith(PRUNED) or not (of_all_users or is_ours(folder)):
            continue
        with contextlib.suppress(PermissionError):  # Another user's.
            if (folder / "watch.json").is_file() and not has_case(folder):
                yield folder


def slot_folders(runs: Path) -> Iterator[Path]:
    """Return the folders of all users' active runs, including watched ones of which no rank has reported yet."""
    yield from running_folders(runs, of_all_users=True)
    yield from filter(is_running, unreported_folders(runs, of_all_users=True))


def has_case(folder: Path) -> bool:
    """Whether the folder has a run: its case or, for a watched run, whose ranks make the case, a rank's report."""
    if (folder / "case.json").is_file():
        return True
    is_watched = all((folder / name).is_file() for name in ("watch.json", "machine.json"))
    return is_watched and any(folder.glob("watch_rank*.jsonl"))
