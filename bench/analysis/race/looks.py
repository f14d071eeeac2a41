"""Decides when a race may drop a case, with significance levels that hold over all looks and all pairs together.

A race measures its cases in turn, round by round; each round has one trial of each living case. After the rounds in
`LOOKS` it compares every pair of living cases by the logarithms of their ratios in each round, and drops a case if
another is shown to be faster. The guarantee: among equal cases, at most one race in twenty names a winner.

    over the pairs   For a false winner, one of two equal cases must be dropped, for the other or for one of the rest:
                     2 (k - 1) one-sided errors among k cases. So each pair has the level 0.05 / (k - 1), two-sided;
                     k counts the cases at the first look.
    over the looks   A function of the rounds, close to Pocock's constant bound, spends the pair's level from look to
                     look. The level of each look follows from what earlier looks have spent (Lan and DeMets), and from
                     the correlation between looks at one growing sample.
    few rounds       Two tests must agree at a look's level: Student's t on the differences, widened for skew by
                     `in_pairs` and for noise that lasts; and an exact test by order, of signed ranks or of ranks, which
                     is valid for heavy tails and for two modes. With so few rounds that even perfect order does not
                     reach the look's level, a case is dropped only if the whole interval of t lies beyond the factor
                     `LARGE` and all its trials are slower.

The guarantee does not fully cover noise that stays with one case from round to round but is not its speed, for example
a bad placement that each of its trials gets in this race and not in the next. docs/measured/races.md has the measured
rates. Knows neither engines nor ledgers; all values are costs: less is better.
Sources: Pocock 1977; Lan and DeMets 1983, Discrete Sequential Boundaries for Clinical Trials; Armitage, McPherson and
Rowe 1969 (the recursion); Jennison and Turnbull 2000, Group Sequential Methods, chapter 7 (levels carried over to t);
Mann and Whitney 1947.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from statistics import fmean

from bench.results.comparison import MARGIN, power_of_test
from bench.results.two_sides import CONFIDENCE, LARGE, in_pairs, signed_rank_p

LOOKS = (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32)
"""Rounds after which cases are compared, whatever the budget."""
MOST_ROUNDS = LOOKS[-1]
"""Maximum number of rounds: by then the level is spent."""
_POWER = 0.8
_GRID = 301
"""Grid points for the density of a pair's sum at a look; more points change no level's third digit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLook:
    """The result of a look at a pair: the cost of `b` divided by that of `a`.

    value: the mean over rounds of the differences of logarithms. low, high: its interval, which holds over all looks
        and pairs. error: its standard error. is_shown: the difference is significant.
    """

    value: float
    low: float
    high: float
    error: float
    is_shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Why a case was dropped. by: the living case that was furthest ahead of it. rounds: the look.

    ratio, low, high: its cost divided by that of `by`, with an interval that holds over all looks and pairs.
    """

    by: str
    rounds: int
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a race stands after its newest look.

    rounds: the number of rounds at that look; 0 before the first. dropped: by name, in the order of the looks.
    ahead: names of living cases, cheapest first.
    pair: the second of them divided by the first at that look; None if fewer than two are living.
    is_same: no two living cases differ by more than `MARGIN`, by intervals that hold over all looks and pairs.
    unsettled: cases that were dropped because of a case that failed later, so that no remaining case was compared with
        them.
    """

    rounds: int
    dropped: Mapping[str, Drop]
    ahead: tuple[str, ...]
    pair: PairLook | None
    is_same: bool
    unsettled: tuple[str, ...] = ()

    @property
    def winner(self) -> str | None:
        """The case that is shown to be the cheapest; None until there is one, or if no case finished."""
        return self.ahead[0] if len(self.ahead) == 1 and self.rounds and not self.unsettled else None


def stand(costs: Mapping[str, Sequence[float]], failed: Mapping[str, int] | None = None) -> Standing:
    """Return where a race stands after all looks that its complete rounds allow; a pure function of the trials.

    costs: of each case's trials, by round, all positive: seconds per token, or bytes. A dropped case has no later
        trials.
    failed: number of complete rounds of each failed case, by name.
    """
    failed = failed or {}
    lines = {name: [math.log(cost) for cost in trials] for name, trials in costs.items()}
    alive = {name for name in costs if failed.get(name, MOST_ROUNDS + 1) >= LOOKS[0] and len(costs[name]) >= LOOKS[0]}
    starters, dropped, rounds, is_same = len(alive), dict[str, Drop](), 0, False
    pairs: dict[tuple[str, str], PairLook] = {}
    for look in LOOKS:
        alive -= {name for name in alive if failed.get(name, MOST_ROUNDS + 1) < look}
        if (rounds and len(alive) < 2) or not alive or any(len(lines[name]) < look for name in alive):
            break
        rounds, level = look, levels(starters)[look]
        pairs = {(a, b): compare(lines[a][:look], lines[b][:look], level) for a, b in combinations(sorted(alive), 2)}
        for name in sorted(alive):
            shown = [drop for drop in (_drop(pairs, name, other, look) for other in alive - {name}) if drop is not None]
            if shown:
                dropped[name] = max(shown, key=lambda drop: drop.ratio)
        alive -= dropped.keys()
        # Only pairs of living cases count: two dropped cases may well be equal.
        pairs = {pair: look_of for pair, look_of in pairs.items() if alive.issuperset(pair)}
        edge = math.log1p(MARGIN)
        is_same = bool(pairs) and all(-edge <= pair.low and pair.high <= edge for pair in pairs.values())
    ahead = sorted(alive, key=lambda name: fmean(lines[name][: rounds or None] or [math.inf]))
    return Standing(
        rounds=rounds,
        dropped=dropped,
        ahead=tuple(ahead),
        pair=_oriented(pairs, ahead[0], ahead[1]) if len(ahead) > 1 and rounds else None,
        is_same=is_same,
        unsettled=tuple(name for name in dropped if _last(name, dropped) in failed),
    )


def _last(name: str, dropped: Mapping[str, Drop]) -> str:
    """Follow the chain of drops from this case to the case that was not dropped itself."""
    while name in dropped:
        name = dropped[name].by
    return name


def rounds_to_tell(standing: Standing, starters: int) -> int | None:
    """Return the rounds at which a test would separate the first two with 80 % power; None if over `MOST_ROUNDS`.

    Assumes that the measured difference and noise are the true ones. starters: cases at the first look.
    """
    if standing.pair is None or standing.pair.error == 0:
        return None
    one_round = standing.pair.error * math.sqrt(standing.rounds)
    for look in LOOKS:
        if look > standing.rounds:
            distance = abs(standing.pair.value) / one_round * math.sqrt(look)
            if power_of_test(distance, look - 1, levels(starters)[look]) >= _POWER:
                return look
    return None


# A pair


def compare(a: Sequence[float], b: Sequence[float], level: float) -> PairLook:
    """Compare the logarithms of two cases' costs, round by round. level: of this look and pair, two-sided."""
    from scipy.special import stdtr, stdtrit  # Imported here: commands that only read figures need no scipy.

    rounds, differences = len(a), [of_b - of_a for of_a, of_b in zip(a, b, strict=True)]
    value = fmean(differences)
    if min(differences) == max(differences):  # Sizes may be exact; times never are.
        return PairLook(value=value, low=value, high=value, error=0.0, is_shown=value != 0)
    error = in_pairs(a, b, slower=1).error(rounds) * _widening(differences, value)
    half_width = float(stdtrit(rounds - 1, 1 - level / 2)) * error
    low, high = value - half_width, value + half_width
    is_shown = not low <= 0 <= high and 2 * float(stdtr(rounds - 1, -abs(value) / error)) <= level
    if min(2 * _rank_shares(rounds)[0], 2.0 ** (1 - rounds)) > level:
        is_apart = min(b) > max(a) if value > 0 else min(a) > max(b)
        is_shown = is_shown and is_apart and min(abs(low), abs(high)) > math.log(LARGE)
    else:
        is_shown = is_shown and min(signed_rank_p(differences), rank_p(a, b)) <= level
    return PairLook(value=value, low=low, high=high, error=error, is_shown=is_shown)


def _widening(differences: Sequence[float], centre: float) -> float:
    """Return the factor, at least 1, by which noise that lasts from round to round widens the error of the mean.

    It is sqrt((1 + r) / (1 - r)) with r, the correlation of neighbouring rounds, as for AR(1) noise. In n rounds, r is
    underestimated by about 1 / n, which is added; r is limited to 0.9.
    Source: Bayley and Hammersley 1946, The Effective Number of Independent Observations.
    """
    offsets = [difference - centre for difference in differences]
    together = math.fsum(before * after for before, after in pairwise(offsets))
    correlation = together / math.fsum(offset**2 for offset in offsets) + 1 / len(offsets)
    clipped = min(0.9, max(0.0, correlation))
    return math.sqrt((1 + clipped) / (1 - clipped))


def _oriented(pairs: Mapping[tuple[str, str], PairLook], a: str, b: str) -> PairLook:
    """Return the look with the cost of b divided by that of a."""
    if (a, b) in pairs:
        return pairs[a, b]
    look = pairs[b, a]
    return PairLook(value=-look.value, low=-look.high, high=-look.low, error=look.error, is_shown=look.is_shown)


def _drop(pairs: Mapping[tuple[str, str], PairLook], name: str, other: str, rounds: int) -> Drop | None:
    """Return the drop of case `name` because of case `other`; None if `other` is not shown to be cheaper."""
    look = _oriented(pairs, other, name)
    if not look.is_shown or look.value <= 0:
        return None
    return Drop(by=other, rounds=rounds, ratio=math.exp(look.value), low=math.exp(look.low), high=math.exp(look.high))


def rank_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p-value, by Mann and Whitney, that two groups with equally many trials are alike.

    It is exact; ties count half. A disturbance of both cases in a round makes it larger, not smaller.
    """
    above = sum((of_b > of_a) + 0.5 * (of_b == of_a) for of_a in a for of_b in b)
    return min(1.0, 2 * _rank_shares(len(a))[math.ceil(min(above, len(a) ** 2 - above))])


@lru_cache(maxsize=64)
def _rank_shares(trials: int) -> tuple[float, ...]:
    """Return the probability that at most 0, 1, 2, ... pairs of trials of two equal groups are in one order."""
    # ways[m][u]: arrangements of the first group's trials so far and m of the second's with u such pairs.
    most = trials * trials
    ways = [[1] + [0] * most for _ in range(trials + 1)]
    for first in range(1, trials + 1):
        for second in range(1, trials + 1):
            # The largest trial belongs to the second group, and is above all of the first, or it belongs to the first.
            ways[second] = [
                ways[second][pairs] + (ways[second - 1][pairs - first] if pairs >= first else 0)
                for pairs in range(most + 1)
            ]
        ways[0] = [1] + [0] * most
    total, added, shares = math.comb(2 * trials, trials), 0, []
    for count in ways[trials]:
        added += count
        shares.append(added / total)
    return tuple(shares)


# Levels


@lru_cache(maxsize=64)
def levels(starters: int) -> Mapping[int, float]:
    """Return the two-sided level of a pair at each look of a race with this many cases.

    Example for two cases: 0.0079 after 4 rounds, 0.0067 after 8, 0.0085 after 32.
    """
    import numpy as np

    of_pair = (1 - CONFIDENCE) / max(1, starters - 1)
    level_at: dict[int, float] = {}
    spent, before = 0.0, 0
    # The density of the sum of a pair's differences while no look has ended the race, in standard deviations of one
    # difference.
    sums, density = np.array([0.0]), np.array([1.0])
    for look in LOOKS:
        target = of_pair * math.log1p((math.e - 1) * look / MOST_ROUNDS)  # Level spent up to this look.
        rounds, deviation = look - before, math.sqrt(look - before)

        def beyond(bound: float, sums=sums, density=density, deviation=deviation) -> float:  # type: ignore[no-untyped-def]
            """Return the probability of a sum beyond the bound at this look, and within all bounds before."""
            from scipy.special import ndtr

            return float(np.sum(density * (ndtr((-bound - sums) / deviation) + ndtr((sums - bound) / deviation))))

        low, high = 0.0, 10 * math.sqrt(look)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if beyond(middle) > target - spent else (low, middle)
        level_at[look] = math.erfc(high / math.sqrt(2 * look))
        # The density after this look at each grid point, times the width of its cell.
        points = np.linspace(-high, high, _GRID)
        steps = np.exp(-((points[:, None] - sums[None, :]) ** 2) / (2 * rounds)) / (deviation * math.sqrt(2 * math.pi))
        density = steps @ density * (points[1] - points[0])
        density[[0, -1]] /= 2
        sums, spent, before = points, target, look
    return level_at
