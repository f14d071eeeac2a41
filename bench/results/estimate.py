"""Statistics over trials: the median of a metric with its interval, and the ratio of two such medians.

Trial values are times and rates: positive and skewed, so intervals are computed from their logarithms. Each trial gives
one value: the steps of a trial share a process and its conditions, so they are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, variance

from bench.results.two_sides import CONFIDENCE, Slower, in_groups, ordered_ends
from collectors.metrics.metric import Metric
from collectors.metrics.registry import METRICS

_SLOWER: dict[str, Slower] = {
    metric.name: 1 if metric.better == "lower" else -1 for metric in METRICS if metric.better is not None
}
"""By metric, the direction in which the values of a slower run lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A metric over the trials of a run.

    low, high: 95 % interval by Student's t on the logarithms, widened to contain the median and, from 6 trials on, the
    ordered trials that contain it whatever the distribution (`ordered_ends`). Both are None if there is no interval:
    see `why_no_interval`.
    trials: the value of each trial, in order. For a value fitted to all trials at once, the value of each trial's own
    fit.
    """

    metric: str
    labels: dict[str, str]
    median: float
    low: float | None
    high: float | None
    trials: tuple[float, ...]

    def is_same_as(self, other: Estimate) -> bool:
        """Whether both have the same metric and labels."""
        return (self.metric, self.labels) == (other.metric, other.labels)

    @property
    def why_no_interval(self) -> str | None:
        """The reason; None if there is an interval."""
        return None if self.low is not None else _why_no_interval(self.trials)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedRatio:
    """The median of one estimate, divided by that of another.

    low, high: 95 % interval of two groups of logarithms (`two_sides.in_groups`), so that the two sides may differ in
    noise, shape and number of trials; widened to contain the value. Both are None if there is no interval: see
    `why_no_interval`.
    """

    value: float
    low: float | None
    high: float | None
    numerator_trials: int
    denominator_trials: int

    @property
    def why_no_interval(self) -> str | None:
        """The reason; None if there is an interval."""
        if self.low is not None:
            return None
        if min(self.numerator_trials, self.denominator_trials) == 1:
            return "one trial has no interval"
        return _EQUAL_TRIALS


_EQUAL_TRIALS = "equal trials have no interval: their noise is below the resolution"


def of_metric(estimates: Iterable[Estimate], metric: Metric) -> list[Estimate]:
    """Return the estimates of this metric, in order."""
    return [estimate for estimate in estimates if estimate.metric == metric.name]


def by_labels(estimates: Iterable[Estimate], metric: Metric) -> dict[tuple[str, ...], Estimate]:
    """Return the estimates of this metric by their label values, in the order of the metric's labels."""
    return {
        tuple(estimate.labels[name] for name in metric.labels): estimate for estimate in of_metric(estimates, metric)
    }


def estimate(metric: Metric, trials: Sequence[float], **labels: str) -> Estimate:
    """Return the median of the trials with its interval.

    Trials that are equal to the last digit get no interval: one of zero width would make every later difference
    significant. Their values are stored, so that a count or a size can still be compared exactly.

    Raises:
        ValueError: there is no trial, a value is not positive and finite, or a label is missing or unknown.
    """
    _require(metric, trials, labels, lambda value: 0 < value < math.inf, "positive and finite")
    middle = median(trials)
    low = high = None
    if _why_no_interval(trials) is None:
        logarithms = [math.log(value) for value in trials]
        centre, half_width = fmean(logarithms), _half_width(logarithms)
        # The interval is widened to contain these values.
        contained = middle, *ordered_ends(trials)
        low = min(math.exp(centre - half_width), *contained)
        high = max(math.exp(centre + half_width), *contained)
    return Estimate(metric=metric.name, labels=labels, median=middle, low=low, high=high, trials=tuple(trials))


def per_second(metric: Metric, amount: float, times_s: Sequence[float], **labels: str) -> Estimate:
    """Return the estimate of a rate: the amount divided by the trials' times, their median and their interval.

    With an even number of trials, the median of the rates would differ from the amount divided by the times' median.

    Raises:
        ValueError: as `estimate`, or the amount is not positive.
    """
    if not (amount > 0 and math.isfinite(amount)):
        raise ValueError(f"{metric.name}: the amount is {amount}; it must be positive and finite")
    times = estimate(metric, times_s, **labels)
    return replace(
        times,
        median=amount / times.median,
        low=None if times.high is None else amount / times.high,
        high=None if times.low is None else amount / times.low,
        trials=tuple(amount / time_s for time_s in times_s),
    )


def estimate_share(metric: Metric, trials: Sequence[float], **labels: str) -> Estimate:
    """Return the median of trials that are shares, from 0 to 1 inclusive, with its interval.

    Shares near 0 or 1 are skewed, so the interval is the hull of two. One is Student's t on the logits or, if a share
    is 0 or 1, Student's t on the shares themselves, clipped to 0 and 1. The other is for the mean of a gamma
    distribution with the trials' variance, fitted to the distance from the nearer end.
    Coverage with shares from Beta(0.5, 20): 94 % for mean and median, at 3 to 10 trials. Far from the ends the interval
    is Student's.

    Raises:
        ValueError: there is no trial, a value is not a share, or a label is missing or unknown.
    """
    _require(metric, trials, labels, lambda value: 0 <= value <= 1, "from 0 to 1")
    middle = median(trials)
    clipped = estimate_part(metric, trials, middle=middle, **labels)
    if clipped.low is None or clipped.high is None:
        return clipped
    if min(trials) > 0 and max(trials) < 1:
        # The interval's ends on the logits, transformed back by the logistic function (1 + tanh(x / 2)) / 2.
        logits = [math.log(share / (1 - share)) for share in trials]
        centre, half_width = fmean(logits), _half_width(logits)
        ends = [(1 + math.tanh(end / 2)) / 2 for end in (centre - half_width, centre + half_width)]
    else:
        ends = [max(0.0, clipped.low), min(1.0, clipped.high)]
    ends += [middle, *_gamma_ends(trials), *ordered_ends(trials)]
    return replace(clipped, low=min(ends), high=max(ends))


def _gamma_ends(shares: Sequence[float]) -> list[float]:
    """Return the interval of the shares' mean, with a gamma distributed distance from the nearer of 0 and 1.

    The mean of n draws is the distribution's mean times a gamma variable with shape n mean^2 / variance and mean 1, so
    the interval's ends are the sample mean divided by that variable's quantiles.
    """
    from scipy.special import gammaincinv

    near_1 = fmean(shares) > 0.5
    distance = 1 - fmean(shares) if near_1 else fmean(shares)
    if not variance(shares) > 0:  # The squares of very small differences underflow to 0.
        return []
    shape = len(shares) * distance**2 / variance(shares)
    quantiles = [float(gammaincinv(shape, end)) for end in ((1 + CONFIDENCE) / 2, (1 - CONFIDENCE) / 2)]
    ends = [min(1.0, distance * shape / quantile) for quantile in quantiles]
    return [1 - end for end in ends] if near_1 else ends


def estimate_part(metric: Metric, trials: Sequence[float], *, middle: float, **labels: str) -> Estimate:
    """Return the estimate of a part of a sum, of either sign, with Student's t interval on the values themselves.

    middle: replaces the median, so that parts computed from medians add up to them. The interval is widened to contain
    it, and the ordered trials that contain the median.

    Raises:
        ValueError: there is no trial, a value is not finite, or a label is missing or unknown.
    """
    _require(metric, trials, labels, math.isfinite, "finite")
    _require(metric, [middle], labels, math.isfinite, "finite")
    low = high = None
    if _why_no_interval(trials) is None:
        half_width = _half_width(trials)
        ends = (fmean(trials) - half_width, fmean(trials) + half_width, middle, *ordered_ends(trials))
        low, high = min(ends), max(ends)
    return Estimate(metric=metric.name, labels=labels, median=middle, low=low, high=high, trials=tuple(trials))


def ratio(numerator: Estimate, denominator: Estimate) -> EstimatedRatio:
    """Return the numerator's median divided by the denominator's, with its interval.

    If the trials of one side are equal, all noise comes from the other; if both sides have equal trials, there is no
    interval, for the reason that `estimate` gives.
    """
    value = numerator.median / denominator.median
    low = high = None
    equal = all(min(side.trials) == max(side.trials) for side in (numerator, denominator))
    if not equal and min(len(numerator.trials), len(denominator.trials)) > 1:
        below, above = ([math.log(trial) for trial in side.trials] for side in (denominator, numerator))
        difference = in_groups(below, above, slower=_SLOWER.get(numerator.metric, 0))
        low, high = min(math.exp(difference.low), value), max(math.exp(difference.high), value)
    return EstimatedRatio(
        value=value,
        low=low,
        high=high,
        numerator_trials=len(numerator.trials),
        denominator_trials=len(denominator.trials),
    )


def _require(
    metric: Metric,
    trials: Sequence[float],
    labels: dict[str, str],
    is_good: Callable[[float], bool],
    allowed: str,
) -> None:
    """Check the trials' values and the labels."""
    if not trials:
        raise ValueError(f"{metric.name}: there is no trial to estimate from; give one value for each trial")
    for value in trials:
        metric.at(value, **labels)  # Refuses wrong labels.
        if not is_good(value):
            raise ValueError(f"{metric.name}: a trial's value is {value}; it must be {allowed}")


def spread(steps: Sequence[float]) -> float:
    """Return the median absolute deviation of the steps from their median, divided by that median.

    It is not scaled to a normal distribution's standard deviation: half the steps are nearer to the median than it.

    Raises:
        ValueError: there is no step, or the median is not positive.
    """
    middle = median(steps) if steps else 0.0
    if not middle > 0:
        raise ValueError(f"the spread of {len(steps)} steps with median {middle} is not defined; give measured times")
    return median(abs(step - middle) for step in steps) / middle


def _why_no_interval(trials: Sequence[float]) -> str | None:
    if len(trials) == 1:
        return "one trial has no interval"
    return _EQUAL_TRIALS if min(trials) == max(trials) else None


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the values' mean by Student's t; None for one value, or if all values are equal."""
    if _why_no_interval(values) is not None:
        return None
    return fmean(values) - _half_width(values), fmean(values) + _half_width(values)


def _half_width(values: Sequence[float]) -> float:
    """Return half the width of Student's t interval of the mean."""
    from scipy.special import stdtrit  # Imported here: commands that only read estimates need no scipy.

    quantile = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    return quantile * math.sqrt(variance(values) / len(values))
