"""Recognises a full disk behind a rank's error, in whatever form; the run continues once there is room."""

from __future__ import annotations

import errno
import os


class DiskFull(OSError):
    """A file of the rank could not be written because the disk or the user's quota is full."""


_FULL = {number: os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT)}


def as_full_disk(error: BaseException) -> DiskFull | None:
    """Return a `DiskFull` if the error comes from a full disk, or was raised while handling such an error; else None.

    For example, closing an archive after a failed write raises a ValueError. C++ code passes on the system's words.
    """
    cause: BaseException | None = error
    while cause is not None:
        for number, words in _FULL.items():
            if isinstance(cause, OSError) and cause.errno == number:
                return DiskFull(f"{words}: {cause.filename}" if cause.filename else words)
            if words in str(cause):
                return DiskFull(next(line for line in str(cause).splitlines() if words in line))
        cause = cause.__cause__ or cause.__context__
    return None
