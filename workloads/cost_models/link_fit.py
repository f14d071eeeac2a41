"""Fit of a link's latency and bandwidth, with intervals, to collectives timed at several sizes.

The model is T = latency x messages + wire_bytes / bandwidth, with the messages and bytes of `communication`.
Source: Hockney 1994, The communication challenge for MPP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from workloads.cost_models.communication import Link

CONFIDENCE = 0.95
LEAST_SIZES = 3
RESOLVED_HALF_WIDTHS = 2.0
"""A slope counts as resolved if it is more than this many half-widths of its interval above 0.

The interval is the one that independent points would give. With 1 instead of 2, every 40th sweep of pure latency would
pass as a sweep that resolves a bandwidth.
"""
ROUNDS = 20
SAME_SLOPE = 1e-9
"""Squared sine of the angle between the columns of messages and of bytes, below which rounding decides the fit."""


class NoLinkFit(ValueError):
    """The sweep does not determine latency and bandwidth; the message says why, and what to measure instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSize:
    """One timed size of the sweep.

    messages, wire_bytes: of the timed call, from `communication.wire_messages` and `communication.wire_bytes`.

    Raises:
        ValueError: nothing was sent, or in no time.
    """

    messages: int
    wire_bytes: int
    elapsed_s: float

    def __post_init__(self) -> None:
        if self.messages < 1 or self.wire_bytes < 1 or not 0 < self.elapsed_s < math.inf:
            raise ValueError(
                f"{self.wire_bytes} bytes in {self.messages} messages in {self.elapsed_s:g} s are not a point of"
                " a sweep;"
                " time calls of at least 2 ranks and 1 byte"
            )

    @property
    def message_bytes(self) -> float:
        """Mean size of the consecutive messages; its spread separates latency from bandwidth."""
        return self.wire_bytes / self.messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its 95 % interval.

    low, high: both None for a single trial, or where the trials are equal to the last digit.
    trials: value of each trial by itself, in order.
    """

    value: float
    low: float | None
    high: float | None
    trials: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """A link fitted to a sweep.

    latency_s: low is 0 where the trials do not resolve latency; all that is known then is that it is below high. A
    trial's value is 0 where it comes out negative.
    largest_error_ratio: over all points, the largest deviation of the fitted time from the measured, as a share of the
    measured. Where it is much above the noise of the timing, no single latency and bandwidth fit all sizes.
    """

    latency_s: Interval
    bandwidth_bytes_per_second: Interval
    points: int
    largest_error_ratio: float

    def link(self) -> Link:
        """Return the link of the fitted values, without their intervals."""
        return Link(
            bandwidth_bytes_per_second=self.bandwidth_bytes_per_second.value,
            latency_s=self.latency_s.value,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """T = per_message_s x messages + per_byte_s x bytes.

    per_message_half_width_s, per_byte_half_width_s: half-widths of the intervals, if the points were independent.
    """

    per_message_s: float
    per_byte_s: float
    per_message_half_width_s: float
    per_byte_half_width_s: float

    def time_s(self, point: TimedSize) -> float:
        return self.per_message_s * point.messages + self.per_byte_s * point.wire_bytes


def fit(trials: Sequence[Sequence[TimedSize]]) -> LinkFit:
    """Fit one line to the points of all trials, weighting small and large messages alike.

    Least squares on relative errors: each point weighs 1 / T^2, where T is at first its measured time and then, round
    by round, its fitted one, because weights from noisy times favour points that happened to be short. The points of a
    trial share its processes and disturbances, so an interval is Student's t over the lines of the trials, each fitted
    with the weights of the line through all points. It is taken on logarithms, as times are skewed to one side, except
    for a latency that may be 0. Whether the sweep determines the link at all is decided by the points: one for each
    size (the median of a trial, not its single calls). Where latency comes out below 0 by no more than noise, it is 0,
    and bandwidth is fitted alone. No span of sizes is required: the residuals decide whether a sweep is long enough.

    Raises:
        NoLinkFit: there are fewer than 3 sizes of messages in a trial, or all are nearly equal; latency hides the
            bandwidth, whose slope is less than 4 times its uncertainty, or which some trial does not determine; or
            small messages are faster than no latency at all allows.
    """
    points = [point for trial in trials for point in trial]
    sizes = sorted({point.message_bytes for point in points})
    fewest = min((len({point.message_bytes for point in trial}) for trial in trials), default=0)
    if fewest < LEAST_SIZES:
        raise NoLinkFit(f"{len(points)} points have {fewest} sizes of messages; measure {LEAST_SIZES} sizes or more")
    line = _fit_reweighted(points, sizes)
    of_trials = [_fit_line(trial, [line.time_s(point) for point in trial], sizes) for trial in trials]
    if (
        not line.per_byte_s > RESOLVED_HALF_WIDTHS * line.per_byte_half_width_s
        or min(line.per_byte_s for line in of_trials) <= 0
    ):
        raise NoLinkFit(_unresolved(line, points, sizes))
    if line.per_message_s < -RESOLVED_HALF_WIDTHS * line.per_message_half_width_s:
        raise NoLinkFit(_below_0(line, sizes))
    return _fit_with_intervals(line, of_trials, points)


def _fit_with_intervals(line: _Line, of_trials: Sequence[_Line], points: Sequence[TimedSize]) -> LinkFit:
    """Return the fit of a line within its limits, with intervals from the lines of its trials."""
    per_message_s, per_byte_s = line.per_message_s, line.per_byte_s
    if per_message_s < 0:
        per_message_s, per_byte_s = 0.0, fmean(point.elapsed_s / point.wire_bytes for point in points)
    latency_s = _interval_over_trials(
        [line.per_message_s for line in of_trials],
        per_message_s,
        skewed=per_message_s > RESOLVED_HALF_WIDTHS * line.per_message_half_width_s,
    )
    slope = _interval_over_trials([line.per_byte_s for line in of_trials], per_byte_s, skewed=True)
    return LinkFit(
        latency_s=Interval(
            value=per_message_s,
            low=latency_s and max(0.0, latency_s[0]),
            high=latency_s and latency_s[1],
            trials=tuple(max(0.0, line.per_message_s) for line in of_trials),
        ),
        bandwidth_bytes_per_second=Interval(
            value=1 / per_byte_s,
            low=slope and 1 / slope[1],
            high=slope and 1 / slope[0],
            trials=tuple(1 / line.per_byte_s for line in of_trials),
        ),
        points=len(points),
        largest_error_ratio=max(
            abs((per_message_s * point.messages + per_byte_s * point.wire_bytes) / point.elapsed_s - 1)
            for point in points
        ),
    )


def _interval_over_trials(values: Sequence[float], value: float, *, skewed: bool) -> tuple[float, float] | None:
    """Return Student's t interval over the trials' values, widened to contain `value`; None if they are equal.

    skewed: take it on logarithms, if all values are positive.
    """
    from scipy.special import stdtrit  # Imported here: predicting alone needs no scipy.

    if min(values) == max(values):
        return None
    skewed = skewed and min(values) > 0
    scaled = [math.log(value) for value in values] if skewed else values
    half_width = float(stdtrit(len(scaled) - 1, (1 + CONFIDENCE) / 2)) * math.sqrt(variance(scaled) / len(scaled))
    low, high = fmean(scaled) - half_width, fmean(scaled) + half_width
    if skewed:
        low, high = math.exp(low), math.exp(high)
    return min(low, value), max(high, value)


def _fit_reweighted(points: Sequence[TimedSize], sizes: Sequence[float]) -> _Line:
    """Fit the line by iterative reweighting: the fitted times of each round are the weights of the next."""
    times_s = [point.elapsed_s for point in points]
    for _ in range(ROUNDS):
        line = _fit_line(points, times_s, sizes)
        fitted_s = [line.time_s(point) for point in points]
        if min(fitted_s) <= 0:
            raise NoLinkFit(_unresolved(line, points, sizes) if line.per_byte_s < 0 else _below_0(line, sizes))
        change_ratio = max(abs(new / old - 1) for new, old in zip(fitted_s, times_s, strict=True))
        times_s = fitted_s
        if change_ratio < 1e-9:
            break
    return line


def _fit_line(points: Sequence[TimedSize], times_s: Sequence[float], sizes: Sequence[float]) -> _Line:
    """Fit least squares with each point divided by its time, by the normal equations of two unknowns."""
    from scipy.special import stdtrit  # Imported here: predicting alone needs no scipy.

    rows = [
        (point.messages / time_s, point.wire_bytes / time_s, point.elapsed_s / time_s)
        for point, time_s in zip(points, times_s, strict=True)
    ]
    # Normal equations: [mm mb; mb bb] [per_message_s; per_byte_s] = [m1; b1], with sums over the weighted rows.
    messages_square = sum(messages**2 for messages, _, _ in rows)
    bytes_square = sum(size**2 for _, size, _ in rows)
    product = sum(messages * size for messages, size, _ in rows)
    determinant = messages_square * bytes_square - product**2
    if determinant < SAME_SLOPE * messages_square * bytes_square:
        raise NoLinkFit(
            f"messages of {_span(sizes)} are nearly of one size; measure sizes that span a factor of 16 or more"
        )
    messages_target = sum(messages * target for messages, _, target in rows)
    bytes_target = sum(size * target for _, size, target in rows)
    per_message_s = (bytes_square * messages_target - product * bytes_target) / determinant
    per_byte_s = (messages_square * bytes_target - product * messages_target) / determinant
    # Half-widths: t quantile x sqrt(residual variance x diagonal of the inverse matrix).
    residuals = [target - per_message_s * messages - per_byte_s * size for messages, size, target in rows]
    residual_variance = sum(residual**2 for residual in residuals) / (len(rows) - 2)
    quantile = float(stdtrit(len(rows) - 2, (1 + CONFIDENCE) / 2))
    return _Line(
        per_message_s=per_message_s,
        per_byte_s=per_byte_s,
        per_message_half_width_s=quantile * math.sqrt(residual_variance * bytes_square / determinant),
        per_byte_half_width_s=quantile * math.sqrt(residual_variance * messages_square / determinant),
    )


def _unresolved(line: _Line, points: Sequence[TimedSize], sizes: Sequence[float]) -> str:
    """Return why the bandwidth is not resolved: times scatter too much, or latency dominates the largest message."""
    largest = max(points, key=lambda point: point.message_bytes)
    if line.per_byte_s * largest.wire_bytes > largest.elapsed_s / 2:
        return (
            f"messages of {_span(sizes)} take times that scatter too much to find the bandwidth within a factor of 3;"
            " measure more trials, or on a quieter machine"
        )
    return (
        f"messages of {_span(sizes)} take times that grow with size by little more than their noise: latency hides the"
        " bandwidth; measure messages 16 times as large, or more trials"
    )


def _below_0(line: _Line, sizes: Sequence[float]) -> str:
    return (
        f"latency comes out as {line.per_message_s:.2g} s for messages of {_span(sizes)}: the smallest are faster than"
        " the bandwidth of the largest allows (a burst that a shaper lets pass, or another protocol); leave out the"
        " smallest sizes"
    )


def _span(sizes: Sequence[float]) -> str:
    return f"{sizes[0]:,.0f} to {sizes[-1]:,.0f} bytes"
