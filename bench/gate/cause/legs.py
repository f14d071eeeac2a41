"""Which leg of an efficiency changed: tokens per second of the run, or those of its baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from bench.gate.detector.settings import SETTINGS

LEG_NIGHTS = SETTINGS.creep_nights
"""Most nights that the median legs of an efficiency are taken from; the same as for creep."""


def middle_legs(
    legs: Sequence[tuple[float, float]],
    nights: Sequence[tuple[int, int]],
    *,
    since_number: int = 0,
    until_ns: int | None = None,
) -> tuple[float, float] | None:
    """Return the median rates of the run and of its baseline over the newest of these nights; None if there are none.

    legs: those of the last nights, as in `GateState`. since_number, until_ns: use only nights from this number on, and
    before this time.
    """
    chosen = [
        leg
        for leg, (number, time_ns) in zip(reversed(legs), reversed(nights), strict=False)
        if number >= since_number and (until_ns is None or time_ns < until_ns)
    ][:LEG_NIGHTS]
    if not chosen:
        return None
    own, baseline = (median(leg[side] for leg in chosen) for side in (0, 1))
    return own, baseline


def legs_changed(
    legs: Sequence[tuple[float, float]], nights: Sequence[tuple[int, int]], since_ns: int | None
) -> tuple[float | None, float | None]:
    """Return tonight's rates of the run and its baseline, each relative to its median before the change."""
    before = None if since_ns is None else middle_legs(legs, nights, until_ns=since_ns)
    if before is None:
        return None, None
    return legs[-1][0] / before[0], legs[-1][1] / before[1]


def is_of_the_baseline(own_ratio: float | None, baseline_ratio: float | None) -> bool:
    """Whether more of an efficiency's fall comes from the baseline's gain than from the run's own loss."""
    if own_ratio is None or baseline_ratio is None:
        return False
    return baseline_ratio > 1 and math.log(baseline_ratio) > -math.log(own_ratio)
