"""Fits scaling laws to a curve (Amdahl's, Gustafson's and the Universal Scalability Law), and derives their ceilings.

X is the throughput on N ranks, X1 a scale that is fitted with the other parameters:

    amdahl     X = X1 N / (1 + s (N - 1))                        s: serial fraction of the work of one rank; strong
    gustafson  X = X1 (N - s (N - 1))                            s: serial fraction of each rank's time; weak
    usl        X = X1 N / (1 + sigma (N - 1) + kappa N (N - 1))  sigma: contention, kappa: coherency; both

The fit is by least squares on the logarithms, because noise of times is multiplicative; X1 is linear there and is
solved for. Each point counts once, with the mean of its trials: the trials share the point's own conditions (placement,
memory layout, a neighbour, effects that the law leaves out), so more trials do not bring the point nearer to the law.

A point's mean deviates from the law by a deviation between points and by that of its trials. A few points can neither
exclude the deviation between points nor measure it well. So it has a distribution: the one that the residuals of the
law and the spread of the trials allow, under a prior (`_BETWEEN_POINTS`).

Intervals are by profile likelihood: they contain the values at which the squared residuals, with all other parameters
at their best, exceed the minimum by less than the square of the distance that contains 95 % under that distribution. A
parameter may lie on its bound, which the interval then contains. A bootstrap over trials would not work: with three
trials it has two thirds of their variance, and on a bound it is inconsistent (Andrews 2000).

Sources: Amdahl 1967; Gustafson 1988; Gunther 1993, and Guerrilla Capacity Planning, 2007, chapter 4; Gelman 2006, Prior
Distributions for Variance Parameters in Hierarchical Models (the half-Cauchy prior, for few groups).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bench.results.efficiency import Scaling
from bench.results.two_sides import CONFIDENCE

Law = Literal["amdahl", "gustafson", "usl"]
LAWS: dict[Scaling, tuple[Law, ...]] = {"strong": ("amdahl", "usl"), "weak": ("gustafson", "usl")}
"""Amdahl's law is for constant work, Gustafson's for work that grows with the ranks."""
PARAMETERS: dict[Law, tuple[str, ...]] = {
    "amdahl": ("serial_fraction",),
    "gustafson": ("serial_fraction",),
    "usl": ("contention", "coherency"),
}
"""Each from 0 to 1."""
MOST_MISFIT_P_VALUE = 0.05
"""Below it, a note says that the law misses the points; no interval depends on it."""
_BETWEEN_POINTS = 0.03
"""Scale, and median, of the half-Cauchy prior of the deviation between points: about the error of the laws on real
curves, and several times the 1 % by which sessions on one machine differ. Its heavy tail lets the data decide if points
lie further from the law."""

Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSize:
    """One point of a curve. throughputs: of each trial, in a unit common to all points."""

    ranks: int
    throughputs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """A fitted or derived value with its 95 % interval. None: absent for `reason`, or without a bound on that side."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    @property
    def is_unsure(self) -> bool:
        """Whether the interval is wider than the value."""
        if self.value is None or self.low is None or self.high is None:
            return False
        return self.high - self.low > self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFit:
    """A law fitted to a curve.

    parameters: by the names of `PARAMETERS`.
    peak_ranks: where throughput is highest; None for a law without a peak.
    most_speed_up: the highest throughput that the law allows, divided by that on `base_ranks` ranks.
    miss_ratio: the largest deviation of a point's geometric mean from the law.
    notes: on the intervals, for the reader.
    """

    law: Law
    base_ranks: int
    parameters: dict[str, Bounded]
    peak_ranks: Bounded | None
    most_speed_up: Bounded
    miss_ratio: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoScalingFit:
    """A law that cannot be fitted to these points."""

    law: Law
    reason: str


def fit(law: Law, points: Sequence[WorldSize], *, base_ranks: int | None = None) -> ScalingFit | NoScalingFit:
    """Fit the law to the points.

    base_ranks: the base of the speed-up; the fewest ranks by default.

    Raises:
        ValueError: two points have the same ranks, or a throughput is not positive and finite.
    """
    ranks = [point.ranks for point in points]
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"two points have the same ranks: {ranks}; give each number of ranks once")
    if not all(0 < value < math.inf for point in points for value in point.throughputs):
        raise ValueError("a throughput is not positive and finite")
    needed = len(PARAMETERS[law]) + 1
    if len(points) < needed:
        return NoScalingFit(
            law=law,
            reason=f"{needed} numbers of ranks are needed for its {needed} parameters, and there are {len(points)}",
        )
    data = _Data.of(points)
    best = _best(law, data)
    allowed = _allowed(law, data, best)
    base = min(ranks) if base_ranks is None else base_ranks
    inside = None if allowed.sum_squares is None else _region(law, data, best, allowed.sum_squares)
    parameters = {
        name: Bounded(value=float(best[place]), reason=allowed.reason)
        if inside is None
        else Bounded(value=float(best[place]), low=float(inside[:, place].min()), high=float(inside[:, place].max()))
        for place, name in enumerate(PARAMETERS[law])
    }
    most_ranks = max(ranks)
    return ScalingFit(
        law=law,
        base_ranks=base,
        parameters=parameters,
        peak_ranks=_peak(best, inside, most_ranks, allowed.reason) if law == "usl" else None,
        most_speed_up=_ceiling(law, best, inside, base, most_ranks, allowed.reason),
        miss_ratio=float(np.exp(np.abs(_residuals(law, data, best))).max() - 1),
        notes=allowed.notes,
    )


# The data and the laws, on logarithms


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    """ranks, trials, means: of each point: ranks, number of trials, and mean of the trials' log throughputs.

    noise: sum of the squared deviations of all trials from their point's mean.
    """

    ranks: Numbers
    trials: Numbers
    means: Numbers
    noise: float

    @classmethod
    def of(cls, points: Sequence[WorldSize]) -> _Data:
        logarithms = [np.log(point.throughputs) for point in points]
        return cls(
            ranks=np.array([point.ranks for point in points], dtype=np.float64),
            trials=np.array([len(of_point) for of_point in logarithms], dtype=np.float64),
            means=np.array([of_point.mean() for of_point in logarithms]),
            noise=float(sum(((of_point - of_point.mean()) ** 2).sum() for of_point in logarithms)),
        )


def _log_throughput(law: Law, parameters: Numbers, ranks: Numbers) -> Numbers:
    """Return log X / X1. parameters: (..., parameters of the law). Returns (..., ranks)."""
    first = parameters[..., :1]
    if law == "gustafson":
        return np.asarray(np.log(ranks - first * (ranks - 1)))
    delay = 1 + first * (ranks - 1)
    if law == "usl":
        delay = delay + parameters[..., 1:] * ranks * (ranks - 1)
    return np.asarray(np.log(ranks) - np.log(delay))


def _residuals(law: Law, data: _Data, parameters: Numbers) -> Numbers:
    """Return the distances of the points' means above the law, with the best X1."""
    above = data.means - _log_throughput(law, parameters, data.ranks)
    return np.asarray(above - above.mean(axis=-1, keepdims=True))


def _sum_squares(law: Law, data: _Data, parameters: Numbers) -> Numbers:
    """Return the sum of the squared residuals of the points' means."""
    return np.asarray((_residuals(law, data, parameters) ** 2).sum(axis=-1))


def _best(law: Law, data: _Data) -> Numbers:
    """Return the least-squares parameters; two parameters have several starts, because one may stop on its bound."""
    from scipy.optimize import least_squares  # Imported here: commands that fit nothing need no scipy.

    count = len(PARAMETERS[law])
    most_ranks = float(data.ranks.max())

    def misses(parameters: Numbers) -> Numbers:
        return _residuals(law, data, parameters)

    optima = [
        least_squares(
            misses,
            [first, second / most_ranks][:count],
            bounds=([0.0] * count, [1.0] * count),
            x_scale=[1.0, 1 / most_ranks][:count],
            ftol=1e-14,
            xtol=1e-14,
            gtol=1e-14,
        )
        for first, second in ((0.01, 0.01), (0.3, 1e-4), (0.9, 0.5))[: 2 * count - 1]
    ]
    best = np.asarray(min(optima, key=lambda optimum: float(optimum.cost)).x)
    # The solver stops just inside the bounds: move to a bound if that is no worse.
    for place in range(count):
        for bound in (0.0, 1.0):
            at_bound = best.copy()
            at_bound[place] = bound
            if _sum_squares(law, data, at_bound) <= _sum_squares(law, data, best) + 1e-15 * (1 + data.noise):
                best = at_bound
    return best


# Intervals: the region of parameters that the points allow


@dataclass(frozen=True, slots=True, kw_only=True)
class _Allowed:
    """sum_squares: the largest within the intervals; None if there are no intervals, with the reason."""

    sum_squares: float | None
    reason: str | None = None
    notes: tuple[str, ...] = ()


def _allowed(law: Law, data: _Data, best: Numbers) -> _Allowed:
    from scipy.special import fdtrc

    missed = float(_sum_squares(law, data, best))
    count, trials = data.ranks.size, int(data.trials.sum())
    needed = len(PARAMETERS[law]) + 1
    # Degrees of freedom of the law's residuals, and of the trials around their points.
    of_misses, of_noise = count - needed, trials - count
    if of_misses == 0:
        return _Allowed(
            sum_squares=None,
            reason=f"a law with {needed} parameters fits {count} numbers of ranks exactly, so nothing shows how far"
            " points lie off it; measure one more",
        )
    if missed + data.noise <= 1e-20 * trials:
        return _Allowed(sum_squares=None, reason="equal trials have no interval: their noise is below the resolution")
    notes = []
    if of_noise and data.noise > 0:
        # Compare the residuals of points with those that the trials alone would cause.
        of_trials = data.noise / of_noise * float((1 / data.trials).mean())
        p_value = float(fdtrc(of_misses, of_noise, missed / of_misses / of_trials))
        if p_value < MOST_MISFIT_P_VALUE:
            notes.append(f"the law misses the points by more than trials differ from each other (p {p_value:.2g})")
    distance = _distance(missed, of_misses, data.noise, of_noise, float((1 / data.trials).mean()))
    return _Allowed(sum_squares=missed + distance**2, notes=tuple(notes))


def _distance(missed: float, of_misses: int, noise: float, of_noise: int, per_point: float) -> float:
    """Return the distance from the law that contains 95 % of a point's possible means: t, over unknown deviations.

    missed, of_misses: squared residuals of the law and their degrees of freedom. noise, of_noise: those of trials
    around their points. per_point: the mean over points of 1 / trials.

    With d the deviation between points and s that of trials, a mean has variance v = d^2 + s^2 per_point. Residuals
    have the density v^(-k/2) exp(-missed / 2v) for k degrees of freedom, and s^2 is noise divided by a chi-squared
    variable. The distance is normal with variance v, mixed over all d and s with these densities and d's prior as
    weights.
    """
    from scipy.optimize import brentq
    from scipy.special import chdtri, ndtr, stdtrit

    if not of_noise:  # Without repeated trials, Student's t of the residuals alone.
        return float(stdtrit(of_misses, (1 + CONFIDENCE) / 2)) * math.sqrt(missed / of_misses)
    chances = (np.arange(_CHANCES) + 0.5) / _CHANCES
    of_trials = noise / chdtri(of_noise, chances) * per_point  # Equally likely values of s^2 per_point.
    between = np.geomspace(1e-5, 10.0, _DEVIATIONS)  # d, equally spaced on logarithms, so that a step is d wide.
    variances = between[:, None] ** 2 + of_trials
    weights = between[:, None] / (1 + (between[:, None] / _BETWEEN_POINTS) ** 2)
    logarithms = np.log(weights) - of_misses / 2 * np.log(variances) - missed / 2 / variances
    weights = np.exp(logarithms - logarithms.max())
    weights /= weights.sum()
    deviations = np.sqrt(variances)

    def outside(distance: float) -> float:
        return float((weights * 2 * ndtr(-distance / deviations)).sum()) - (1 - CONFIDENCE)

    return float(brentq(outside, 0.0, 100 * float(deviations.max())))


_CHANCES, _DEVIATIONS = 25, 120
_SECTIONS = 101
_HALVINGS = 44


def _region(law: Law, data: _Data, best: Numbers, allowed: float) -> Numbers:
    """Return parameters on the edge of the allowed region: (points, parameters).

    The extremes of any function over this region are the ends of its interval by profile likelihood. With two
    parameters, the region is cut at many values of the first; each cut is an interval of the second.
    """

    def squares(first: Numbers, second: Numbers) -> Numbers:
        return _sum_squares(law, data, np.stack([first, second][: best.size], axis=-1))

    def lowest(first: Numbers) -> Numbers:
        """Return the best second parameter for each value of the first."""
        return _golden(lambda second: squares(first, second), first.size) if best.size == 2 else np.zeros(first.size)

    low, high = (
        _end(lambda first: squares(first, lowest(first)) <= allowed, float(best[0]), bound) for bound in (0.0, 1.0)
    )
    first = np.unique([*np.linspace(low, high, _SECTIONS), float(best[0])])
    if best.size == 1:
        return np.stack([first], axis=-1)
    middle = lowest(first)
    edges = [
        _halve(lambda second: squares(first, second) <= allowed, middle, np.full(first.size, bound))
        for bound in (0.0, 1.0)
    ]
    return np.concatenate([best[None, :], *(np.stack([first, edge], axis=-1) for edge in edges)])


def _end(is_inside: Callable[[Numbers], NDArray[np.bool_]], inside: float, bound: float) -> float:
    """Return how far towards the bound values stay inside, by repeated division of the last interval."""
    outside = bound
    for _ in range(5):
        values = np.linspace(inside, outside, 65)
        outside_indices = np.flatnonzero(~is_inside(values)[1:]) + 1
        if outside_indices.size == 0:
            return outside
        inside, outside = float(values[outside_indices[0] - 1]), float(values[outside_indices[0]])
    return inside


def _halve(is_inside: Callable[[Numbers], NDArray[np.bool_]], inside: Numbers, bound: Numbers) -> Numbers:
    """Return how far from each value towards its bound values stay inside, by bisection of all together."""
    near, far = inside.copy(), bound.copy()
    whole = is_inside(bound)
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        stays = is_inside(middle)
        near, far = np.where(stays, middle, near), np.where(stays, far, middle)
    return np.where(whole, bound, near)


def _golden(squares: Callable[[Numbers], Numbers], count: int) -> Numbers:
    """Return the minimum of each of `count` functions on 0 to 1, by golden section of all together."""
    share = (math.sqrt(5) - 1) / 2
    low, high = np.zeros(count), np.ones(count)
    left, right = 1 - share * high, share * high
    at_left, at_right = squares(left), squares(right)
    for _ in range(_HALVINGS):
        # Drop the part beyond the worse of the two points; the better point takes the place of the other.
        is_left = at_left <= at_right
        low, high = np.where(is_left, low, left), np.where(is_left, right, high)
        stays, at_stays = np.where(is_left, left, right), np.where(is_left, at_left, at_right)
        new = np.where(is_left, high - share * (high - low), low + share * (high - low))
        at_new = squares(new)
        left, right = np.where(is_left, new, stays), np.where(is_left, stays, new)
        at_left, at_right = np.where(is_left, at_new, at_stays), np.where(is_left, at_stays, at_new)
    middle = (low + high) / 2
    zero = np.zeros(count)
    return np.where(squares(zero) <= squares(middle), zero, middle)


# The ceiling


def _peak(best: Numbers, inside: Numbers | None, most_ranks: int, reason: str | None) -> Bounded:
    """Return N* = sqrt((1 - sigma) / kappa), at least 1, at which the USL's throughput is highest."""
    value = float(_peak_ranks(best))
    if inside is None:
        if math.isinf(value):
            return Bounded(value=None, reason=f"no peak up to {most_ranks} ranks: kappa is 0")
        if value > most_ranks:  # Beyond the points, a value without interval would be taken for a prediction.
            return Bounded(value=None, reason=f"no peak up to {most_ranks} ranks: its place is unsure: {reason}")
        return Bounded(value=value, reason=reason)
    peak_ranks = _peak_ranks(inside)
    low, high = min(float(peak_ranks.min()), value), max(float(peak_ranks.max()), value)
    if math.isinf(high):
        why = f"no peak up to {most_ranks} ranks: kappa's interval includes 0"
        return Bounded(value=None, low=None if math.isinf(low) else low, reason=why)
    return Bounded(value=value, low=low, high=high)


def _peak_ranks(parameters: Numbers) -> Numbers:
    sigma, kappa = parameters[..., 0], parameters[..., 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        peaks = np.where(kappa > 0, np.sqrt((1 - sigma) / kappa), np.inf)
    return np.maximum(peaks, 1.0)


def _ceiling(
    law: Law, best: Numbers, inside: Numbers | None, base: int, most_ranks: int, reason: str | None
) -> Bounded:
    """Return the highest throughput that the law allows, divided by that on the base's ranks."""
    if law == "gustafson":
        return Bounded(value=None, reason="the law has no ceiling: each further rank adds as much as the last")
    value = float(_most_speed_up(law, best, base))
    what = "the serial fraction" if law == "amdahl" else "sigma and kappa"
    if inside is None:
        if math.isinf(value):
            return Bounded(value=None, reason=f"no ceiling up to {most_ranks} ranks: {what} is 0")
        if law == "usl" and float(_peak_ranks(best)) > most_ranks:
            return Bounded(value=None, reason=f"no ceiling up to {most_ranks} ranks: {reason}")
        return Bounded(value=value, reason=reason)
    speed_ups = _most_speed_up(law, inside, base)
    low, high = min(float(speed_ups.min()), value), max(float(speed_ups.max()), value)
    if math.isinf(high):
        why = f"no ceiling up to {most_ranks} ranks: the interval of {what} includes 0"
        return Bounded(value=None, low=None if math.isinf(low) else low, reason=why)
    return Bounded(value=value, low=low, high=high)


def _most_speed_up(law: Law, parameters: Numbers, base: int) -> Numbers:
    """Return the highest throughput divided by that on the base's ranks; infinite if the law has no ceiling.

    For Amdahl's law, and the USL with kappa 0, X / X1 tends to 1 / sigma.
    """
    sigma = parameters[..., 0]
    with np.errstate(divide="ignore"):
        highest = -np.log(sigma)
    if law == "usl":
        peak = _peak_ranks(parameters)
        has_peak = np.isfinite(peak)
        at_peak = np.where(has_peak, peak, 1.0)
        delay = 1 + sigma * (at_peak - 1) + parameters[..., 1] * at_peak * (at_peak - 1)
        highest = np.where(has_peak, np.log(at_peak) - np.log(delay), highest)
    return np.asarray(np.exp(highest - _log_throughput(law, parameters, np.array([float(base)]))[..., 0]))
