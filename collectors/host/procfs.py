"""Reads the kernel's files under /proc and /sys, or recorded copies in a folder, and its clock; defines `HostPart`.

Knows no particular metric and no particular part of the host.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from collectors.metrics.metric import Sample
from workloads.cost_models.absent import Absent

_PIECE_BYTES = 1 << 16
_OF_A_PAGE = os.sysconf("SC_PAGE_SIZE")
_OF_A_SECOND = os.sysconf("SC_CLK_TCK")


class _Timex(ctypes.Structure):
    """The kernel's `struct timex` on 64-bit Linux."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),  # Larger than the remaining fields, which the kernel writes.
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    """The kernel's report on its clock. offset: in the unit that the status flags; max_error_us: in microseconds."""

    offset: int
    max_error_us: int
    status: int


def ask_kernel() -> ClockState:
    """Query the kernel's clock without changing it.

    Raises:
        OSError: the kernel refuses, for example in a container.
    """
    library = ctypes.CDLL(None, use_errno=True)
    answer = _Timex()  # modes is 0: set nothing.
    if library.adjtimex(ctypes.byref(answer)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "adjtimex")
    return ClockState(offset=answer.offset, max_error_us=answer.maxerror, status=answer.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFiles:
    """The kernel's files under a root folder.

    Paths are given without the leading slash; errors name them with it, whatever the root.
    page_bytes, ticks_per_s: the units of some of the kernel's counters. clock: queries the clock's state.
    """

    root: Path = field(default_factory=lambda: Path("/"))
    page_bytes: int = _OF_A_PAGE
    ticks_per_s: int = _OF_A_SECOND
    clock: Callable[[], ClockState] = ask_kernel

    def text(self, path: str) -> str:
        """Read a file.

        Raises:
            OSError: it does not exist or cannot be read.
        """
        try:
            return self._read(f"{self.root}/{path}").decode("utf-8", "replace")
        except OSError as error:
            raise _named(error, path) from None

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder, sorted.

        Raises:
            OSError: it does not exist or cannot be read.
        """
        try:
            return tuple(sorted(entry.name for entry in (self.root / path).iterdir()))
        except OSError as error:
            raise _named(error, path) from None

    def target(self, path: str) -> str:
        """Return the target of a link.

        Raises:
            OSError: it does not exist or is not a link.
        """
        try:
            return str((self.root / path).readlink())
        except OSError as error:
            raise _named(error, path) from None

    def _read(self, path: str) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            # The kernel chooses how much of a file in /proc a read returns; only an empty read means the end.
            while piece := os.read(descriptor, _PIECE_BYTES):
                pieces.append(piece)
            return b"".join(pieces)
        finally:
            os.close(descriptor)


def _named(error: OSError, path: str) -> OSError:
    return OSError(error.errno, error.strerror, f"/{path}")


# Parts of the host.


HostAnswer = Sample | Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPart:
    """A part of the host.

    read: returns the kernel's current values; raises OSError if there are none, LookupError or ValueError if their
    format is unknown. pause_s: how long an answer is repeated, for parts that are costly to read.
    """

    name: str
    read: Callable[[KernelFiles], Iterable[HostAnswer]]
    pause_s: float = 0.0
