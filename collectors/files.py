"""Files that several processes and users share: safe writing, locks, and schema versions.

These functions never write through a link or into another user's folder, so others who may write to the folder of runs
cannot redirect our files. A name may also belong to a pipe, a socket or a device; `open_regular` refuses these.
`in_words` puts any error into one line.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

import msgspec


class _Versioned(msgspec.Struct):
    schema_version: int


def schema_version_of(document: bytes) -> int:
    """Return the schema version of a JSON document. Check it before decoding: a newer form may not decode.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: it is not JSON, or has no schema version.
    """
    return msgspec.json.decode(document, type=_Versioned).schema_version


# Ownership of folders


class NotOurs(PermissionError):
    """The path to write belongs to another user or is a link."""


def is_ours(path: Path) -> bool:
    """Return whether this is a folder or file that belongs to this user, and not a link."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode)


def open_folder(path: Path) -> int:
    """Open a folder to write in it; return its file descriptor. Its parents may belong to anyone.

    Raises:
        NotOurs: it is a link, or belongs to another user.
        OSError: it cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
            raise NotOurs(errno.EPERM, "it is a link, but must be a folder", str(path)) from None
        raise
    try:
        _require_ours(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_ours(fd: int, path: Path) -> None:
    uid = os.fstat(fd).st_uid
    if uid != os.geteuid():
        raise NotOurs(
            errno.EPERM, f"it belongs to {user_name(uid)}, and this program writes only to your own files", str(path)
        )


def user_name(uid: int) -> str:
    """Return a user in words, for example `user bob (uid 1002)`."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"the user with uid {uid}"


# Who may read what we write. The commands run with PRIVATE, or with SHARED if --shared is given. A file in a folder is
# as open as the folder, so ranks and agents on other nodes need no setting.

PRIVATE = 0o077
SHARED = 0o027
READABLE = 0o022
"""Masks for `os.umask`: only the owner, also the group, or everybody may read."""
DRAFTS = ".*.part"
"""Names of the files that a process leaves in a folder if it is killed while it writes there."""


def make_folder(path: Path, *, exist_ok: bool = True) -> None:
    """Make a folder and its missing parents, readable by this user alone, or also by the group with SHARED.

    Raises:
        OSError: the folder cannot be made.
    """
    if exist_ok and path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    path.mkdir(0o750, parents=True, exist_ok=exist_ok)


def make_subfolder(path: Path) -> None:
    """Make a folder within a folder of ours, with the parent's permissions, unless it exists.

    Raises:
        NotOurs: the parent, or what exists at the path, is a link or belongs to another user.
        OSError: the folder cannot be made.
    """
    parent = open_folder(path.parent)
    try:
        parent_mode = stat.S_IMODE(os.fstat(parent).st_mode)
        with suppress(FileExistsError):
            os.mkdir(path.name, parent_mode, dir_fd=parent)
            if os.stat(path.name, dir_fd=parent).st_mode & 0o777 != parent_mode & 0o777:  # Our umask differs.
                os.chmod(path.name, parent_mode, dir_fd=parent)
        os.close(open_folder(path))
    finally:
        os.close(parent)


def _mode_within(folder: int) -> int:
    """Return the mode of a new file in an open folder: as readable as the folder, writable by the owner alone."""
    return 0o600 | os.fstat(folder).st_mode & 0o044


# Writing


def replace_file(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace or create a file in our folder atomically; see `drafted`.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    with drafted(path, mode=mode) as file:
        file.write(content)


@contextmanager
def drafted(path: Path, *, mode: int | None = None, is_any_folder: bool = False) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces the path when the block succeeds, and is removed when it fails.

    A reader sees either the old content or the new, even after a crash. A link at the path is replaced, not followed.
    A pipe, a socket or a device of ours or of root is refused; another user's is replaced.

    mode: the file's permissions; None makes it as readable as the folder. is_any_folder: a person named the file, so
    its folder may belong to another user, like /tmp.

    Raises:
        NotOurs: the folder is a link, or belongs to another user.
        OSError: the file cannot be written, or the path is not a file; what was there is unchanged.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if is_any_folder else None
    if folder is None:
        folder = open_folder(path.parent)
    draft = DRAFTS.replace("*", secrets.token_hex(8))
    try:
        with suppress(FileNotFoundError):  # Refuse a folder, or a name that is too long, before the content is made.
            existing = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(existing.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            is_special = not stat.S_ISREG(existing.st_mode) and not stat.S_ISLNK(existing.st_mode)
            if is_special and existing.st_uid in (0, os.geteuid()):  # Replace another user's, like their link.
                raise OSError(errno.EINVAL, "a pipe, a socket or a device is there, not a file", str(path))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(draft, flags, 0o600, dir_fd=folder)
        try:
            with os.fdopen(fd, "w+b") as file:
                yield file
                file.flush()
                os.fchmod(fd, mode if mode is not None else 0o600 if is_any_folder else _mode_within(folder))
                os.fsync(fd)
            os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise
    except OSError as error:
        if error.filename in (None, draft, path.name):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        os.close(folder)


def sync_folder(folder: Path) -> None:
    """Write the names of a folder's new files to disk; syncing a file writes its content alone.

    Raises:
        OSError: it cannot be opened or synced.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_named(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Write a file that a person named: replace it atomically, or write into a device, for example /dev/stdout.

    mode: of the file; None takes the mode of the file that it replaces.

    Raises:
        NotOurs: the path is a link, a device or a pipe of another user.
        OSError: the file cannot be written, or the path is a pipe that nobody reads.
    """
    try:
        existing = path.lstat()
    except FileNotFoundError:
        existing = None
    if existing is None or stat.S_ISREG(existing.st_mode) or stat.S_ISDIR(existing.st_mode):
        is_own = existing is not None and existing.st_uid == os.geteuid()
        mode = existing.st_mode & 0o777 if mode is None and existing and is_own else mode
        with drafted(path, mode=mode, is_any_folder=True) as file:
            file.write(content)
        return
    if existing.st_uid not in (0, os.geteuid()) or is_open_to_others(path.parent.stat()):
        raise NotOurs(errno.EPERM, f"a link or pipe of {user_name(existing.st_uid)} may be there", str(path))
    try:  # Opening a pipe would wait for a reader, perhaps forever.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO and path.is_fifo():
            raise OSError(errno.ENXIO, "nobody reads this pipe", str(path)) from None
        raise
    os.set_blocking(fd, True)
    with os.fdopen(fd, "wb") as opened:
        opened.write(content)


def open_to_append(path: Path) -> int:
    """Open or create a log in our folder; return its file descriptor, which can also be read.

    Raises:
        NotOurs: the folder or the file belongs to another user, or is a link.
        OSError: the file cannot be opened, or is not a regular file.
    """
    folder = open_folder(path.parent)
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            fd = _open_regular(path, flags, folder)
        except FileNotFoundError:
            with suppress(FileExistsError):
                fd = os.open(path.name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
                os.fchmod(fd, _mode_within(folder))
                return fd
            fd = _open_regular(path, flags, folder)  # Another process created it meanwhile.
    finally:
        os.close(folder)
    try:
        _require_ours(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_to_read(path: Path) -> IO[bytes]:
    """Open a file that ranks, agents or runners have written; never waits for a pipe.

    Raises:
        NotOurs: it is a link.
        OSError: it cannot be opened, or is not a regular file.
    """
    try:
        return open_regular(path, follows_link=False)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise NotOurs(errno.EPERM, "it is a link, but must be a file", str(path)) from None
        raise


def _open_regular(path: Path, flags: int, folder: int | None = None) -> int:
    try:
        fd = os.open(path if folder is None else path.name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotOurs(errno.EPERM, "it is a link, but must be a file", str(path)) from None
        error.filename = str(path)
        raise
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return fd


def is_open_to_others(folder: os.stat_result) -> bool:
    """Return whether others may replace a folder's files: it is writable by them and lacks /tmp's sticky bit."""
    return not folder.st_mode & stat.S_ISVTX and is_writable_by_others(folder)


def is_writable_by_others(folder: os.stat_result) -> bool:
    """Return whether users other than the owner may create files in a folder."""
    is_groups = bool(folder.st_mode & stat.S_IWGRP) and not _is_own_group(folder)
    return is_groups or bool(folder.st_mode & stat.S_IWOTH)


def _is_own_group(folder: os.stat_result) -> bool:
    """Return whether a folder's group is the private group that distributions create for each user."""
    try:
        return grp.getgrgid(folder.st_gid).gr_name == pwd.getpwuid(folder.st_uid).pw_name
    except KeyError:
        return folder.st_gid == folder.st_uid


def exposed_by(path: Path) -> str | None:
    """Return why another user could change entries of this folder, which need not exist yet; None if nobody could."""
    path = path.absolute()
    real = path.resolve()
    for folder in dict.fromkeys((path, *path.parents, real, *real.parents)):
        try:
            status = folder.lstat()
            if stat.S_ISLNK(status.st_mode) and status.st_uid in (0, os.geteuid()):
                continue  # The loop also checks its target.
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{folder} cannot be read ({error.strerror})"
        if status.st_uid not in (0, os.geteuid()):
            return f"{folder} belongs to another user"
        # In a sticky folder nobody can replace what is ours, but anybody can take a name that is still free.
        if is_writable_by_others(status) and not (status.st_mode & stat.S_ISVTX and _has_next(path, real, folder)):
            return f"other users may write to {folder}"
    return None


def _has_next(path: Path, real: Path, folder: Path) -> bool:
    """Return whether the path's next entry in the folder exists; the caller has checked its owner."""
    whole = path if path.is_relative_to(folder) else real
    return folder != whole and os.path.lexists(folder / whole.relative_to(folder).parts[0])


# Locks. Anybody who may read a file or folder can hold its lock, so every wait has a limit.

LOCK_WAIT_S = 10.0


def try_lock(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file or folder unless another process holds the lock; return whether we hold it now.

    The lock ends when the file is closed or the process ends.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked_by_another(path: Path) -> bool:
    """Whether another process holds a POSIX lock on the file; False if it cannot be read, or locks are unknown."""
    try:
        with open_to_read(path) as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN) and os.access(path, os.R_OK)
    return False


@contextmanager
def locked(folder: Path, *, within_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold a folder's lock; wait up to `within_s` for another process to release it.

    Raises:
        TimeoutError: another process still holds it; the message says which.
        OSError: the folder cannot be opened, or its file system has no locks.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    until_s = time.monotonic() + within_s
    try:
        while not try_lock(fd):
            if time.monotonic() >= until_s:
                why = f"{holder_of(fd)} has held its lock for {within_s:g} s; end it, or try again when it has ended"
                raise TimeoutError(errno.ETIMEDOUT, why, str(folder))
            time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def holder_of(fd: int) -> str:
    """Return who holds the lock of an open file or folder: `process 4242 ('sleep') of user bob (uid 1002)`.

    Source: proc_locks(5); locks of another host or container are missing or name no process.
    """
    status = os.fstat(fd)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE 4242 fd:01:131 0 EOF; those that wait have -> second.
            if words[1] == "FLOCK" and words[5] == place and int(words[4]) > 0:
                process = Path("/proc", words[4])
                program = (process / "comm").read_text(errors="replace").strip()
                return f"process {words[4]} ({program!a}) of {user_name(process.stat().st_uid)}"
    return "a process that this machine does not list, perhaps on another host"


_OTHER_KINDS = {
    stat.S_IFIFO: "Is a named pipe",
    stat.S_IFSOCK: "Is a socket",
    stat.S_IFCHR: "Is a device",
    stat.S_IFBLK: "Is a device",
}


class NotRegular(OSError):
    """The file is a pipe, socket or device, and reading it might never end. `strerror` says which."""


def open_regular(path: Path, *, follows_link: bool = True) -> BinaryIO:
    """Open a regular file for reading; never waits for a pipe or a device.

    follows_link: whether the path itself may be a link; if not, a link raises the system's error ELOOP.

    Raises:
        NotRegular: it is a pipe, a socket or a device.
        IsADirectoryError: it is a folder.
        OSError: it cannot be opened.
    """
    # O_NONBLOCK: opening a named pipe would wait for a writer. It changes nothing for a regular file.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(path, flags if follows_link else flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise _not_regular(path, path.stat().st_mode) from None  # A socket, or a device without a driver.
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    raise _not_regular(path, mode)


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it is not a regular file, or cannot be read.
    """
    with open_regular(path) as file:
        return file.read()


def _not_regular(path: Path, mode: int) -> OSError:
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return NotRegular(errno.EINVAL, _OTHER_KINDS.get(stat.S_IFMT(mode), "Is not a regular file"), str(path))


def in_words(error: BaseException) -> str:
    """Return the error's message on one line, without the exception's class name if it is clear without.

    Errors other than OSError, RuntimeError, ValueError and KeyError are reported as our bugs, with their class.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if isinstance(error, (OSError, RuntimeError, ValueError)) and str(error):
        return str(error)
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return f"a bug of ours, {type(error).__name__}: {error}"
