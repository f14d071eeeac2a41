"""Folders for temporary files: locked while their process lives, removed afterwards, and swept if it was killed.

Each is in TMPDIR, has one of our prefixes, and has a lock file that contains the name of its host. The folder's process
holds the lock until it ends, however it ends. A folder without our lock is swept only when nothing in it has changed
for days.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from bench.errors import InfrastructureFailed
from collectors.files import exposed_by, holder_of, in_words, open_folder, try_lock

Prefix = Literal[
    "observatory-check-",
    "observatory-key-",
    "observatory-node-",
    "observatory-nodes-",
    "observatory-tree-",
    "pymp-",
    "ray-",
]
CONTENTS: dict[Prefix, str] = {
    "observatory-check-": "a check of nodes",
    "observatory-key-": "a runner's key",
    "observatory-node-": "runs of an agent",
    "observatory-nodes-": "simulated nodes",
    "observatory-tree-": "a source tree",
    "pymp-": "sockets of an agent",
    "ray-": "a Ray cluster and its token",
}
SHARED_PREFIXES: tuple[Prefix, ...] = ("pymp-", "ray-")
"""Prefixes that other programs also use: a folder without our lock is not ours."""
LOCK = "lock"
UNLOCKED_S = 7 * 86_400.0
"""How long a folder without our lock must stay unchanged before it is swept: its process may be about to lock it, and
earlier versions of this program had no locks."""


class TemporaryFolder:
    """A new folder with this prefix in the folder for temporary files. Use it in a `with`, or close it.

    within: another folder to make it in.

    Raises:
        InfrastructureFailed: it cannot be made, for example because the disk is full.
    """

    def __init__(self, prefix: Prefix, within: str | None = None) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
            self._lock: int | None = lock_new(self.path)
        except OSError as error:
            raise InfrastructureFailed(why_no_folder(error, within or tempfile.gettempdir())) from None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder as far as possible; a second call does nothing."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def why_no_folder(error: OSError, folder: str) -> str:
    """Return why no temporary file can be made in a folder, and the next step."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {folder}, the folder for temporary files, is full; make room there, or set TMPDIR to another"
        )
    return f"no temporary file can be made in {folder}: {error.strerror}; set TMPDIR to another folder"


def check_tmpdir() -> str | None:
    """Return a notice if TMPDIR cannot be used, so that Python has silently chosen another folder.

    Raises:
        InfrastructureFailed: its disk is full.
    """
    named = os.environ.get("TMPDIR")
    if not named or str(Path(named).absolute()) == tempfile.gettempdir():
        return None
    try:
        with tempfile.TemporaryFile(dir=named, buffering=0) as file:
            file.write(b"room?")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InfrastructureFailed(why_no_folder(error, named)) from None
        used = tempfile.gettempdir()
        return f"TMPDIR is {named}, which cannot be used ({error.strerror}); temporary files are in {used}"
    return None


def lock_new(folder: Path) -> int:
    """Lock a folder that this process has just made; return the lock's descriptor, whose closing unlocks it.

    Raises:
        OSError: the lock cannot be written.
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            while not try_lock(lock):  # A sweep holds it briefly, and removes nothing without a host's name.
                time.sleep(0.01)
        except OSError:  # The file system has no locks: without a host's name, the folder counts as unlocked.
            return lock
        os.write(lock, socket.gethostname().encode())
    except BaseException:
        os.close(lock)
        raise
    return lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A folder that a sweep found.

    left: why it is still there; None if it was removed, or would be. has_failed: it should have been removed.
    """

    path: Path
    content: str
    left: str | None = None
    has_failed: bool = False


def sweep(*, is_dry: bool = False) -> list[Swept]:
    """Remove this user's folders in TMPDIR whose process has ended; return removed and remaining folders, by name.

    is_dry: only return what would be removed.
    """
    swept = []
    for path in sorted(Path(tempfile.gettempdir()).iterdir()):
        prefix = next((prefix for prefix in CONTENTS if path.name.startswith(prefix)), None)
        if prefix is None:
            continue
        try:
            left = _sweep(path, prefix, is_dry=is_dry)
            swept.append(Swept(path=path, content=CONTENTS[prefix], left=left))
        except FileNotFoundError:  # Its process has just removed it.
            continue
        except OSError as error:
            why = f"it cannot be removed: {in_words(error)}"
            swept.append(Swept(path=path, content=CONTENTS[prefix], left=why, has_failed=True))
    return swept


def sweep_in_background() -> None:
    """Sweep in a thread, because leftovers may be large. If the sweep is cut short, the next one continues it."""
    threading.Thread(target=_sweep_quietly, name="sweeping leftovers", daemon=True).start()


def _sweep_quietly() -> None:
    with suppress(OSError):  # The folder for temporary files cannot be listed; whoever writes there reports it.
        sweep()


def _sweep(path: Path, prefix: Prefix, *, is_dry: bool) -> str | None:
    """Remove a folder if its process has ended; return why it was left.

    Raises:
        OSError: it cannot be removed, or is gone.
    """
    if path.is_symlink():
        return "it is a link"
    if (why := exposed_by(path)) is not None:
        return why
    if not path.is_dir():
        return "it is not a folder"
    folder = open_folder(path)
    try:
        with _lock_of(folder) as lock:
            why = _why_left(path, prefix, lock)
            if why is None and not is_dry:
                _remove(path)
            return why
    finally:
        os.close(folder)


@contextmanager
def _lock_of(folder: int) -> Iterator[int | None]:
    """Yield the descriptor of an open folder's lock; None if it has none."""
    try:
        lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        yield None
        return
    try:
        yield lock
    finally:
        os.close(lock)


def _why_left(path: Path, prefix: Prefix, lock: int | None) -> str | None:
    """Return why a folder must stay; None if its process has ended, and the lock is ours now."""
    host = ""
    if lock is not None:
        try:
            if not try_lock(lock):
                return f"{holder_of(lock)} uses it"
        except OSError as error:
            return f"its lock cannot be read: {error.strerror}"
        host = os.pread(lock, 255, 0).decode(errors="replace")
    if host == socket.gethostname():
        return None
    if host:
        return f"a process on {host} made it; clean it there"
    if prefix in SHARED_PREFIXES:
        return "it has no lock of this program, so another program may use it"
    entries = (Path(parent, name) for parent, *names in os.walk(path) for name in (*names[0], *names[1]))
    age_s = time.time() - max(entry.lstat().st_mtime for entry in (path, *entries))
    if age_s < UNLOCKED_S:
        return f"it has no lock, and changed {age_s / 86_400:.1f} days ago (limit: {UNLOCKED_S / 86_400:.0f} days)"
    return None


def _remove(folder: Path) -> None:
    """Remove a folder, its lock last, so that another sweep completes a removal that is cut short.

    Raises:
        OSError: something in it cannot be removed; the rest was removed.
    """
    problem: OSError | None = None
    for path in folder.iterdir():
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
        except OSError as error:
            problem = error
    if problem is not None:
        raise problem
    (folder / LOCK).unlink(missing_ok=True)
    folder.rmdir()
