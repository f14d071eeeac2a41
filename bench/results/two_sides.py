"""The difference of two sides' trials, with an interval and a test that hold for few trials of any usual distribution.

Trials are few, one side may be noisier, times deviate only towards slow, and some have two modes (a placement, a
clock). Each test here combines two, and shows a difference only if both do. Its interval is the hull of their
intervals, its p-value the larger of their p-values:

    in two groups   Welch's t on the means            and Brunner and Munzel's test of which side is larger more often
    in pairs        Student's t on the differences    and Wilcoxon's signed ranks, from `LEAST_RANKED_PAIRS` pairs on

A t test alone takes a side with more slow trials in its sample for a slower side. Ranks alone call three trials
different from three whenever they do not overlap, one time in ten.

The skew of two equally noisy sides cancels in their difference. That of one noisy side does not: a few of its trials
often contain none of its slow ones, so that it looks faster and less noisy than it is. So the end of t's interval at
which the noisier side is slower than observed lies further out (`_guard`); if the slower direction is unknown, both
ends do.

Two groups of fewer than `LEAST_APART` trials show only a `LARGE` difference by themselves: the trials of a group often
lie in only one of two modes, and nothing in them shows that there is another. The noise of a side is therefore the
larger of its trials' noise and that of earlier runs of the same series (`known_noise`); if that is known for both
sides, few trials may show a difference. docs/measured/coverage.md has the measured shares of false differences, with
and without.

Knows neither metrics nor what is better. All values are in the units in which differences are taken: logarithms of
times and rates, shares as they are.
Sources: Welch 1947; Brunner and Munzel 2000, The Nonparametric Behrens-Fisher Problem; Wilcoxon 1945; Grubbs 1948, On
Estimating Precision of Measuring Instruments; Hall 1992, On the Removal of Skewness by Transformation (errors of t by
skew fall with the number of trials).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from statistics import fmean
from typing import Literal

CONFIDENCE = 0.95
LEVEL = 1 - CONFIDENCE
"""Two-sided level of each test."""
LEAST_RANKED_PAIRS = 8
"""With fewer pairs, signed ranks show a difference only if hardly any pair disagrees, which hides true differences."""
_MOST_EXACT_PAIRS = 50
"""Up to this number the distribution of signed ranks is exact; beyond it a normal approximation is used."""
_SKEW_GUARD = 1.7
"""Factor of the widening for skew: about the smallest with which at most 8 % of experiments show a false difference if
one side has exponential noise and the other a fifth of it, at 3 to 20 trials (measured).
"""

LEAST_APART = 5
"""Trials of the smaller group from which two groups show a difference of medians whatever their distribution: all n
trials of a group lie on one side of its median in one of 2^(n - 1) cases, which is 25 % for n = 3, 12.5 % for 4, and
6 % for 5.
"""
LARGE = 1.5
"""Two groups of fewer trials still show a change whose whole interval lies beyond this factor: even if it is only a
slow mode, somebody who compares must see one that takes half as long again.
"""
LEAST_KNOWN = 20
"""Degrees of freedom from which other runs of a series show how noisy a side is: 12 runs of 3 trials, of which two are
left out (`known_noise`).
"""

Slower = Literal[-1, 0, 1]
"""Direction in which the values of a slower side lie: 1 for times, -1 for rates, 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """B - A, in the units of differences.

    low, high: 95 % interval of both tests together. p_value: of no difference, two-sided.
    error, freedom: return the standard error of the mean difference, widened for skew as for a difference of this sign,
        and its degrees of freedom, for this number of trials per side.
    """

    low: float
    high: float
    p_value: float
    error: Callable[[int], float]
    freedom: Callable[[int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNoise:
    """The variance of one trial within a run, from earlier runs of a series, and its degrees of freedom."""

    variance: float
    freedom: int


def known_noise(runs: Iterable[Sequence[float]]) -> KnownNoise | None:
    """Return the noise of these runs' trials relative to the mean of their run; None below `LEAST_KNOWN`.

    The noisiest tenth of the runs, and at least one run, is left out as disturbed. The others count in full, since the
    slow trials of a rare mode are what few trials lack.
    """
    noise = sorted((_variance(trials), len(trials) - 1) for trials in runs if len(trials) > 1)
    calm = noise[: len(noise) - math.ceil(len(noise) / 10)]
    freedom = sum(degrees for _, degrees in calm)
    if freedom < LEAST_KNOWN:
        return None
    return KnownNoise(variance=math.fsum(variance * degrees for variance, degrees in calm) / freedom, freedom=freedom)


def in_groups(
    a: Sequence[float],
    b: Sequence[float],
    *,
    slower: Slower = 0,
    known: tuple[KnownNoise | None, KnownNoise | None] = (None, None),
) -> Difference:
    """Return the difference of two groups of trials that were measured separately.

    known: the noise of A's and of B's series, used if it is larger than that of their trials.

    Raises:
        ValueError: a side has fewer than two trials, or all trials of each side are equal.
    """
    (of_a, freedom_a), (of_b, freedom_b) = (
        _larger(_noise(side), len(side) - 1, of_series) for side, of_series in zip((a, b), known, strict=True)
    )
    if min(a) == max(a) and min(b) == max(b):
        raise ValueError("all trials of each side are equal, so that there is no noise to test by")
    centre = fmean(b) - fmean(a)
    # Squared errors of both means; then the degrees of freedom by Welch and Satterthwaite.
    squares = (of_a / len(a), of_b / len(b))
    skew = _Skew(share_of_b=squares[1] / sum(squares), slower=slower)
    welch = sum(squares) ** 2 / (squares[0] ** 2 / freedom_a + squares[1] ** 2 / freedom_b)
    noisier = 1 + (freedom_b if skew.share_of_b > 0.5 else freedom_a)  # Its own trials, or those of its series.
    low, high, p_value = _by_t(centre, math.sqrt(sum(squares)), welch, skew, noisier)
    shift_low, shift_high = _shifts(a, b)
    alike = _Skew(share_of_b=of_b / (of_a + of_b), slower=slower)  # For equal numbers of trials.
    return Difference(
        low=min(low, shift_low),
        high=max(high, shift_high),
        p_value=max(p_value, _p_of_order(a, b)),
        error=lambda trials: math.sqrt((of_a + of_b) / trials) * _guard(alike, trials, centre),
        freedom=lambda trials: (trials - 1) * (of_a + of_b) ** 2 / (of_a**2 + of_b**2),
    )


def in_pairs(a: Sequence[float], b: Sequence[float], *, slower: Slower = 0) -> Difference:
    """Return the difference of trials that took turns: trial i of A and trial i of B form a pair.

    Raises:
        ValueError: there are fewer than two pairs, the sides have different numbers, or all differences are equal.
    """
    differences = [of_b - of_a for of_a, of_b in zip(a, b, strict=True)]
    noise, pairs, centre = _noise(differences), len(differences), fmean(differences)
    if noise == 0:
        raise ValueError("all differences are equal, so that there is no noise to test by")
    # Grubbs: a disturbance of a pair affects both sides and is their covariance; the rest is each side's own noise.
    middle_a, middle_b = fmean(a), fmean(b)
    shared = sum((of_a - middle_a) * (of_b - middle_b) for of_a, of_b in zip(a, b, strict=True)) / (pairs - 1)
    skew = _Skew(share_of_b=min(1.0, max(0.0, (_variance(b) - shared) / noise)), slower=slower)
    low, high, p_value = _by_t(centre, math.sqrt(noise / pairs), pairs - 1, skew, pairs)
    if pairs >= LEAST_RANKED_PAIRS:
        ranked_low, ranked_high, ranked_p = _by_signed_ranks(differences)
        low, high, p_value = min(low, ranked_low), max(high, ranked_high), max(p_value, ranked_p)
    return Difference(
        low=low,
        high=high,
        p_value=p_value,
        error=lambda trials: math.sqrt(noise / trials) * _guard(skew, trials, centre),
        freedom=lambda trials: trials - 1,
    )


def _larger(variance: float, freedom: int, known: KnownNoise | None) -> tuple[float, int]:
    """Return the larger of the trials' and the series' variance, with its degrees of freedom."""
    if known is None or known.variance <= variance:
        return variance, freedom
    return known.variance, known.freedom


def _noise(side: Sequence[float]) -> float:
    """Return the variance of these trials; 0 if they are equal."""
    if len(side) < 2:
        raise ValueError(f"a side has {len(side)} trials; a difference needs 2 or more of each")
    return _variance(side)


def _variance(values: Sequence[float]) -> float:
    """Return the variance; exactly 0 for equal values, whose mean may be off by its last digit."""
    if min(values) == max(values):
        return 0.0
    middle = fmean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


# Means, by t


@dataclass(frozen=True, slots=True, kw_only=True)
class _Skew:
    """Possible effect of the trials' skew. share_of_b: B's share of the difference's noise. slower: see `Slower`."""

    share_of_b: float
    slower: Slower


def _guard(skew: _Skew, trials: int, shown: float) -> float:
    """Return the factor by which skew widens the error of t at the end that shows a difference of this sign.

    If B is noisier and seems faster, or A is noisier and B seems slower, slow trials that were not observed could undo
    the difference. trials: of the noisier side.
    Example: if all noise is one side's, 2.7 with 3 trials, 1.57 with 5, 1.21 with 10; 1 if each side has half of it.
    """
    is_undone = skew.slower == 0 or (shown * skew.slower < 0) == (skew.share_of_b > 0.5)
    return 1 + (_SKEW_GUARD * abs(2 * skew.share_of_b - 1) / max(1, trials - 2) if is_undone else 0.0)


def _by_t(centre: float, error: float, freedom: float, skew: _Skew, trials: int) -> tuple[float, float, float]:
    """Return the interval of Student's t, widened at ends that skew could move, and the p-value."""
    from scipy.special import stdtr, stdtrit  # Imported here: reading figures needs no scipy.

    half_width = float(stdtrit(freedom, 1 - LEVEL / 2)) * error
    # The lower end shows a positive difference, the upper end a negative one.
    low = centre - half_width * _guard(skew, trials, 1.0)
    high = centre + half_width * _guard(skew, trials, -1.0)
    return low, high, float(2 * stdtr(freedom, -abs(centre) / (error * _guard(skew, trials, centre))))


# Two groups by their order


def _p_of_order(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the p-value by Brunner and Munzel, for the hypothesis that neither side is larger more often."""
    from scipy.special import stdtr

    # The share of the other side's trials that lie above each trial of A, and below each of B; ties count half.
    a_below, b_above = (_shares(a, sorted(b), above=True), _shares(b, sorted(a), above=False))
    distance = fmean(a_below) - 0.5
    squares = [_variance(shares) / len(shares) for shares in (a_below, b_above)]
    if sum(squares) <= 0:
        return 0.0 if abs(distance) == 0.5 else 1.0  # The sides do not overlap, or all trials are equal.
    freedom = sum(squares) ** 2 / sum(square**2 / (len(side) - 1) for square, side in zip(squares, (a, b), strict=True))
    return float(2 * stdtr(freedom, -abs(distance) / math.sqrt(sum(squares))))


def _shares(values: Sequence[float], ordered: Sequence[float], *, above: bool) -> list[float]:
    """Return for each value the share of the ordered values that lie above it, or below; equal values count half."""
    below = [(bisect_left(ordered, value) + bisect_right(ordered, value)) / (2 * len(ordered)) for value in values]
    return [1 - share for share in below] if above else below


def _shifts(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest shift of A after which its order with B shows no difference.

    The order changes only when a shift passes the difference between a trial of B and one of A. Between two
    neighbouring differences the test does not change, so the ends are found by bisection over the gaps between them.
    """
    steps = sorted(of_b - of_a for of_a in a for of_b in b)

    def differs(gap: int) -> bool:
        """Whether the test shows a difference in the gap before this step."""
        if gap in (0, len(steps)):
            return True  # Beyond the outermost difference, the sides do not overlap.
        shift = (steps[gap - 1] + steps[gap]) / 2
        return _p_of_order([value + shift for value in a], b) < LEVEL

    middle = len(steps) // 2
    if differs(middle):
        return steps[middle - 1], steps[middle]
    low_out, low_in, high_in, high_out = 0, middle, middle, len(steps)
    while low_in - low_out > 1:
        gap = (low_out + low_in) // 2
        low_out, low_in = (gap, low_in) if differs(gap) else (low_out, gap)
    while high_out - high_in > 1:
        gap = (high_in + high_out) // 2
        high_in, high_out = (high_in, gap) if differs(gap) else (gap, high_out)
    return steps[low_in - 1], steps[high_in]


# Pairs by signed ranks


def _by_signed_ranks(differences: Sequence[float]) -> tuple[float, float, float]:
    """Return the interval and the p-value by Wilcoxon; the interval is that of the median of all pairwise means.

    The sum of the ranks of positive differences is the number of positive means, so the ends are two of the means.
    """
    pairs = len(differences)
    means = sorted((first + second) / 2 for first, second in combinations_with_replacement(differences, 2))
    at_most = _signed_rank_shares(pairs)
    # Number of means beyond each end: the most that is as unlikely as half of the level.
    beyond = max((count for count, share in enumerate(at_most) if share <= LEVEL / 2), default=-1) + 1
    return means[beyond], means[-1 - beyond], signed_rank_p(differences)


def signed_rank_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value by Wilcoxon's signed ranks, for differences that are symmetric about 0.

    It is exact for any symmetric noise up to 50 differences; n differences never give less than 2 / 2^n.
    """
    means = sorted((first + second) / 2 for first, second in combinations_with_replacement(differences, 2))
    negative = (bisect_left(means, 0.0) + bisect_right(means, 0.0)) // 2
    return min(1.0, 2 * _signed_rank_shares(len(differences))[min(negative, len(means) - negative)])


@lru_cache(maxsize=64)
def _signed_rank_shares(pairs: int) -> list[float]:
    """Return the probabilities, without a change, that the positive ranks add up to at most 0, 1, 2, ..."""
    most = pairs * (pairs + 1) // 2
    if pairs > _MOST_EXACT_PAIRS:
        deviation = math.sqrt(pairs * (pairs + 1) * (2 * pairs + 1) / 24)
        return [0.5 * math.erfc((most / 2 - 0.5 - total) / deviation / math.sqrt(2)) for total in range(most + 1)]
    # Each rank is positive or not, with equal probability.
    shares = [1.0] + [0.0] * most
    for rank in range(1, pairs + 1):
        shares = [(shares[total] + (shares[total - rank] if total >= rank else 0.0)) / 2 for total in range(most + 1)]
    at_most, added = [], 0.0
    for share in shares:
        added += share
        at_most.append(added)
    return at_most


# One side


LEAST_ORDERED = 6
"""Trials from which two of the ordered ones contain the median in over 90 % of cases, whatever the distribution."""
_ORDERED_CONFIDENCE = 0.90


def ordered_ends(trials: Sequence[float]) -> tuple[float, ...]:
    """Return the two innermost ordered trials that contain the median in at least 90 % of cases; none for few trials.

    Each trial lies below the median with probability one half, so the number of trials below it is binomial.
    Example: the least and the largest of 6 trials (97 %), the second and the seventh of 8 (93 %).
    """
    count = len(trials)
    if count < LEAST_ORDERED:
        return ()
    ordered, outside, place = sorted(trials), 0.0, 0
    while True:
        outside += 2 * math.comb(count, place) / 2**count
        if outside > 1 - _ORDERED_CONFIDENCE:
            return ordered[place - 1], ordered[count - place]
        place += 1
