"""Levels that a series returns to: levels of its earlier nights, and whether a new level is one of them.

Examples are a placement that nobody named, a clock with two settings, or a neighbour that comes for weeks: a level that
returns is a change, but no news.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bench.gate.detector.rank_scan import Values
from bench.gate.detector.regimes import segment, usual_variance, variance_of, without_spikes
from bench.gate.detector.settings import SETTINGS, DetectorSettings
from bench.gate.detector.state import KeptNight, SeriesState

_STAY_NIGHTS = 5
"""Nights after which a series has settled on a level."""
_FEWEST_NIGHTS = 2 * _STAY_NIGHTS
_RANGE_SDS = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLevel:
    """A level that a series had before, and left. nights: nights on this level, out of `all_nights` earlier nights.

    last: last night on this level. log_level, variance: logarithm of the level, and variance of its error.
    """

    log_level: float
    variance: float
    nights: int
    all_nights: int
    last: int

    @property
    def reason(self) -> str:
        """What is known about the level, in words; `{night}` in them stands for `last`."""
        return (
            f"the series has been on this level before, on {self.nights} of {self.all_nights} nights, last on {{night}}"
        )


def returned_to(state: SeriesState, onset: int, settings: DetectorSettings = SETTINGS) -> KnownLevel | None:
    """Return the known level that the nights since `onset` have returned to; None if their level is new.

    The level just before the onset does not count: a night on it has not changed.
    """
    old = [night for night in state.nights if night.number < onset]
    new = np.array([night.log_value for night in state.nights if night.number >= onset])
    if len(old) < _FEWEST_NIGHTS or not len(new):
        return None
    values = without_spikes([night.log_value for night in old])
    edges, correlated = segment(values)
    usual = usual_variance(values)
    middle = float(np.median(new))
    variance = correlated * usual / len(new)
    bounds = [0, *edges, len(old)]
    left = _levels(old, values, bounds[:-1], correlated, settings)
    before = float(values[bounds[-2] :].mean())
    near = [
        level
        for level in left
        if abs(middle - level.log_level) < min(abs(middle - before), _reach(level, variance, settings))
    ]
    return min(near, key=lambda level: abs(middle - level.log_level), default=None)


def _reach(level: KnownLevel, variance: float, settings: DetectorSettings) -> float:
    """Return how far nights on the level may lie from it; a rebuilt environment differs slightly."""
    return _RANGE_SDS * math.sqrt(level.variance + variance + settings.return_sd**2)


def _levels(
    old: list[KeptNight], values: Values, bounds: list[int], correlated: float, settings: DetectorSettings
) -> list[KnownLevel]:
    """Return the levels of the stays between these bounds; stays on the same level are joined."""
    usual = usual_variance(values)
    levels: list[KnownLevel] = []
    for start, end in pairwise(bounds):
        if end - start < _STAY_NIGHTS:
            continue
        part = values[start:end]
        stay = KnownLevel(
            log_level=float(part.mean()),
            variance=correlated * variance_of(part, usual) / len(part),
            nights=len(part),
            all_nights=len(old),
            last=old[end - 1].number,
        )
        same = [
            level for level in levels if abs(level.log_level - stay.log_level) < _reach(level, stay.variance, settings)
        ]
        if same:
            levels.remove(same[0])
            stay = _joined(same[0], stay)
        levels.append(stay)
    return levels


def _joined(first: KnownLevel, second: KnownLevel) -> KnownLevel:
    nights = first.nights + second.nights
    return KnownLevel(
        log_level=(first.log_level * first.nights + second.log_level * second.nights) / nights,
        variance=(first.variance * first.nights**2 + second.variance * second.nights**2) / nights**2,
        nights=nights,
        all_nights=second.all_nights,
        last=second.last,
    )
