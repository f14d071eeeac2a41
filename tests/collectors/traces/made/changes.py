"""Memory events that were made by hand."""

from __future__ import annotations

import numpy as np

from collectors.traces.analyzers.memory import HOST
from collectors.traces.timeline import Allocations


def changes(
    *rows: tuple[int, int, int], device: int = HOST, thread: int = -1, totals: list[int] | None = None
) -> Allocations:
    """Those of one device, each a time, an address and by how many bytes; totals: what was held after each."""
    return Allocations(
        time_ns=np.array([time_ns for time_ns, _, _ in rows], dtype=np.int64),
        address=np.array([address for _, address, _ in rows], dtype=np.uint64),
        change_bytes=np.array([change for _, _, change in rows], dtype=np.int64),
        allocated_bytes=np.array([-1] * len(rows) if totals is None else totals, dtype=np.int64),
        device=np.full(len(rows), device, dtype=np.int16),
        thread=np.full(len(rows), thread, dtype=np.int64),
    )
