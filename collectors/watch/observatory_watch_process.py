"""Identifies a rank's process: its rank, world, groups and device, and whether it alone writes the rank's file.

Loaded at a process's first step, next to `observatory_watch`. Imports only the standard library.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_TOKENS = 1e15
"""Values from here on, and NaN, are ignored as token counts."""


def place(module_of: Callable[[str], Any]) -> dict[str, Any]:
    """Return this process's rank, world and process groups, from torch.distributed, else from launcher variables."""

    def number(*names: str) -> int | None:
        words = (os.environ.get(name, "") for name in names)
        return next((int(word) for word in words if word.isdecimal()), None)

    rank, world, backend, groups = number("RANK") or 0, number("WORLD_SIZE") or 1, None, []
    distributed = module_of("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world, backend = distributed.get_rank(), distributed.get_world_size(), distributed.get_backend()
        known = getattr(getattr(distributed.distributed_c10d, "_world", None), "pg_group_ranks", {})
        groups = sorted({tuple(sorted(ranks)) for ranks in known.values()})[:64]
    local = number("LOCAL_RANK", "SLURM_LOCALID")
    return {
        "rank": rank,
        "local_rank": local,
        "world_size": world,
        "local_world_size": number("LOCAL_WORLD_SIZE"),
        "backend": None if backend is None else str(backend),
        "groups": [list(group) for group in groups],
    }


def device(cuda: Any) -> dict[str, Any]:
    """Return the device of this process. cuda: `torch.cuda` if the script uses it, else None."""
    if cuda is None:
        return {"device": "cpu", "device_name": None, "device_uuid": None}
    index = cuda.current_device()
    properties = cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return {
        "device": f"cuda:{index}",
        "device_name": properties.name,
        "device_uuid": None if uuid is None else str(uuid),
    }


def memory(cuda: Any) -> dict[str, int | None]:
    """Return the memory of the caching allocator and the process, in bytes; resets no peak of the allocator.

    cuda: `torch.cuda` if the script uses it, else None.
    """
    stats = {} if cuda is None else cuda.memory_stats()
    return {
        "peak_bytes": stats.get("allocated_bytes.all.peak"),
        "reserved_bytes": stats.get("reserved_bytes.all.current"),
        "peak_reserved_bytes": stats.get("reserved_bytes.all.peak"),
        "rss_bytes": _rss_bytes(),
    }


def _rss_bytes() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # Not Linux.
        return None


def counter(note: Callable[[str], None]) -> Callable[[Any], float | None]:
    """Return a function that gives a declared count of tokens as a plain number; None for what is no count.

    note: called once, if a count was declared that is none. A tensor is none: reading it could wait for a GPU.
    """
    import math
    from numbers import Integral, Real  # numpy's numbers are; a tensor is not.

    kinds: list[str] = []

    def count(tokens: Any) -> float | None:
        number: Any = tokens if isinstance(tokens, Real) else math.nan
        if 0 <= number < MOST_TOKENS:
            return int(number) if isinstance(number, Integral) else float(number)
        if tokens is not None and not kinds:
            kinds.append(type(tokens).__name__)
            note(f"tokens of type {kinds[0]} are ignored: `step(tokens=...)` takes a number from 0 on, and no tensor")
        return None

    return count


def script(main: Any, *, is_redacted: bool) -> str | None:
    """Return the path of the script that runs; redacted, only its file's name. main: the module `__main__`."""
    path: str | None = getattr(main, "__file__", None)
    if path is None:
        return None
    return os.path.basename(path) if is_redacted else os.path.abspath(path)


def is_only_writer(fd: int) -> bool:
    """Lock the file for this process; return False if another holds the lock. Forked children do not inherit it."""
    import errno
    import fcntl

    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # Any other error means a file system without locks.
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


def still_open(fd: int) -> Callable[[], bool]:
    """Return a function that tells whether fd is still the same file: a script may close every open file."""
    opened = os.fstat(fd)

    def is_open() -> bool:
        try:
            return os.path.samestat(os.fstat(fd), opened)
        except OSError:  # The descriptor is closed.
            return False

    return is_open
