"""Decide whether a change comes from the code or from the environment, by runs of two source trees in one night.

The good tree and the present tree take turns on the same nodes, so that the night's effect is the same for both:
code = present tree tonight - good tree tonight; environment = good tree tonight - good tree on the nights before the
change. Knows neither store nor engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance
from typing import Literal

import msgspec

from bench.results.two_sides import CONFIDENCE

AttributionOutcome = Literal["code", "environment", "both", "unsure"]
"""environment: the trees are equal, so the code is not the cause. unsure: the pairs are inconclusive or missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSettings:
    """When trees are compared in pairs, and how often.

    probability: pairs are measured if a change is at least this probable. At 0.3, seven of ten candidates are false,
        and still cost less than a false page: pairs take minutes of a machine, a page takes hours of a person.
    pairs: number of pairs. With six, one disturbed pair makes the verdict unsure; with eight it does not. Twice as many
        would narrow the interval by a third.
    equal_share: trees are equal if they differ by less than this share of the suspected change, that is, if their
        difference is nearer to zero than to the change.
    """

    probability: float = 0.3
    pairs: int = 8
    equal_share: float = 0.5


SETTINGS = PairSettings()
FEWEST_PAIRS = 6
"""With fewer pairs, chance alone makes all of them point in one direction in more than 5 % of cases."""


class MeasuredChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change with its 95 % interval, each a ratio: 1.02 means 2 % more."""

    ratio: float
    low: float
    high: float


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """What a night's pairs show about a figure's change.

    suite_run, night_ns: the night of the pairs, and when it began (Unix time). good_commit, commit: the two trees.
    pairs: number of complete pairs; 0 if none were measured, see `reason`. code, environment: None if unknown.
    """

    outcome: AttributionOutcome
    suite_run: str
    night_ns: int
    good_commit: str | None = None
    commit: str | None = None
    pairs: int = 0
    code: MeasuredChange | None = None
    environment: MeasuredChange | None = None
    reason: str | None = None

    def is_code_on(self, suite_run: str) -> bool:
        """Whether the pairs of this night show that the code caused at least part of the change."""
        return self.suite_run == suite_run and self.outcome in ("code", "both")


def attribute(
    good: Sequence[float],
    present: Sequence[float],
    before: Sequence[float],
    suspected: float,
    settings: PairSettings = SETTINGS,
) -> tuple[AttributionOutcome, MeasuredChange | None, MeasuredChange | None]:
    """Return the cause of a change, and how much the code and the environment each changed.

    All values are logarithms. good, present: trials of the trees, in pairs. before: nights of the good tree before the
    change. suspected: the change to explain.
    """
    code = _interval([now - then for now, then in zip(present, good, strict=True)])
    environment = _since(good, before)
    if code is None:
        return "unsure", None, _as_ratios(environment)
    limit = settings.equal_share * abs(suspected)
    is_equal = max(abs(code[1]), abs(code[2])) <= limit
    has_environment = environment is not None and _is_in_direction(environment, suspected)
    outcome: AttributionOutcome = "unsure"
    if is_equal:
        outcome = "environment"
    elif _is_in_direction(code, suspected):
        outcome = "both" if has_environment else "code"
    return outcome, _as_ratios(code), _as_ratios(environment)


def change_of_pairs(first: Sequence[float], second: Sequence[float]) -> MeasuredChange | None:
    """Return the change from the first to the second side of the pairs (logarithms); None if the pairs are too few."""
    return _as_ratios(_interval([after - before for before, after in zip(first, second, strict=False)]))


_Interval = tuple[float, float, float]
"""Middle, low and high, as logarithms."""


def _interval(differences: Sequence[float]) -> _Interval | None:
    """Return the middle of paired differences with a 95 % interval; None if there are too few.

    The middle is the median of the means of all pairs of differences (Hodges and Lehmann 1963). The interval is that of
    Wilcoxon's signed ranks. It is exact if both sides of a pair have the same noise, whatever its distribution: a
    difference is then as likely above the change as below. A burst of load on one trial widens Student's t without
    bound and does not affect this interval, which for normal noise is 5 % wider. A bootstrap of eight values would be a
    sixth too narrow.
    """
    count = len(differences)
    if count < FEWEST_PAIRS:
        return None
    means = sorted((differences[i] + differences[j]) / 2 for i in range(count) for j in range(i, count))
    outside = _signed_rank_limit(count)
    return median(means), means[outside], means[-1 - outside]


def _signed_rank_limit(count: int) -> int:
    """Return how many of the sorted means lie below a 95 % interval; equally many lie above it.

    Without a change, each of the ranks 1 to `count` is positive with probability 1/2. The limit is the largest sum of
    positive ranks whose cumulative probability is at most 2.5 %.
    Example: for 6 pairs, a sum of 0 has probability 1/64, so no mean is left out.
    """
    ways = [1.0]
    for rank in range(1, count + 1):
        longer = [*ways, *[0.0] * rank]
        for total, number in enumerate(ways):
            longer[total + rank] += number
        scale = sum(longer)
        ways = [number / scale for number in longer]
    passed, limit = 0.0, -1
    for total, chance in enumerate(ways):
        passed += chance
        if passed > (1 - CONFIDENCE) / 2:
            break
        limit = total
    return max(limit, 0)


def _since(good: Sequence[float], before: Sequence[float]) -> _Interval | None:
    """Return how far the good tree is tonight from its nights before the change; None with fewer than two values.

    Every night, tonight included, has an effect of its own. Its variance counts once for tonight, and once for the mean
    of the earlier nights.
    """
    if len(good) < 2 or len(before) < 2:
        return None
    from scipy.special import stdtrit  # Imported here: reading verdicts needs no scipy.

    nights = len(before)
    error = math.sqrt(variance(good) / len(good) + variance(before) * (1 + 1 / nights))
    half_width = float(stdtrit(nights - 1, 0.5 + CONFIDENCE / 2)) * error
    middle = fmean(good) - fmean(before)
    return middle, middle - half_width, middle + half_width


def _is_in_direction(change: _Interval, suspected: float) -> bool:
    """Whether the interval excludes zero, on the side of the suspected change."""
    _, low, high = change
    return low > 0 if suspected > 0 else high < 0


def _as_ratios(change: _Interval | None) -> MeasuredChange | None:
    if change is None:
        return None
    ratio, low, high = map(math.exp, change)
    return MeasuredChange(ratio=ratio, low=low, high=high)


# In words.


def attribution_words(attribution: Attribution) -> str:
    """Return the cause of a change in a few words: `code +9.8 % [+8.1, +11.5] in 8 pairs of 0a1b2c3 and 3d4e5f6`.

    If the environment is the cause: `environment, code +0.2 % [-0.8, +1.1] in 8 pairs of 0a1b2c3 and 3d4e5f6`.
    """
    if attribution.code is None:
        if attribution.outcome == "unsure":
            return f"code or environment: unknown, {attribution.reason}"
        return f"{attribution.outcome}: {attribution.reason}"
    commits = " and ".join(commit[:7] for commit in (attribution.good_commit, attribution.commit) if commit)
    pairs = f"in {attribution.pairs} pairs of {commits}"
    code = f"code {change_text(attribution.code)} {pairs}"
    if attribution.outcome == "code":
        return code
    if attribution.outcome == "unsure":
        return f"code or environment: unsure, {code}"
    of_environment = "" if attribution.environment is None else f" {change_text(attribution.environment)}"
    return (
        f"environment{of_environment}, {code}"
        if attribution.outcome == "environment"
        else (f"both: {code}, environment{of_environment}")
    )


def change_text(change: MeasuredChange) -> str:
    """Return a change with its interval: `+9.8 % [+8.1, +11.5]`."""
    ratio, low, high = (100 * (value - 1) for value in (change.ratio, change.low, change.high))
    return f"{ratio:+.1f} % [{low:+.1f}, {high:+.1f}]"
