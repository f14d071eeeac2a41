"""Collectives that a rank seems to leave before the last has come, which in truth none can."""

from __future__ import annotations

from collections.abc import Iterable

from collectors.traces.ranks.collective_times import CollectiveTime
from collectors.traces.ranks.matching import ROOTED


def is_impossible(time: CollectiveTime, residual_ns: int) -> bool:
    """Whether a rank left a collective that nobody can leave before the last has come.

    residual_ns: how far the times of different ranks may be off.
    """
    return time.matched.collective not in ROOTED and min(time.end_ns) + residual_ns < max(time.arrival_ns)


def count_impossible(times: Iterable[CollectiveTime], residual_ns: int) -> int:
    """How many of these."""
    return sum(is_impossible(time, residual_ns) for time in times)
