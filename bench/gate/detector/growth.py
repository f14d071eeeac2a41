"""Noise that grows: since which night the nights of a series, and their trials, differ more than before, and how much.

The noise of a series is learned slowly, from a hundred nights. What differences of neighbouring nights and the scatter
of trials show of the newest nights is held against it: if they are larger, a night is judged by the larger noise, long
before the slow scale knows it. A level that changes makes one large difference; noise that grows makes each of them
large. Knows nothing of levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.gate.detector.settings import DetectorSettings

_FACTORS = np.array([2.0, 2.8, 4.0, 5.6, 8.0])
"""Factors that are weighed, of a deviation: each the root of 2 larger than the one before."""
_OUTLIER_RATE = 0.05
_OUTLIER_SD = 10.0
"""One difference in twenty may be of an outlier, of any size up to some ten deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How much larger the deviations are now than the slow scale says. 1.0 where they are not.

    nights, trials: factors by which deviations of nights and of trials are taken to have grown, as means over what is
    probable. since: position of the likeliest first night with more noise; probability: that there is one.
    """

    nights: float
    trials: float
    probability: float
    since: int
    factor: float


NO_GROWTH = Growth(nights=1.0, trials=1.0, probability=0.0, since=0, factor=1.0)


def growth_of(
    differences: Sequence[float | None], spreads: Sequence[tuple[float, int] | None], settings: DetectorSettings
) -> Growth:
    """Return how the noise of the newest nights has grown.

    differences: of each night from the one before, in standard deviations by the slow scale; None where there is none,
    as of a night that began a regime. spreads: of each night, how the variance among its trials compares with the slow
    one, and the degrees of freedom; None where it has one trial.
    """
    if len(differences) < 2:
        return NO_GROWTH
    of_nights = _gain(np.array([math.nan if value is None else value for value in differences]))
    of_trials = _gain_of_variance(
        np.array([1.0 if spread is None else spread[0] for spread in spreads]),
        np.array([0 if spread is None else spread[1] for spread in spreads]),
    )
    # Sums from each night to the newest: what the data say of noise that has been larger since that night.
    nights = np.cumsum(of_nights[::-1], axis=0)[::-1]
    trials = np.cumsum(of_trials[::-1], axis=0)[::-1]
    prior = math.log(settings.noise_changes_per_night / (3 * len(_FACTORS)))
    # (what grew, since, factor): nights alone, trials alone, or both.
    odds = np.exp(np.minimum(prior + np.stack([nights, trials, nights + trials]), 500.0))
    total = 1.0 + odds.sum()
    shares = odds / total
    logs = np.log(_FACTORS)
    place = np.unravel_index(np.argmax(odds), odds.shape)
    if total < 2.0:
        return NO_GROWTH  # It is likelier that nothing has grown.
    return Growth(
        nights=math.exp(float(((shares[0] + shares[2]) @ logs).sum())),
        trials=math.exp(float(((shares[1] + shares[2]) @ logs).sum())),
        probability=float(1 - 1 / total),
        since=int(place[1]),
        factor=float(_FACTORS[place[2]]),
    )


def _gain(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log-likelihood of each difference at each factor, less that at factor 1; 0 where there is none."""
    square = np.minimum(differences * differences, 1e4)[:, None]
    outlier = _OUTLIER_RATE / _OUTLIER_SD * np.exp(-0.5 * square / _OUTLIER_SD**2) + 1e-100
    usual = (1 - _OUTLIER_RATE) * np.exp(-0.5 * square) + outlier
    grown = (1 - _OUTLIER_RATE) / _FACTORS * np.exp(-0.5 * square / _FACTORS**2) + outlier
    result: NDArray[np.float64] = np.nan_to_num(np.log(grown / usual))
    return result


def _gain_of_variance(ratios: NDArray[np.float64], freedom: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the same of variances among trials, which a broken trial may have made large: so only up to a limit."""
    squares = 0.5 * np.minimum(ratios, 16.0)[:, None] * (1 - _FACTORS**-2.0)
    result: NDArray[np.float64] = np.minimum(freedom[:, None] * (squares - np.log(_FACTORS)), 3.0)
    return result
