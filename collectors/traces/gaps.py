"""What a set of intervals leaves free."""

from __future__ import annotations

import numpy as np

from collectors.traces.intervals import Times, clip, intersection


def gaps(intervals: Times, start_ns: int, end_ns: int) -> Times:
    """The moments of one window that are not in the set."""
    held = clip(intervals, start_ns, end_ns)
    edges_ns = np.concatenate(([start_ns], held.ravel(), [end_ns])).astype(np.int64).reshape(-1, 2)
    return edges_ns[edges_ns[:, 1] > edges_ns[:, 0]]


def without(one: Times, other: Times) -> Times:
    """The moments of one set that are not in the other."""
    if not one.size:
        return one
    return intersection(one, gaps(other, int(one[0, 0]), int(one[-1, 1])))
