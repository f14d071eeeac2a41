"""The blocks of memory that a rank took while it was traced, each with the moment at which it was given back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.allocations import Allocations
from collectors.traces.intervals import Times

Numbers = NDArray[np.int64]

HOST = -1
"""The device of the host's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """One row per block of one device that was taken, by time; and what came and went at each change.

    taken, ended: the number of the change that took it, and of that which ended it; as many as there are changes
        where none did. A block ends when it is given back, or when its address is given out again: the profiler does
        not hear what threads of other libraries drop.
    thread: that took it; -1 where that is not told.
    time_ns, change_bytes: of each change; what ends unheard is taken off where it is noticed.
    total_bytes: all that was handed out after each change, from before the trace too; None where that is not told.
    """

    taken: Numbers
    ended: Numbers
    address: NDArray[np.uint64]
    size_bytes: Numbers
    thread: Numbers
    time_ns: Times
    change_bytes: Numbers
    total_bytes: Numbers | None

    def alive_after(self, change: int) -> NDArray[np.bool_]:
        """Per block whether it is there after the change."""
        alive: NDArray[np.bool_] = (self.taken <= change) & (self.ended > change)
        return alive


def blocks_of(allocations: Allocations, device: int) -> Blocks:
    """Those of one device.

    The total of the host's memory counts from the first profile of the process on, not from its start, so that it
    is not told.
    """
    rows = np.flatnonzero((allocations.device == device) & (allocations.change_bytes != 0))
    address, change_bytes = allocations.address[rows], allocations.change_bytes[rows].copy()
    by_address = np.argsort(address, kind="stable")
    is_same = address[by_address[1:]] == address[by_address[:-1]]
    followed_by = np.full(rows.size, rows.size, dtype=np.int64)
    followed_by[by_address[:-1][is_same]] = by_address[1:][is_same]
    taken = np.flatnonzero(change_bytes > 0)
    ended, size_bytes = followed_by[taken], change_bytes[taken]
    taken_again = (ended < rows.size) & (np.append(change_bytes, 0)[ended] > 0)
    change_bytes[ended[taken_again]] -= size_bytes[taken_again]
    total_bytes = allocations.allocated_bytes[rows]
    is_told = device != HOST and bool((total_bytes >= 0).all())
    return Blocks(
        taken=taken,
        ended=ended,
        address=address[taken],
        size_bytes=size_bytes,
        thread=allocations.thread[rows][taken],
        time_ns=allocations.time_ns[rows],
        change_bytes=change_bytes,
        total_bytes=total_bytes if is_told else None,
    )
