"""What a rank allocated and freed while it was traced, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """One row each time a block of memory was taken or given back, by time.

    time_ns: Unix time. address: of the block. change_bytes: above 0 taken, below 0 given back.
    allocated_bytes: all that the allocator had handed out after it; -1 where the trace does not say.
    device: the GPU's index; -1 for the host's memory.
    thread: of the host that took it or gave it back, as the streams of a Timeline number it; -1 where it is not told.
    """

    time_ns: NDArray[np.int64]
    address: NDArray[np.uint64]
    change_bytes: NDArray[np.int64]
    allocated_bytes: NDArray[np.int64]
    device: NDArray[np.int16]
    thread: NDArray[np.int64]


NO_ALLOCATIONS = Allocations(
    time_ns=np.empty(0, dtype=np.int64),
    address=np.empty(0, dtype=np.uint64),
    change_bytes=np.empty(0, dtype=np.int64),
    allocated_bytes=np.empty(0, dtype=np.int64),
    device=np.empty(0, dtype=np.int16),
    thread=np.empty(0, dtype=np.int64),
)
