"""Two-sample scans over the nights of a regime: where they split best into nights before and nights after.

The scans use ranks, so that neither the shape of the noise nor one outlying night decides. Further functions estimate
how much less correlated nights say than independent ones. Knows nothing of states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.gate.detector.night import RESOLUTION, learn
from bench.gate.detector.settings import DetectorSettings

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A regime in two parts. place: index of the first night after. score: in standard deviations, + for a rise."""

    place: int
    score: float


def ranks(values: Values) -> Values:
    """Return the ranks of the values, from 0; equal values share their mean rank."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    result = np.empty(len(values))
    differs = ordered[1:] != ordered[:-1]
    if differs.all():  # The usual case: values are not rounded.
        result[order] = np.arange(len(values))
        return result
    firsts = np.flatnonzero(np.concatenate(([True], differs)))
    counts = np.diff(firsts, append=len(values))
    result[order] = np.repeat(firsts + (counts - 1) / 2, counts)
    return result


def variance(values: Values) -> float:
    """Return numpy's variance, to the last digit, without its checks, which take most of the time for few values."""
    off = values - values.sum() / len(values)
    return float((off * off).sum() / len(values))


def best_split(ranked: Values, fewest: int) -> Split | None:
    """Return the split whose two parts differ most in mean rank, if the values differ at all.

    fewest: nights on each side. The score is that of Mann and Whitney, which treats nights as independent and equally
    noisy.
    """
    count = len(ranked)
    spread = variance(ranked) * count / (count - 1)
    if count < 2 * fewest or spread == 0:
        return None
    before = np.arange(fewest, count - fewest + 1)
    sums = np.cumsum(ranked - ranked.mean())[before - 1]
    # Difference of the means (after minus before), given that both sums add up to 0.
    scores = -sums * np.sqrt(count / (before * (count - before) * spread))
    best = int(np.abs(scores).argmax())
    return Split(place=int(before[best]), score=float(scores[best]))


def unequal_score(values: Values, ranked: Values, place: int) -> float:
    """Return the score of a split whose parts may be unequally noisy: the smaller of this one and Mann and Whitney's.

    Source: Brunner and Munzel 2000.
    """
    count, after = len(ranked), len(ranked) - place
    difference = float(ranked[place:].mean() - ranked[:place].mean())
    equal = variance(ranked) * count / (count - 1) * count / (place * after)
    own = np.concatenate((ranks(values[:place]), ranks(values[place:])))
    placed = ranked - own
    low, high = float(placed[:place].var(ddof=1)), float(placed[place:].var(ddof=1))
    unequal = (count / after) ** 2 * low / place + (count / place) ** 2 * high / after
    return difference / float(np.sqrt(max(equal, unequal)))


def best_share_split(is_high: NDArray[np.bool_], fewest: int) -> Split | None:
    """Return the split whose parts differ most in their shares of high nights, by the root of the likelihood ratio."""
    count, total = len(is_high), int(is_high.sum())
    if count < 2 * fewest or total in (0, count):
        return None
    before = np.arange(fewest, count - fewest + 1)
    high_before = np.cumsum(is_high, dtype=np.int64)[before - 1]
    high_after, after = total - high_before, count - before
    alone = _log_likelihood(high_before, before) + _log_likelihood(high_after, after)
    together = _log_likelihood(np.array([total]), np.array([count]))
    squares = 2 * np.maximum(alone - together, 0.0)
    best = int(squares.argmax())
    rose = high_after[best] * before[best] > high_before[best] * after[best]
    return Split(place=int(before[best]), score=float(np.sqrt(squares[best])) * (1 if rose else -1))


def _log_likelihood(high: NDArray[np.int64], count: NDArray[np.int64]) -> Values:
    """Return the largest log-likelihood of `high` high nights out of `count`, with 0 log 0 = 0."""
    low = count - high
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(high > 0, high * np.log(high / count), 0.0) + np.where(low > 0, low * np.log(low / count), 0.0)
    return np.asarray(logs)


def inflation(parts: Sequence[Values], error_variance: float, settings: DetectorSettings) -> float:
    """Return the variance of a mean of many of these nights, relative to as many independent ones; at least 1.

    error_variance: the part of a night's variance that comes from its trials, which no two nights share. The result is
    the mean over the models of the noise, so that a strong correlation counts as long as few nights do not exclude it;
    a report of a change needs this caution.
    """
    if all(float(part.std()) < RESOLUTION for part in parts):
        return 1.0  # They differ only in their last digit.
    noise = learn([part.tolist() for part in parts], error_variance, settings)
    return max(1.0, noise.long_run_variance / (noise.night_variance + error_variance))


def likely_inflation(parts: Sequence[Values], settings: DetectorSettings) -> float:
    """Return the same as a geometric mean over the models, the likely value, for descriptions that page nobody."""
    if all(float(part.std()) < RESOLUTION for part in parts):
        return 1.0
    noise = learn([part.tolist() for part in parts], 0.0, settings)
    ratios = np.maximum(noise.long_run_variances / noise.night_variances, 1.0)
    return float(np.exp(noise.weights @ np.log(ratios)))


def neighbour_inflation(values: Values, place: int) -> float:
    """Return the same using only the correlation of neighbours, plus one standard error.

    For values that are not night effects: shares and deviations.
    """
    own = values.copy()
    own[:place] -= own[:place].mean()
    own[place:] -= own[place:].mean()
    total = float(own @ own)
    if total == 0:
        return 1.0
    count = len(own)
    correlation = float(own[1:] @ own[:-1]) / total
    # Subtracting two means lowers a correlation, as in `learn`.
    correlation += 2 * (1 + 3 * max(correlation, 0.0)) / count + 1 / float(np.sqrt(count))
    correlation = min(max(correlation, 0.0), 0.95)
    return (1 + correlation) / (1 - correlation)


def two_kinds(values: Values, fewest: int) -> tuple[float, float] | None:
    """Return the border between two kinds of values, and their distance in standard deviations of either kind.

    None if a kind would have fewer than `fewest` values. The border is that of two means; the distance is Ashman's D.
    Source: Ashman, Bird and Zepf 1994.
    """
    count = len(values)
    if count < 2 * fewest:
        return None
    ordered = np.sort(values)
    ordered_off = ordered - ordered.mean()
    low = np.arange(fewest, count - fewest + 1)
    sums = np.cumsum(ordered_off)[low - 1]
    between = sums**2 / (low * (count - low))
    best = int(between.argmax())
    place = int(low[best])
    lower, upper = ordered[:place], ordered[place:]
    spread = (variance(lower) + variance(upper)) / 2
    distance = float(upper.mean() - lower.mean())
    if distance <= 0:
        return None
    border = float(lower[-1] + upper[0]) / 2
    return border, distance / float(np.sqrt(max(spread, 1e-12)))
