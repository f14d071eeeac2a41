"""Comparison of one metric on two sides: the change with its interval, and its outcome.

Times and rates are compared by the ratio of B to A, as logarithms; shares of a whole by the difference of B and A. If
the trials of both sides took turns, they are compared in pairs, otherwise as two groups: see `bench.results.two_sides`.
Two groups of few trials show a difference only if earlier runs of their series show how noisy they are. A value that is
the same in every trial of a side, as a count or a size may be, is exact, and is compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from bench.errors import plural
from bench.results.estimate import Estimate
from bench.results.two_sides import LARGE, LEAST_APART, LEVEL, Difference, Slower, in_groups, in_pairs, known_noise
from collectors.metrics import probes, results
from collectors.metrics.metric import Metric
from collectors.metrics.registry import METRICS

Runs = Sequence[Sequence[float]]
"""The trials of one figure in several runs."""
ChangeOutcome = Literal["better", "worse", "same", "unsure", "insufficient_data"]
Scale = Literal["ratio", "difference"]
"""ratio: B / A, 1 if unchanged. difference: B - A for shares of a whole, 0 if unchanged."""

OUTCOMES: tuple[ChangeOutcome, ...] = ("worse", "better", "unsure", "insufficient_data", "same")
"""In the order in which reports show them."""
POWER = 0.8
MARGIN = 0.02
"""Default for the largest change that does not matter."""
MOST_TRIALS = 10_000
"""Largest number of trials that is searched for a sufficient one."""

# Which figures are compared

PREDICTED = frozenset({"expected", "paper", "implementation"})
"""Values of the label `account` that are not measurements."""
_RATES = (results.RUN_MFU.name, results.RUN_MEASURED_MFU.name)
"""Ratios that are not shares of a whole, but a rate over a constant."""
_MAIN: dict[str, frozenset[str] | None] = {
    results.RUN_STEP_SECONDS.name: None,
    results.RUN_TOKENS_PER_SECOND.name: None,
    results.RUN_PEAK_MEMORY_BYTES.name: frozenset({"allocator", "live_tensors"}),
    results.RUN_COMMUNICATION_SECONDS.name: None,
    results.RUN_OVERLAP_RATIO.name: None,
    results.RUN_BUBBLE_RATIO.name: None,
    probes.RUN_COLLECTIVE_BUS_BANDWIDTH.name: None,
    probes.RUN_LINK_BANDWIDTH.name: None,
    probes.RUN_LINK_LATENCY_SECONDS.name: None,
    probes.RUN_MATMUL_FLOPS.name: None,
    probes.RUN_COPY_BANDWIDTH.name: None,
    probes.RUN_PAIR_BANDWIDTH.name: None,
}
"""Metrics whose figures come first for a reader, with the accounts of peak memory that do."""
_BY_NAME = {metric.name: metric for metric in METRICS}


def compared(estimate: Estimate) -> Metric | None:
    """Return the metric of a measured figure with a better direction; None for any other figure."""
    metric = _BY_NAME.get(estimate.metric)
    if metric is None or metric.better is None or estimate.labels.get("account") in PREDICTED:
        return None
    return metric


def is_main(estimate: Estimate) -> bool:
    """Whether this figure comes first for a reader."""
    if estimate.metric not in _MAIN:
        return False
    accounts = _MAIN[estimate.metric]
    return accounts is None or estimate.labels.get("account") in accounts


# The change of one figure


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureChange:
    """How one figure of B differs from that of A, before it is judged.

    value, low, high: the change with its 95 % interval, on its scale. The value is the ratio (or difference) of the
        medians; for pairs, the median of the pairs. The interval is widened to contain it. low and high are None if
        there is no interval: `reason` says why. If `is_short`, `reason` says why no difference can be shown.
    p_value: of no change, two-sided; None if there is no interval.
    is_exact: on both sides, all trials are equal, so that there is nothing to test.
    error, freedom: as in `two_sides.Difference`, in the scale's own units (logarithms or shares).
    trials: complete trials of A and of B, or those of each in pairs.
    is_short: a group has so few trials, and its series so few earlier runs, that only a large difference counts.
    """

    metric: Metric
    a: Estimate
    b: Estimate
    scale: Scale
    value: float
    trials: tuple[int, int]
    is_paired: bool
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    is_exact: bool = False
    is_short: bool = False
    reason: str | None = None
    error: Callable[[int], float] = lambda trials: math.nan
    freedom: Callable[[int], float] = lambda trials: math.nan

    @property
    def is_better(self) -> bool:
        """Whether the change is an improvement."""
        return (self.value > self.nothing) == (self.metric.better == "higher")

    @property
    def nothing(self) -> float:
        """The value that means no change."""
        return 1.0 if self.scale == "ratio" else 0.0

    def on_line(self, value: float) -> float:
        """Return a value of the change as its distance from no change, as a logarithm or as it is."""
        return math.log(value) if self.scale == "ratio" else value


def changes(
    a: Sequence[Estimate],
    b: Sequence[Estimate],
    *,
    is_paired: bool,
    earlier: Callable[[Estimate], tuple[Runs, Runs]] | None = None,
) -> list[FigureChange]:
    """Return the change of each figure that both sides have and that has a better direction, in A's order.

    is_paired: trial i of A and trial i of B were measured one after the other.
    earlier: returns the trials of a figure in other runs of A's series and of B's.
    """
    estimates_of_b = {(estimate.metric, *sorted(estimate.labels.items())): estimate for estimate in b}
    changes = []
    for estimate in a:
        partner, metric = estimates_of_b.get((estimate.metric, *sorted(estimate.labels.items()))), compared(estimate)
        if partner is not None and metric is not None:
            runs = ((), ()) if earlier is None or is_paired else earlier(estimate)
            changes.append(change(metric, estimate, partner, is_paired=is_paired, earlier=runs))
    return changes


def change(
    metric: Metric, a: Estimate, b: Estimate, *, is_paired: bool, earlier: tuple[Runs, Runs] = ((), ())
) -> FigureChange:
    """Return the change of one figure from A to B. earlier: for two groups, its trials in other runs of both series."""
    above, below = b.trials, a.trials
    if is_paired:
        above, below = above[: len(below)], below[: len(above)]
    is_share = metric.unit == "ratio" and metric.name not in _RATES
    scale: Scale = "difference" if is_share or min(*above, *below) <= 0 else "ratio"
    lines_a, lines_b = (_on_line(side, scale) for side in (below, above))
    pairs = [of_b - of_a for of_b, of_a in zip(lines_b, lines_a, strict=True)] if is_paired else []
    if is_paired:
        value = math.exp(median(pairs)) if scale == "ratio" else median(pairs)
    else:
        value = b.median / a.median if scale == "ratio" else b.median - a.median
    measured = FigureChange(
        metric=metric, a=a, b=b, scale=scale, value=value, trials=(len(below), len(above)), is_paired=is_paired
    )
    if min(measured.trials) < 2:
        side = " and ".join(name for name, count in zip("AB", measured.trials, strict=True) if count < 2)
        return replace(measured, reason=f"{side} {'have' if ' ' in side else 'has'} one trial, which has no interval")
    noisy = [pairs] if is_paired else [lines_a, lines_b]
    if all(min(values) == max(values) for values in noisy):
        return replace(measured, is_exact=True, reason="all trials are equal to the last digit")
    slower: Slower = 0 if scale == "difference" else 1 if metric.better == "lower" else -1
    if is_paired:
        return _tested(measured, in_pairs(lines_a, lines_b, slower=slower))
    known_a, known_b = (
        known_noise(_on_line(run, scale) for run in runs if scale == "difference" or min(run, default=0) > 0)
        for runs in earlier
    )
    is_short = any(
        trials < LEAST_APART and known is None
        for trials, known in zip(measured.trials, (known_a, known_b), strict=True)
    )
    difference = in_groups(lines_a, lines_b, slower=slower, known=(known_a, known_b))
    return replace(_tested(measured, difference), is_short=is_short, reason=_SHORT if is_short else None)


_SHORT = (
    f"a side has fewer than {LEAST_APART} trials, and its series too few other runs to say whether they are typical"
)


def _on_line(values: Sequence[float], scale: Scale) -> list[float]:
    """Return the values in the units in which their differences are taken."""
    return [math.log(value) for value in values] if scale == "ratio" else list(values)


def _tested(measured: FigureChange, difference: Difference) -> FigureChange:
    """Add the interval and the test, on the scale of the change."""
    low, high = difference.low, difference.high
    if measured.scale == "ratio":
        low, high = math.exp(low), math.exp(high)
    return replace(
        measured,
        low=min(low, measured.value),
        high=max(high, measured.value),
        p_value=difference.p_value,
        error=difference.error,
        freedom=difference.freedom,
    )


# What the changes of one comparison mean together


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedChange:
    """A change and its outcome.

    better, worse: the interval excludes no change and is not within the margin, and no group is short, unless the whole
        interval is beyond a factor of `LARGE`. Benjamini and Hochberg's method limits the share of false ones to 5 %,
        separately for the main figures and the others.
    same: the whole interval lies within the margin, or exact values are equal.
    unsure: neither. more_trials: about how many more trials per side would settle it with 80 % power, see
        `trials_to_settle`; None if that takes more than `MOST_TRIALS`.
    insufficient_data: a side has fewer than two trials.
    adjusted_p: the p-value adjusted by Benjamini and Hochberg; None if there was no test.
    """

    change: FigureChange
    outcome: ChangeOutcome
    adjusted_p: float | None
    more_trials: int | None = None


def judge(changes: Sequence[FigureChange], *, margin: float = MARGIN) -> list[JudgedChange]:
    """Return the outcomes of all changes of one comparison, in order.

    margin: the largest change that does not matter: a factor of 1 + margin in either direction, or this much of a
    share.
    """
    judged: dict[int, JudgedChange] = {}
    for family in (True, False):
        places = [place for place, change in enumerate(changes) if is_main(change.a) == family]
        tested = [place for place in places if changes[place].p_value is not None]
        adjusted = dict(zip(tested, false_discovery([changes[place].p_value or 0.0 for place in tested]), strict=True))
        judged |= {place: _judged(changes[place], adjusted.get(place), margin) for place in places}
    return [judged[place] for place in range(len(changes))]


def _judged(change: FigureChange, adjusted_p: float | None, margin: float) -> JudgedChange:
    if change.is_exact:
        outcome: ChangeOutcome = "same" if change.value == change.nothing else "better" if change.is_better else "worse"
        return JudgedChange(change=change, outcome=outcome, adjusted_p=None)
    if change.low is None or change.high is None or change.p_value is None or adjusted_p is None:
        return JudgedChange(change=change, outcome="insufficient_data", adjusted_p=None)
    edge = math.log1p(margin) if change.scale == "ratio" else margin
    low, high = change.on_line(change.low), change.on_line(change.high)
    if -edge <= low and high <= edge:
        return JudgedChange(change=change, outcome="same", adjusted_p=adjusted_p)
    is_large = change.scale == "ratio" and min(abs(low), abs(high)) > math.log(LARGE)
    if adjusted_p <= LEVEL and not low <= 0 <= high and (is_large or not change.is_short):
        return JudgedChange(change=change, outcome="better" if change.is_better else "worse", adjusted_p=adjusted_p)
    # Among other figures, a difference counts at this level of its own.
    level = LEVEL * (change.p_value / adjusted_p if adjusted_p > 0 else 1.0)
    needed = trials_to_settle(change, margin=edge, level=level)
    if needed is not None and change.is_short:
        needed = max(needed, LEAST_APART)
    more = None if needed is None else max(1, needed - min(change.trials))
    return JudgedChange(change=change, outcome="unsure", adjusted_p=adjusted_p, more_trials=more)


def false_discovery(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values: among those below a level, at most this share is false.

    Of m values, the k-th smallest is multiplied by m / k, and never exceeds a larger one: 0.01, 0.03, 0.04 and 0.5 give
    0.04, 0.053, 0.053 and 0.5. This holds for independent figures, and for positively dependent ones.
    Source: Benjamini and Hochberg 1995, Controlling the False Discovery Rate; Benjamini and Yekutieli 2001.
    """
    count = len(p_values)
    adjusted = [1.0] * count
    least = 1.0
    for number, place in reversed(list(enumerate(sorted(range(count), key=lambda place: p_values[place]), start=1))):
        least = min(least, p_values[place] * count / number)
        adjusted[place] = least
    return adjusted


# Power: what a number of trials would show


def trials_to_settle(change: FigureChange, *, margin: float, level: float = LEVEL) -> int | None:
    """Return the trials per side that would settle an unsure change with 80 % power, given the measured noise.

    If the measured change is at least the margin: the number that would show it if it were true. Otherwise the number
    that would bring the whole interval within the margin if there were no change. None beyond `MOST_TRIALS`. margin: in
    the scale's own units.
    """
    effect = abs(change.on_line(change.value))

    def is_enough(trials: int) -> bool:
        standard, degrees = change.error(trials), change.freedom(trials)
        if effect >= margin:
            return power_of_test(effect / standard, degrees, level) >= power_of_t(trials)
        return power_of_equivalence(margin / standard, degrees) >= power_of_t(trials)

    return least_trials(is_enough)


def power_of_t(trials: int) -> float:
    """Return the power that t alone needs so that 80 % remain after the guards of `two_sides` (measured)."""
    return POWER + {2: 0.16, 3: 0.16, 4: 0.11, 8: 0.09}.get(trials, 0.05)


def least_trials(is_enough: Callable[[int], bool], least: int = 2) -> int | None:
    """Return the smallest sufficient number of trials, if more are never worse; None beyond `MOST_TRIALS`."""
    high = least
    while not is_enough(high):
        if high >= MOST_TRIALS:
            return None
        high = min(2 * high, MOST_TRIALS)
    low = max(least, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return high


_FAR = 30.0
"""Standard errors beyond the quantile at which the power is 1 to all digits; scipy's series fails before that."""


def power_of_test(distance: float, freedom: float, level: float = LEVEL) -> float:
    """Return the probability that a two-sided t test shows a change of this many standard errors.

    Uses the noncentral t distribution. Source: Cohen 1988, Statistical Power Analysis, section 2.
    """
    from scipy.special import nctdtr, stdtrit

    quantile = float(stdtrit(freedom, 1 - level / 2))
    if distance > quantile + _FAR:
        return 1.0
    # The other tail is below level / 2, and is left out if scipy's series does not converge.
    lower_tail = float(nctdtr(freedom, distance, -quantile))
    return 1 - float(nctdtr(freedom, distance, quantile)) + (lower_tail if math.isfinite(lower_tail) else 0.0)


def power_of_equivalence(distance: float, freedom: float) -> float:
    """Return the probability that the interval lies within a margin of `distance` standard errors if nothing changed.

    Uses the noncentral t distribution, for two one-sided tests.
    Source: Diletti, Hauschke and Steinijans 1991, Sample size determination for bioequivalence assessment.
    """
    from scipy.special import nctdtr, stdtrit

    quantile = float(stdtrit(freedom, 1 - LEVEL / 2))
    return 1.0 if distance > quantile + _FAR else max(0.0, 1 - 2 * float(nctdtr(freedom, distance, quantile)))


def smallest_shown(trials: int, deviation: float) -> float:
    """Return the smallest change (logarithm) that two sides with these trials in turn show with 80 % power.

    deviation: of one trial, as a logarithm, so that a pair's is the square root of 2 times as large.

    Raises:
        ValueError: there are fewer than two trials.
    """
    from scipy.special import nctdtrinc, stdtrit

    if trials < 2:
        raise ValueError(f"{plural(trials, 'trial')}: no interval, so no change can be shown; use 2 or more")
    quantile = float(stdtrit(trials - 1, 1 - LEVEL / 2))
    return float(nctdtrinc(trials - 1, 1 - power_of_t(trials), quantile)) * deviation * math.sqrt(2 / trials)


def counted(judged: Iterable[JudgedChange]) -> dict[ChangeOutcome, int]:
    """Return the number of changes with each outcome that occurs, in the order of `OUTCOMES`."""
    outcomes = [judgement.outcome for judgement in judged]
    return {outcome: outcomes.count(outcome) for outcome in OUTCOMES if outcome in outcomes}
