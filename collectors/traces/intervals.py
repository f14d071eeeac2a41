"""Exact algebra of time intervals in integer nanoseconds.

A set of intervals is an int64 array of shape (n, 2), rows [start, end), sorted and disjoint; `union` makes one.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Times: TypeAlias = NDArray[np.int64]


def union(start_ns: Times, end_ns: Times) -> Times:
    """The set of moments that at least one interval covers; touching intervals become one, empty ones vanish."""
    lasting = end_ns > start_ns
    start_ns, end_ns = start_ns[lasting], end_ns[lasting]
    if not start_ns.size:
        return np.empty((0, 2), dtype=np.int64)
    order = np.argsort(start_ns, kind="stable")
    start_ns, latest_ns = start_ns[order], np.maximum.accumulate(end_ns[order])
    # A new interval begins where a start lies behind every end before it.
    is_first = np.concatenate(([True], start_ns[1:] > latest_ns[:-1]))
    is_last = np.concatenate((is_first[1:], [True]))
    return np.stack((start_ns[is_first], latest_ns[is_last]), axis=1)


def length_ns(intervals: Times) -> int:
    """How long the set lasts."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def intersection(one: Times, other: Times) -> Times:
    """The moments in both sets."""
    if not one.size or not other.size:
        return np.empty((0, 2), dtype=np.int64)
    # Each interval of one meets a run of intervals of the other, since both are sorted and disjoint.
    first = np.searchsorted(other[:, 1], one[:, 0], side="right")
    last = np.searchsorted(other[:, 0], one[:, 1], side="left")
    counts = np.maximum(last - first, 0)
    mine = np.repeat(np.arange(len(one)), counts)
    theirs = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    start_ns = np.maximum(one[mine, 0], other[theirs, 0])
    end_ns = np.minimum(one[mine, 1], other[theirs, 1])
    return np.stack((start_ns, end_ns), axis=1)


def clip(intervals: Times, start_ns: int, end_ns: int) -> Times:
    """What of the set lies in one window."""
    return intersection(np.array([[start_ns, end_ns]], dtype=np.int64), intervals)


# What a set of intervals leaves free.


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
