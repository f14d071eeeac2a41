"""Regimes of a whole series, looked at afterwards: levels between changes, each with the range of its onset.

What `judge` says of a night knows nothing of later ones; here all nights count. The segmentation is the exact optimum
of a normal likelihood, in which each regime has a level and a noise of its own, less a penalty for each regime. It
takes night values without spikes and without placements' offsets. Regimes that differ in noise alone are one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from bench.gate.detector.detector import judge
from bench.gate.detector.night import RESOLUTION, Night, trial_variance
from bench.gate.detector.placements import reduce_trials
from bench.gate.detector.rank_scan import Values, likely_inflation
from bench.gate.detector.settings import SETTINGS, DetectorSettings
from bench.gate.detector.state import SeriesState

_SPIKE_HALF_WIDTH = 3
_SPIKE_SDS = 4.0
_SCALE_HALF_WIDTH = 14
"""Nights on each side from which the noise is taken that a spike stands out of: noise changes, too."""
_FEWEST = 3
"""Nights of a regime: what lasts two is a spike."""
_PRIOR_NIGHTS = 2.0
"""As if the noise of the whole series had been seen for so long in each regime: three nights may agree by chance."""
_RANGE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """Nights at one level. Nights are numbers, the level a logarithm with its 95 % interval.

    onset_low, onset_high: 95 % range of its first night; both are that night in the first regime, which has no onset.
    """

    first: int
    last: int
    nights: int
    log_level: float
    log_level_low: float
    log_level_high: float
    onset_low: int
    onset_high: int


def regimes(nights: Sequence[Night], settings: DetectorSettings = SETTINGS) -> tuple[Regime, ...]:
    """Return the regimes of a series, in order; none of fewer nights than a first verdict needs.

    Raises:
        ValueError: the nights are not in order, have no trial, or hold values that are not finite.
    """
    from scipy.special import stdtrit  # Imported here: what only reads states needs no scipy.

    if len(nights) < settings.fewest_nights:
        return ()
    values = _values(nights, settings)
    edges, correlated = segment(values)
    bounds = [0, *edges, len(values)]
    segments = []
    for index, (start, end) in enumerate(pairwise(bounds)):
        low = high = start
        if index:
            low, high = _onset_range(values, bounds[index - 1], start, end, correlated)
        part = values[start:end]
        middle = float(np.mean(part))
        # By its own noise, which so few nights know only so well: Student's t.
        own = max(float(part.var(ddof=1)), RESOLUTION**2)
        half_width = float(stdtrit(len(part) - 1, (1 + _RANGE) / 2)) * math.sqrt(correlated * own / len(part))
        segments.append(
            Regime(
                first=nights[start].number,
                last=nights[end - 1].number,
                nights=end - start,
                log_level=middle,
                log_level_low=middle - half_width,
                log_level_high=middle + half_width,
                onset_low=nights[low].number,
                onset_high=nights[high].number,
            )
        )
    return tuple(segments)


def _values(nights: Sequence[Night], settings: DetectorSettings) -> Values:
    """Return the nights' values, offsets removed as the detector has learned them by the end, and spikes cut."""
    state: SeriesState | None = None
    spreads = []
    for night in nights:
        state = judge(state, night, settings).state
        if (spread := state.nights[-1].spread) is not None:
            spreads.append((spread, len(night.trials)))
    placements = state.placements if state is not None else {}
    error = trial_variance(spreads)
    values = [reduce_trials(night.trials, placements, error, settings).log_value for night in nights]
    return without_spikes(values)


def without_spikes(values: Sequence[float]) -> Values:
    """Return the values; one that is far from the median of its neighbours gets that median (Hampel's filter).

    So what lasts a few nights is no regime. Far is in deviations of the nights around from their neighbours' medians.
    """
    around = [
        median(values[max(0, index - _SPIKE_HALF_WIDTH) : index + _SPIKE_HALF_WIDTH + 1])
        for index in range(len(values))
    ]
    distances = [abs(value - middle) for value, middle in zip(values, around, strict=True)]
    limits = [
        _SPIKE_SDS
        * max(1.4826 * median(distances[max(0, index - _SCALE_HALF_WIDTH) : index + _SCALE_HALF_WIDTH + 1]), RESOLUTION)
        for index in range(len(values))
    ]
    return np.array(
        [
            middle if distance > limit else value
            for value, middle, distance, limit in zip(values, around, distances, limits, strict=True)
        ]
    )


def segment(values: Values) -> tuple[list[int], float]:
    """Return where regimes begin, but for the first, and how many times more correlated nights vary in their mean."""
    edges = _optimum(values, 1.0)
    parts = np.split(values, edges)
    usual = usual_variance(values)
    # Each regime's nights in units of its own noise, so that a noisy regime does not speak for all.
    scaled = [(part - part.mean()) / math.sqrt(variance_of(part, usual)) for part in parts]
    correlated = likely_inflation(scaled, SETTINGS)
    return _joined(values, _optimum(values, correlated), correlated), correlated


def _optimum(values: Values, correlated: float) -> list[int]:
    """Return where regimes begin: the least of the deviance of all regimes + a penalty for each.

    Source: optimal partitioning, Jackson et al. 2005; the penalty of 3 log n for an onset, unknown in place and size,
    is that of Zhang and Siegmund 2007, and the noise is a further unknown.
    """
    count = len(values)
    penalty = 4 * math.log(count)
    usual = usual_variance(values)
    centred = values - values[0]
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    best = np.full(count + 1, np.inf)
    best[0] = -penalty
    start_of = np.zeros(count + 1, dtype=np.int64)
    for end in range(_FEWEST, count + 1):
        # Deviance of a last regime from each possible start, by sums from the beginning of the series.
        starts = np.arange(end - _FEWEST + 1)
        lengths = end - starts
        total = (squares[end] - squares[starts]) - (sums[end] - sums[starts]) ** 2 / lengths
        variances = (np.maximum(total, 0.0) + _PRIOR_NIGHTS * usual) / (lengths + _PRIOR_NIGHTS)
        # The prior's own deviance, without which a noise would cost nothing to differ from it.
        deviances = (lengths + _PRIOR_NIGHTS) * np.log(variances / usual)
        totals = best[starts] + deviances / correlated + penalty
        start_of[end] = int(np.argmin(totals))
        best[end] = totals[start_of[end]]
    edges = []
    end = int(start_of[count])
    while end:
        edges.append(end)
        end = int(start_of[end])
    return edges[::-1]


def _joined(values: Values, edges: list[int], correlated: float) -> list[int]:
    """Return the beginnings of regimes whose levels differ, by as much as an onset costs; the least first."""
    usual = usual_variance(values)
    edges = list(edges)
    while edges:
        parts = np.split(values, edges)
        errors = [variance_of(part, usual) / len(part) for part in parts]
        apart = [
            float(parts[place + 1].mean() - parts[place].mean()) ** 2 / (errors[place] + errors[place + 1])
            for place in range(len(edges))
        ]
        least = min(range(len(edges)), key=lambda place: apart[place])
        if apart[least] >= 3 * math.log(len(values)) * correlated:
            break
        del edges[least]
    return edges


def usual_variance(values: Values) -> float:
    """Return the variance of nights by the differences of neighbours, which few changes touch."""
    return max(float(1.4826 * np.median(np.abs(np.diff(values)))) ** 2 / 2, RESOLUTION**2)


def variance_of(part: Values, usual: float) -> float:
    total = float(((part - part.mean()) ** 2).sum())
    return max((total + _PRIOR_NIGHTS * usual) / (len(part) + _PRIOR_NIGHTS - 1), RESOLUTION**2)


def _onset_range(values: Values, before: int, onset: int, after: int, correlated: float) -> tuple[int, int]:
    """Return the first and last place that the onset between two regimes may have, with their outer ends held."""
    usual = usual_variance(values)
    sides = (values[before:onset], values[onset:after])
    part = values[before:after]
    # What each night speaks for the regime after rather than before, by the level and the noise of each.
    deviances = [(part - side.mean()) ** 2 / (spread := variance_of(side, usual)) + math.log(spread) for side in sides]
    for_before = np.cumsum(deviances[1] - deviances[0])[:-1] / 2
    weights = np.exp((for_before - for_before.max()) / correlated)
    passed = np.cumsum(weights) / weights.sum()
    tail = (1 - _RANGE) / 2
    low = before + 1 + int(np.searchsorted(passed, tail))
    high = before + 1 + min(int(np.searchsorted(passed, 1 - tail)), len(weights) - 1)
    return min(low, onset), max(high, onset)
