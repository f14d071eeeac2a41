"""The noise of a series, within a night and between nights, and the smallest change that it allows to detect.

A night's centre is the mean of its trials' logarithms. The logarithm of trial j of night i is modelled as the series'
level, plus a deviation of night i, plus a deviation of the trial. The method of moments gives both standard deviations,
robustly: a spike, one bad trial or a lasting change of level moves them little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import NormalDist, fmean, median

from bench.errors import plural
from bench.gate.detector.power import NightNoise, confirmed_after
from bench.gate.detector.settings import SETTINGS
from bench.results.comparison import POWER, least_trials
from workloads.cost_models.absent import Absent

LEAST_NIGHTS = 3
"""Fewer nights do not show how nights differ."""
WANTED_CHANGE = 0.03
"""The change that a nightly gate should detect."""

_NORMAL = NormalDist()
_QUARTILE = _NORMAL.inv_cdf(0.75)
_GUARD = 1.085
"""Factor by which the detector overestimates a night's deviation, which it learns and guards: from a simulation with a
hundred nights of history, in which the nights' deviation is 0.4 of the trials'.
"""
_DISTANCE = _GUARD * _NORMAL.inv_cdf(1 - SETTINGS.suspicion_p / 2) + _NORMAL.inv_cdf(POWER)
"""Standard errors from no change at which the detector suspects a night with this power: 3.57."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialNoise:
    """Standard deviations of logarithms, that is, shares of the value: 0.01 is 1 %.

    trial: of one trial within a night. night: of a night's own level, without its trials' deviation; absent if there
    are too few nights. trials, nights: number of each behind the estimates.
    """

    trial: float
    night: float | Absent
    trials: int
    nights: int


def noise_of(nights: Sequence[Sequence[float]], within_nights: Sequence[Sequence[float]] = ()) -> TrialNoise | Absent:
    """Return the noise of one figure of a series; absent if no night has two trials.

    nights: the trials' values of each night, oldest first. within_nights: trials of runs that only show noise within a
    night, for example both runs of `compare --aa`.
    """
    of_nights = [[math.log(value) for value in values] for values in nights if values]
    groups = [*of_nights, *([math.log(value) for value in values] for values in within_nights)]
    # Differences between trials of the same night do not contain the night's own deviation.
    within = [second - first for values in groups for first, second in combinations(values, 2)]
    if not within:
        return Absent(reason="no run of it has two trials")
    trial = deviation_of(within)
    return TrialNoise(
        trial=trial,
        night=_night_deviation(of_nights, trial),
        trials=sum(len(values) for values in groups if len(values) > 1),
        nights=len(of_nights),
    )


def deviation_of(differences: Sequence[float]) -> float:
    """Return a robust standard deviation of values, given differences of pairs of them.

    Half of the differences of normal values are smaller than 0.954 standard deviations: the quartile times the root of
    2. A third of the differences may be anything without much effect.
    """
    return median(abs(difference) for difference in differences) / (_QUARTILE * math.sqrt(2))


def _night_deviation(nights: Sequence[Sequence[float]], trial: float) -> float | Absent:
    """Return the deviation of nights' levels from differences of neighbours, so that a change of level counts once."""
    if len(nights) < LEAST_NIGHTS:
        return Absent(reason=f"{plural(len(nights), 'night')} in the history, but {LEAST_NIGHTS} are needed")
    steps = [fmean(second) - fmean(first) for first, second in pairwise(nights)]
    # The centres' variance without the part that comes from their trials.
    of_trials = fmean(trial**2 / len(values) for values in nights)
    return math.sqrt(max(0.0, deviation_of(steps) ** 2 - of_trials))


def smallest_of_night(noise: TrialNoise, trials: int) -> float | Absent:
    """Return the smallest change for which the gate suspects its first night, with this number of trials.

    With 80 % power, against a level known from many nights: a factor minus 1. Absent if the nights' deviation is
    unknown.
    """
    if isinstance(noise.night, Absent):
        return noise.night
    return math.expm1(_DISTANCE * math.hypot(noise.night, noise.trial / math.sqrt(trials)))


def trials_a_night(noise: TrialNoise, change: float = WANTED_CHANGE) -> int | Absent:
    """Return the trials per night that show a change of this size on its first night, see `smallest_of_night`.

    Absent if the nights' deviation is unknown, or so large that no number of trials suffices.
    """
    night = noise.night
    if isinstance(night, Absent):
        return night
    limit = math.log1p(change) / _DISTANCE
    if night >= limit:
        confirmed = nights_needed(noise, change)
        words = "the gate would not confirm it either"
        if confirmed is not None:
            words = f"the gate confirms it within {plural(confirmed, 'night')}"
        return Absent(
            reason=f"nights differ by {100 * night:.1f} %, so no number of trials shows {100 * change:g} % in one"
            f" night; after {plural(noise.nights, 'night')} of history {words}"
        )
    trials = least_trials(lambda trials: math.hypot(night, noise.trial / math.sqrt(trials)) <= limit, least=1)
    return Absent(reason="more than ten thousand") if trials is None else trials


def nights_needed(noise: TrialNoise, change: float, trials: int = 3) -> int | None:
    """Return on which night of a lasting change the gate confirms it, after as many nights as the noise comes from.

    With 80 % power and this number of trials per night. None if that takes more nights than the detector weighs at
    once.
    """
    assert not isinstance(noise.night, Absent), "unknown nights say nothing about others"
    guarded = NightNoise(
        night_variance=(_GUARD * noise.night) ** 2, error_variance=(_GUARD * noise.trial) ** 2 / trials
    )
    return confirmed_after(guarded, math.log1p(change), noise.nights)
