"""The kernel's files under /proc and /sys, or a folder in which they were recorded.

Knows no metric and no part of the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from collectors.metrics.metric import Sample

_PIECE_BYTES = 1 << 16
_OF_A_PAGE = os.sysconf("SC_PAGE_SIZE")
_OF_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFiles:
    """Paths are given without the first slash and named with it in every error, whatever the root.

    page_bytes, ticks_per_s: the units in which the kernel counts some things.
    """

    root: Path = field(default_factory=lambda: Path("/"))
    page_bytes: int = _OF_A_PAGE
    ticks_per_s: int = _OF_A_SECOND

    def text(self, path: str) -> str:
        """What a file says now.

        Raises:
            OSError: it is not there or is not read.
        """
        try:
            return self._read(f"{self.root}/{path}").decode("utf-8", "replace")
        except OSError as error:
            raise _named(error, path) from None

    def names(self, path: str) -> tuple[str, ...]:
        """What a folder holds, sorted.

        Raises:
            OSError: it is not there or is not read.
        """
        try:
            return tuple(sorted(entry.name for entry in (self.root / path).iterdir()))
        except OSError as error:
            raise _named(error, path) from None

    def target(self, path: str) -> str:
        """Where a link points to.

        Raises:
            OSError: it is not there or is no link.
        """
        try:
            return str((self.root / path).readlink())
        except OSError as error:
            raise _named(error, path) from None

    def _read(self, path: str) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            # A file of /proc comes in pieces of the kernel's choosing; only an empty one is the end.
            while piece := os.read(descriptor, _PIECE_BYTES):
                pieces.append(piece)
            return b"".join(pieces)
        finally:
            os.close(descriptor)


def _named(error: OSError, path: str) -> OSError:
    return OSError(error.errno, error.strerror, f"/{path}")


# What a part of the host is, and how it says that it lacks something.


@dataclass(frozen=True, slots=True)
class Absent:
    """Something that this host does not give now. reason: names it, and says why."""

    reason: str


Found = Sample | Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the host.

    read: what the kernel says now; raises OSError where it says nothing, LookupError or ValueError where it says
    something else than is known. pause_s: how long an answer will do, since asking for it costs more than for others.
    """

    name: str
    read: Callable[[KernelFiles], Iterable[Found]]
    pause_s: float = 0.0
