"""Regimes of a whole series, looked at afterwards: levels between changes, each with the range of its onset.

What `judge` says of a night knows nothing of later ones; here all nights count. The segmentation is the exact optimum
of squared deviations plus a penalty for each regime, on night values without spikes and without placements' offsets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench.gate.detector.detector import judge
from bench.gate.detector.night import RESOLUTION, Night, learn, trial_variance
from bench.gate.detector.placements import reduce_trials
from bench.gate.detector.settings import SETTINGS, DetectorSettings
from bench.gate.detector.state import SeriesState

_SPIKE_HALF_WIDTH = 3
_SPIKE_SDS = 4.0
_RANGE = 0.95
_RANGE_SDS = 1.96


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
    if len(nights) < settings.fewest_nights:
        return ()
    values = _values(nights, settings)
    # The variance is first that of differences of neighbours, which few changes touch; then that of a mean over many
    # nights, of what the first regimes leave, so that correlated nights are not taken for levels.
    steps = np.abs(np.diff(values))
    variance = max(float(1.4826 * np.median(steps)) ** 2 / 2, RESOLUTION**2)
    edges = _segment(values, variance)
    noise = learn([part.tolist() for part in np.split(values, edges)], 0.0, settings)
    variance = max(noise.long_run_variance, RESOLUTION**2)
    edges = _segment(values, variance)
    bounds = [0, *edges, len(values)]
    segments = []
    for index, (start, end) in enumerate(pairwise(bounds)):
        low = high = start
        if index:
            low, high = _onset_range(values, bounds[index - 1], start, end, variance)
        middle = float(np.mean(values[start:end]))
        half_width = _RANGE_SDS * math.sqrt(variance / (end - start))
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


def _values(nights: Sequence[Night], settings: DetectorSettings) -> NDArray[np.float64]:
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
    # Hampel's filter: a night far from the median of its neighbours gets that median, so what lasts a few nights is no
    # regime. Far is in deviations of all nights from their neighbours' medians.
    around = [
        median(values[max(0, index - _SPIKE_HALF_WIDTH) : index + _SPIKE_HALF_WIDTH + 1])
        for index in range(len(values))
    ]
    distances = [abs(value - middle) for value, middle in zip(values, around, strict=True)]
    limit = _SPIKE_SDS * max(1.4826 * median(distances), RESOLUTION)
    return np.array(
        [
            middle if distance > limit else value
            for value, middle, distance in zip(values, around, distances, strict=True)
        ]
    )


def _segment(values: NDArray[np.float64], variance: float) -> list[int]:
    """Return where regimes begin, but for the first: the least of deviations / variance + a penalty for each regime.

    Source: optimal partitioning, Jackson et al. 2005; the penalty of 3 log n for each onset, unknown in place and size,
    is that of Zhang and Siegmund 2007.
    """
    count = len(values)
    penalty = 3 * math.log(count)
    centred = values - values[0]
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    best = np.zeros(count + 1)
    best[0] = -penalty
    start_of = np.zeros(count + 1, dtype=np.int64)
    for end in range(1, count + 1):
        # Cost of a last regime from each possible start, by sums from the beginning of the series.
        lengths = end - np.arange(end)
        costs = (squares[end] - squares[:end]) - (sums[end] - sums[:end]) ** 2 / lengths
        totals = best[:end] + costs / variance + penalty
        start_of[end] = int(np.argmin(totals))
        best[end] = totals[start_of[end]]
    edges = []
    end = int(start_of[count])
    while end:
        edges.append(end)
        end = int(start_of[end])
    return edges[::-1]


def _onset_range(values: NDArray[np.float64], before: int, onset: int, after: int, variance: float) -> tuple[int, int]:
    """Return the first and last place that the onset between two regimes may have, with their outer ends held."""
    part = values[before:after]
    sums = np.cumsum(part - part.mean())[:-1]
    nights_before = np.arange(1, len(part))
    # Squared deviations that a cut after `left` nights explains; their likelihood is the onset's, each place alike
    # likely before.
    explained = sums**2 * len(part) / (nights_before * (len(part) - nights_before))
    weights = np.exp((explained - explained.max()) / (2 * variance))
    passed = np.cumsum(weights) / weights.sum()
    tail = (1 - _RANGE) / 2
    low = before + 1 + int(np.searchsorted(passed, tail))
    high = before + 1 + int(np.searchsorted(passed, 1 - tail))
    return min(low, onset), max(high, onset)
