"""Exact algebra of time intervals in integer nanoseconds.

A set of intervals is an int64 array of shape (n, 2), rows [start, end), sorted and disjoint; `union` makes one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Times: TypeAlias = NDArray[np.int64]


def union(start_ns: Times, end_ns: Times) -> Times:
    """Return the union of intervals; touching intervals are merged, empty ones dropped.

    Example: [1, 3), [2, 5), [5, 6), [8, 8) become [1, 6).
    """
    lasting = end_ns > start_ns
    start_ns, end_ns = start_ns[lasting], end_ns[lasting]
    if not start_ns.size:
        return np.empty((0, 2), dtype=np.int64)
    order = np.argsort(start_ns, kind="stable")
    start_ns, latest_ns = start_ns[order], np.maximum.accumulate(end_ns[order])
    # A new interval begins where a start is later than all previous ends.
    is_first = np.concatenate(([True], start_ns[1:] > latest_ns[:-1]))
    is_last = np.concatenate((is_first[1:], [True]))
    return np.stack((start_ns[is_first], latest_ns[is_last]), axis=1)


def union_of(sets: Iterable[Times]) -> Times:
    """Return the union of these sets, whose intervals may also overlap or be unsorted."""
    joined = np.concatenate([np.empty((0, 2), dtype=np.int64), *sets])
    return union(joined[:, 0], joined[:, 1])


def length_ns(intervals: Times) -> int:
    """Return the total length of the set."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def intersection(these: Times, others: Times) -> Times:
    if not these.size or not others.size:
        return np.empty((0, 2), dtype=np.int64)
    # Both are sorted and disjoint, so each interval of `these` overlaps a run of consecutive intervals of `others`:
    # from the first that ends after its start, up to the first that starts at its end or later.
    first = np.searchsorted(others[:, 1], these[:, 0], side="right")
    last = np.searchsorted(others[:, 0], these[:, 1], side="left")
    counts = np.maximum(last - first, 0)
    # All overlapping pairs as indices. With first = [0, 4] and counts = [2, 3]: mine = [0, 0, 1, 1, 1] and
    # theirs = [0, 1, 4, 5, 6].
    mine = np.repeat(np.arange(len(these)), counts)
    theirs = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    start_ns = np.maximum(these[mine, 0], others[theirs, 0])
    end_ns = np.minimum(these[mine, 1], others[theirs, 1])
    return np.stack((start_ns, end_ns), axis=1)


def clip(intervals: Times, start_ns: int, end_ns: int) -> Times:
    """Return the part of the set that lies in a window."""
    return intersection(np.array([[start_ns, end_ns]], dtype=np.int64), intervals)


def gaps(intervals: Times, start_ns: int, end_ns: int) -> Times:
    """Return the parts of a window that are not in the set."""
    inside = clip(intervals, start_ns, end_ns)
    # The window's start, all edges of the set, the window's end: read in pairs, these are the gaps.
    edges_ns = np.concatenate(([start_ns], inside.ravel(), [end_ns])).astype(np.int64).reshape(-1, 2)
    return edges_ns[edges_ns[:, 1] > edges_ns[:, 0]]


def without(first: Times, other: Times) -> Times:
    """Return the difference of two sets: the first without the other."""
    if not first.size:
        return first
    return intersection(first, gaps(other, int(first[0, 0]), int(first[-1, 1])))
