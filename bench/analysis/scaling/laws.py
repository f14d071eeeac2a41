"""Laws of scaling fitted to a curve: Amdahl's, Gustafson's and the Universal Scalability Law, and their ceilings.

X is the throughput on N ranks, X1 a scale that is fitted with the other parameters:

    amdahl     X = X1 N / (1 + s (N - 1))                        s: serial fraction of the work of one rank; strong
    gustafson  X = X1 (N - s (N - 1))                            s: serial fraction of each rank's time; weak
    usl        X = X1 N / (1 + sigma (N - 1) + kappa N (N - 1))  sigma: contention, kappa: coherency; both

Least squares on the logarithms, as noise of times is multiplicative. X1 is linear there, so that it is solved for.

Intervals are by profile likelihood: the values at which the squared residuals, with all other parameters at their
best, exceed the least by less than F's 95 % quantile allows. A parameter may lie on its bound, which the interval then
holds. A bootstrap over trials would not do: of three trials it has two thirds of their variance, and on a bound it is
inconsistent (Andrews 2000). Where the law misses the points by more than trials of a point differ, points count in
place of trials.

Sources: Amdahl 1967; Gustafson 1988; Gunther 1993, and Guerrilla Capacity Planning, 2007, chapter 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bench.results.efficiency import Scaling
from bench.results.estimate import CONFIDENCE

Law = Literal["amdahl", "gustafson", "usl"]
LAWS: dict[Scaling, tuple[Law, ...]] = {"strong": ("amdahl", "usl"), "weak": ("gustafson", "usl")}
"""Amdahl's law is of work that stays, Gustafson's of work that grows with the ranks."""
PARAMETERS: dict[Law, tuple[str, ...]] = {
    "amdahl": ("serial_fraction",),
    "gustafson": ("serial_fraction",),
    "usl": ("contention", "coherency"),
}
"""Each from 0 to 1."""
MOST_MISFIT_P_VALUE = 0.05
"""Below it, the law is said to miss the points."""

Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSize:
    """One point of a curve. throughputs: of each trial, in any unit that all points share."""

    ranks: int
    throughputs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """A fitted or derived value with its 95 % interval. What is None is absent for `reason`, or has no bound there."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFit:
    """A law fitted to a curve.

    parameters: by the names of `PARAMETERS`.
    peak_ranks: where throughput is highest; None for a law without a peak.
    most_speed_up: the highest throughput that the law allows, divided by that on `base_ranks` ranks.
    miss_ratio: how far the points' geometric means lie from the law, the one that lies furthest.
    notes: what the reader of the intervals must know.
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
    """A law that these points cannot be fitted by."""

    law: Law
    reason: str


def fit(law: Law, points: Sequence[WorldSize], *, base_ranks: int | None = None) -> ScalingFit | NoScalingFit:
    """Fit the law to the points.

    base_ranks: what the speed-up is relative to; the fewest ranks by default.

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
    """ranks, trials, means: of each point, with the mean of its trials' log throughputs.

    noise: the squares of all trials' deviations from their point's mean, summed up.
    """

    ranks: Numbers
    trials: Numbers
    means: Numbers
    noise: float

    @classmethod
    def of(cls, points: Sequence[WorldSize]) -> _Data:
        """Return the data of these points."""
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
    """Return how far the points' means lie above the law, with the best X1."""
    above = data.means - _log_throughput(law, parameters, data.ranks)
    return np.asarray(above - (above @ data.trials / data.trials.sum())[..., None])


def _sum_squares(law: Law, data: _Data, parameters: Numbers) -> Numbers:
    """Return the squared residuals of the points' means, each as often as it has trials, summed up."""
    return np.asarray(_residuals(law, data, parameters) ** 2 @ data.trials)


def _best(law: Law, data: _Data) -> Numbers:
    """Return the parameters of least squares; of two parameters from several starts, as one may stop on its bound."""
    from scipy.optimize import least_squares  # Imported here: commands that fit nothing need no scipy.

    count = len(PARAMETERS[law])
    most_ranks = float(data.ranks.max())

    def weighted(parameters: Numbers) -> Numbers:
        return np.asarray(np.sqrt(data.trials) * _residuals(law, data, parameters))

    optima = [
        least_squares(
            weighted,
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
    # The solver stays inside of the bounds, by little: on the bound where that is no worse.
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
    """sum_squares: the most that a parameter within its interval has; None where there are no intervals: `reason`."""

    sum_squares: float | None
    reason: str | None = None
    notes: tuple[str, ...] = ()


def _allowed(law: Law, data: _Data, best: Numbers) -> _Allowed:
    from scipy.special import fdtrc, stdtrit

    missed = float(_sum_squares(law, data, best))
    count, trials = data.ranks.size, int(data.trials.sum())
    needed = len(PARAMETERS[law]) + 1
    notes = []
    # Degrees of freedom: of the law's misses, and of the trials around their points.
    of_misses, of_noise = count - needed, trials - count
    total, freedom = missed + data.noise, of_misses + of_noise
    if freedom == 0:
        return _Allowed(
            sum_squares=None,
            reason=f"{count} points of one trial fit any law of {needed} parameters; measure more trials",
        )
    if total <= 1e-20 * trials:
        return _Allowed(sum_squares=None, reason="equal trials have no interval: their noise is below the resolution")
    if of_misses == 0:
        notes.append(f"{count} numbers of ranks for {needed} parameters: they cannot show whether the law holds")
    elif of_noise and data.noise > 0:
        p_value = float(fdtrc(of_misses, of_noise, missed / of_misses / (data.noise / of_noise)))
        if p_value < MOST_MISFIT_P_VALUE:
            notes.append(
                f"the law misses the points by more than trials differ from each other (p {p_value:.2g}): its"
                " intervals count points,"
                " and not trials"
            )
            total, freedom = missed, of_misses
    quantile = float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    return _Allowed(sum_squares=missed + quantile**2 * total / freedom, notes=tuple(notes))


_SECTIONS = 101
_HALVINGS = 44


def _region(law: Law, data: _Data, best: Numbers, allowed: float) -> Numbers:
    """Return parameters on the edge of the region whose squares are allowed: (points, parameters).

    The extremes of anything over this region are the ends of its interval by profile likelihood. With two parameters
    the region is cut at many values of the first one; each cut is an interval of the second.
    """

    def squares(first: Numbers, second: Numbers) -> Numbers:
        return _sum_squares(law, data, np.stack([first, second][: best.size], axis=-1))

    def lowest(first: Numbers) -> Numbers:
        """Return the second parameter that is best beside each value of the first."""
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
    """Return how far towards the bound values stay inside; the stretch that holds the end is divided anew."""
    outside = bound
    for _ in range(5):
        values = np.linspace(inside, outside, 65)
        outside_indices = np.flatnonzero(~is_inside(values)[1:]) + 1
        if outside_indices.size == 0:
            return outside
        inside, outside = float(values[outside_indices[0] - 1]), float(values[outside_indices[0]])
    return inside


def _halve(is_inside: Callable[[Numbers], NDArray[np.bool_]], inside: Numbers, bound: Numbers) -> Numbers:
    """Return how far from each value towards its bound values stay inside, by bisection of all at once."""
    near, far = inside.copy(), bound.copy()
    whole = is_inside(bound)
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        stays = is_inside(middle)
        near, far = np.where(stays, middle, near), np.where(stays, far, middle)
    return np.where(whole, bound, near)


def _golden(squares: Callable[[Numbers], Numbers], count: int) -> Numbers:
    """Return where each of `count` functions on 0 to 1 is least, by golden section of all at once."""
    share = (math.sqrt(5) - 1) / 2
    low, high = np.zeros(count), np.ones(count)
    left, right = 1 - share * high, share * high
    at_left, at_right = squares(left), squares(right)
    for _ in range(_HALVINGS):
        # The part beyond the worse of the two falls away; the better one stays, and stands where the other stood.
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


# Where the ceiling lies


def _peak(best: Numbers, inside: Numbers | None, most_ranks: int, reason: str | None) -> Bounded:
    """Return N* = sqrt((1 - sigma) / kappa), at least 1, at which the USL's throughput is highest."""
    value = float(_peak_ranks(best))
    if inside is None:
        if math.isinf(value):
            return Bounded(value=None, reason=f"no peak up to {most_ranks} ranks: kappa is 0")
        return Bounded(value=value, reason=reason)
    peak_ranks = _peak_ranks(inside)
    low, high = min(float(peak_ranks.min()), value), max(float(peak_ranks.max()), value)
    if math.isinf(high):
        why = f"no peak up to {most_ranks} ranks: kappa's interval holds 0"
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
        return Bounded(value=value, reason=reason)
    speed_ups = _most_speed_up(law, inside, base)
    low, high = min(float(speed_ups.min()), value), max(float(speed_ups.max()), value)
    if math.isinf(high):
        why = f"no ceiling up to {most_ranks} ranks: the interval of {what} holds 0"
        return Bounded(value=None, low=None if math.isinf(low) else low, reason=why)
    return Bounded(value=value, low=low, high=high)


def _most_speed_up(law: Law, parameters: Numbers, base: int) -> Numbers:
    """Return the highest throughput divided by that on the base's ranks; infinite where the law has no ceiling.

    Amdahl's, and the USL's with kappa 0: X / X1 tends to 1 / sigma.
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
