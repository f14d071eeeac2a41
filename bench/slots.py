"""Small numbers that tell the runs apart which go on at the same time in one folder of runs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path


def lowest_free(taken: Container[int]) -> int:
    """The lowest slot that is not taken."""
    return next(slot for slot in count() if slot not in taken)


@contextmanager
def one_at_a_time(runs: Path) -> Iterator[None]:
    """Who is inside is alone there among all that begin a run in this folder, so that no two choose the same slot.

    Raises:
        OSError: the folder cannot be opened.
    """
    fd = os.open(runs, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
