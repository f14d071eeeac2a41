"""The host's clock by its kernel: how far it is off, how far it may be, and whether anything keeps it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from collectors.metrics import host
from collectors.metrics.metric import Sample

_UNSYNCHRONISED = 0x0040
_IN_NANOSECONDS = 0x2000
"""Bits of the status. Source: linux/timex.h, STA_UNSYNC and STA_NANO."""


class _Timex(ctypes.Structure):
    """The kernel's `struct timex`, as 64-bit Linux has it."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),  # More than what follows: the kernel writes into it.
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    """The kernel's report on its clock. offset: in the units that the status names; max_error_us: in microseconds."""

    offset: int
    max_error_us: int
    status: int


def ask_kernel() -> ClockState:
    """Ask the kernel, and change nothing.

    Raises:
        OSError: the kernel refuses, as it may in a container.
    """
    library = ctypes.CDLL(None, use_errno=True)
    answer = _Timex()  # modes is 0: nothing is set.
    if library.adjtimex(ctypes.byref(answer)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "adjtimex")
    return ClockState(offset=answer.offset, max_error_us=answer.maxerror, status=answer.status)


def read_clock(ask: Callable[[], ClockState]) -> Iterator[Sample]:
    """Return the clock's offset, its maximum error, and whether it is kept.

    The offset is what is left to correct: near 0 where chrony corrects by frequency, whatever the error was.
    """
    state = ask()
    per_second = 1e9 if state.status & _IN_NANOSECONDS else 1e6
    yield host.HOST_CLOCK_OFFSET_SECONDS.at(state.offset / per_second)
    yield host.HOST_CLOCK_ERROR_SECONDS.at(state.max_error_us / 1e6)
    yield host.HOST_CLOCK_KEPT.at(0 if state.status & _UNSYNCHRONISED else 1)
