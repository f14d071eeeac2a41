"""Opening a file for reading where a name may be that of something else: a folder, a pipe, a socket or a device."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_OTHER_KINDS = {
    stat.S_IFIFO: "Is a named pipe",
    stat.S_IFSOCK: "Is a socket",
    stat.S_IFCHR: "Is a device",
    stat.S_IFBLK: "Is a device",
}


class NotRegular(OSError):
    """A name is that of a pipe, socket or device, whose reading may wait or go on for ever. `strerror` says which."""


def open_regular(path: Path, *, follows_link: bool = True) -> BinaryIO:
    """Open a regular file for reading, without waiting for whatever else the name may be of.

    follows_link: the path itself may be a link. A link in its place is an error of the system (ELOOP) otherwise.

    Raises:
        NotRegular: it is a pipe, a socket or a device.
        IsADirectoryError: it is a folder.
        OSError: it cannot be opened.
    """
    # O_NONBLOCK: a named pipe that nobody writes to would keep us waiting. A regular file is read as without it.
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
        OSError: it is none, or cannot be read.
    """
    with open_regular(path) as file:
        return file.read()


def _not_regular(path: Path, mode: int) -> OSError:
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return NotRegular(errno.EINVAL, _OTHER_KINDS.get(stat.S_IFMT(mode), "Is no regular file"), str(path))
