"""Regimes of a whole series in retrospect: levels between changes, each with the range of its onset.

`judge` does not know later nights; here all nights count. The segmentation is the exact optimum of a penalised normal
likelihood, in which each regime has its own level and noise. It takes night values without spikes and without
placements' offsets. Neighbouring regimes that differ only in noise are joined.
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
"""Nights on each side that give the noise which a spike must exceed, since the noise may also change."""
_FEWEST = 3
"""Fewest nights of a regime: what lasts two nights is a spike."""
_PRIOR_NIGHTS = 2.0
"""Weight of the whole series' noise in each regime, in nights: three nights may agree by chance."""
_RANGE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """Nights at one level. Nights are numbers; the level is a logarithm with its 95 % interval.

    onset_low, onset_high: 95 % range of its first night. In the first regime, which has no onset, both are that night.
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
    """Return the regimes of a series, in order; none if there are fewer nights than a first verdict needs.

    Raises:
        ValueError: the nights are not in order, have no trial, or have values that are not finite.
    """
    from scipy.special import stdtrit  # Imported here: reading states needs no scipy.

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
        # The interval uses the regime's own noise, which few nights show only roughly: Student's t.
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
    """Return the nights' values without spikes and without the offsets that the detector has learned by the end."""
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
    """Return the values; each one that is far from the median of its neighbours gets that median (Hampel's filter).

    So a change of a few nights is no regime. The limit is in deviations of nearby nights from their neighbours'
    medians.
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
    """Return where regimes begin, except for the first, and how many times correlation increases a mean's variance."""
    edges = _optimum(values, 1.0)
    parts = np.split(values, edges)
    usual = usual_variance(values)
    # Each regime's nights in units of its own noise, so that a noisy regime does not dominate.
    scaled = [(part - part.mean()) / math.sqrt(variance_of(part, usual)) for part in parts]
    correlated = likely_inflation(scaled, SETTINGS)
    return _joined(values, _optimum(values, correlated), correlated), correlated


def _optimum(values: Values, correlated: float) -> list[int]:
    """Return where regimes begin: the minimum of the deviance of all regimes plus a penalty for each.

    Source: optimal partitioning, Jackson et al. 2005. The penalty of 3 log n for an onset of unknown place and size is
    from Zhang and Siegmund 2007; the noise is one more unknown.
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
        # Includes the deviance of the prior, without which a noise that differs from it would cost nothing.
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
    """Return the starts of regimes whose levels differ enough to justify an onset, removing the least first."""
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
    """Return the variance of nights from differences of neighbours, which few changes affect."""
    return max(float(1.4826 * np.median(np.abs(np.diff(values)))) ** 2 / 2, RESOLUTION**2)


def variance_of(part: Values, usual: float) -> float:
    total = float(((part - part.mean()) ** 2).sum())
    return max((total + _PRIOR_NIGHTS * usual) / (len(part) + _PRIOR_NIGHTS - 1), RESOLUTION**2)


def _onset_range(values: Values, before: int, onset: int, after: int, correlated: float) -> tuple[int, int]:
    """Return the first and last likely place of the onset between two regimes, with their outer ends fixed."""
    usual = usual_variance(values)
    sides = (values[before:onset], values[onset:after])
    part = values[before:after]
    # How much each night favours the later regime over the earlier one, by the level and the noise of each.
    deviances = [(part - side.mean()) ** 2 / (spread := variance_of(side, usual)) + math.log(spread) for side in sides]
    for_before = np.cumsum(deviances[1] - deviances[0])[:-1] / 2
    weights = np.exp((for_before - for_before.max()) / correlated)
    passed = np.cumsum(weights) / weights.sum()
    tail = (1 - _RANGE) / 2
    low = before + 1 + int(np.searchsorted(passed, tail))
    high = before + 1 + min(int(np.searchsorted(passed, 1 - tail)), len(weights) - 1)
    return min(low, onset), max(high, onset)
