"""Hypotheses about a series, weighed night by night: no change, or a change on one of the last nights.

Each hypothesis is weighed under several models of the noise, which differ in how much of a night's effect remains on
the next night. The probability of a change is the mean over the models, weighted by their probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.gate.detector.level_filter import (
    COVARIANCE,
    EFFECT,
    EFFECT_VARIANCE,
    GOOD,
    LEVEL,
    LEVEL_BEFORE,
    LEVEL_VARIANCE,
    MOMENTS,
    VARIANCE_BEFORE,
    Change,
    Filter,
    Filters,
    NightValue,
    first_filters,
    log_odds,
    move,
    see,
    with_change,
)
from bench.gate.detector.night import OUTLIER_SDS, SeriesNoise
from bench.gate.detector.settings import DetectorSettings


class Hypotheses(msgspec.Struct, array_like=True, frozen=True):
    """The filters after night `number`. onsets: onsets of the changes, in order.

    filters: an array (moment, model, 1 + changes) of 64-bit floats, little-endian, as bytes. Written as numbers it
    would be three times as long, and reading it would take as long as judging.
    """

    number: int
    onsets: tuple[int, ...]
    filters: bytes

    def array(self) -> Filters:
        return np.frombuffer(self.filters, dtype="<f8").reshape(MOMENTS, -1, 1 + len(self.onsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """All hypotheses after a night.

    changes: in order of onset; the rest of their probabilities to 1 is the probability of no change.
    unchanged: what is known under no change, as the mean over the models; before: the same, before the night's value.
    scores: under each model, standard deviations between the value and the prediction of no change. deviation: standard
        deviation of that difference over all models.
    night_value: mean and variance that all hypotheses together expected for the night.
    """

    hypotheses: Hypotheses
    changes: tuple[Change, ...]
    unchanged: Filter
    before: Filter
    scores: NDArray[np.float64]
    deviation: float
    night_value: tuple[float, float]

    def changes_to(self, direction: int, last_night: int) -> list[Change]:
        """Return the changes in this direction with an onset up to this night."""
        return [change for change in self.changes if change.onset <= last_night and change.change * direction > 0]


def weigh(
    hypotheses: Hypotheses,
    value: NightValue,
    noise: SeriesNoise,
    past_levels: Sequence[tuple[float, float]],
    settings: DetectorSettings,
) -> Weighed:
    """Update all hypotheses with a night, and add a new one: that the level changed on this night."""
    onsets = hypotheses.onsets
    filters = hypotheses.array()
    if len(onsets) >= settings.window_nights:
        remaining = settings.window_nights - 1
        onsets, filters = onsets[-remaining:], np.concatenate([filters[:, :, :1], filters[:, :, -remaining:]], axis=2)
    onsets = (*onsets, value.number)
    now = with_change(move(filters, value.number - hypotheses.number, noise, settings), settings)
    before = _mean(now[:, :, 0], value.number, noise)
    means = now[LEVEL] + value.share * now[EFFECT]
    variances = now[LEVEL_VARIANCE] + value.share * (2 * now[COVARIANCE] + value.share * now[EFFECT_VARIANCE])
    scores = (value.log_value - means[:, 0]) / np.sqrt(variances[:, 0] + value.variance)
    # A change on this night itself may be as large as an outlier.
    variances[:, -1] = variances[:, 0] + settings.outlier_sd**2
    see(now, value, noise, settings, has_onset=True)
    weights = _weights(now, noise, past_levels, settings)
    mean = float((weights * means).sum())
    spread = variances + (means - mean) ** 2
    spread[:, 0] += (1 - now[GOOD, :, 0]) * settings.outlier_sd**2
    return Weighed(
        hypotheses=Hypotheses(value.number, onsets, now.astype("<f8").tobytes()),
        changes=_changes(now, weights, onsets),
        unchanged=_mean(now[:, :, 0], value.number, noise),
        before=before,
        scores=scores,
        deviation=float(np.sqrt(before.predict(value.share)[1] + value.variance)),
        night_value=(mean, float((weights * spread).sum())),
    )


def changes_after(
    hypotheses: Hypotheses, noise: SeriesNoise, past_levels: Sequence[tuple[float, float]], settings: DetectorSettings
) -> tuple[Change, ...]:
    """Return the changes after the last night, as `weigh` returned them with it."""
    if not hypotheses.onsets:
        return ()
    filters = hypotheses.array()
    return _changes(filters, _weights(filters, noise, past_levels, settings), hypotheses.onsets)


def _weights(
    filters: Filters, noise: SeriesNoise, past_levels: Sequence[tuple[float, float]], settings: DetectorSettings
) -> NDArray[np.float64]:
    """Return the probability of each model and hypothesis; they sum to 1."""
    odds = log_odds(filters, past_levels, settings)
    # Probabilities from the odds against no change, whose own odds are 1; dividing by the largest prevents overflow.
    largest = np.maximum(odds.max(axis=1, keepdims=True), 0.0)
    weights = np.concatenate([np.exp(-largest), np.exp(odds - largest)], axis=1)
    weights *= (noise.weights / weights.sum(axis=1))[:, None]
    return weights


def begin(values: Sequence[NightValue], noise: SeriesNoise, settings: DetectorSettings) -> tuple[Filter, Hypotheses]:
    """Return the level shown by a regime's first nights, and the hypotheses after them.

    The level's prior is the median of the nights, with a standard deviation of three times theirs. The median of few
    nights is nearer than that, and a first night that is an outlier is still recognised.
    """
    spread = noise.night_variance + median(value.variance for value in values)
    middle = median(value.log_value for value in values)
    filters = first_filters(middle, 9 * spread, noise)
    hypotheses = Hypotheses(values[0].number, (), filters.astype("<f8").tobytes())
    for passed, value in enumerate(values):
        hypotheses = weigh(hypotheses, value, noise, (), settings).hypotheses
        # Before the first nights there is no regime from which they could have changed.
        if passed <= settings.hold_nights:
            hypotheses = _without_changes(hypotheses, 0)
    return _mean(hypotheses.array()[:, :, 0], hypotheses.number, noise), hypotheses


def since(hypotheses: Hypotheses, change: Change) -> Hypotheses:
    """Return the hypotheses for the regime that a confirmed change began."""
    return _without_changes(hypotheses, change.place)


def _without_changes(hypotheses: Hypotheses, place: int) -> Hypotheses:
    filters = hypotheses.array()[:, :, place : place + 1]
    return Hypotheses(hypotheses.number, (), filters.tobytes())


def _mean(filters: NDArray[np.float64], number: int, noise: SeriesNoise) -> Filter:
    """Return one hypothesis' moments over all models; filters: (moment, model)."""
    weights = noise.weights
    level, effect = float(weights @ filters[LEVEL]), float(weights @ filters[EFFECT])
    off_level, off_effect = filters[LEVEL] - level, filters[EFFECT] - effect
    return Filter(
        number,
        level,
        effect,
        float(weights @ (filters[LEVEL_VARIANCE] + off_level**2)),
        float(weights @ (filters[COVARIANCE] + off_level * off_effect)),
        float(weights @ (filters[EFFECT_VARIANCE] + off_effect**2)),
    )


def _changes(filters: Filters, weights: NDArray[np.float64], onsets: Sequence[int]) -> tuple[Change, ...]:
    """Return each change with its moments over the models; weights: (model, hypothesis), with a sum of 1."""
    weights = weights[:, 1:]
    probabilities = weights.sum(axis=0)
    shares = weights / np.maximum(probabilities, 1e-300)
    level, variance, level_before, variance_before = filters[
        [LEVEL, LEVEL_VARIANCE, LEVEL_BEFORE, VARIANCE_BEFORE], :, 1:
    ]
    change = level - level_before

    def mean_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = (shares * values).sum(axis=0)
        return result

    middle, middle_level, middle_before = mean_of(change), mean_of(level), mean_of(level_before)
    columns = (
        probabilities,
        middle,
        mean_of(variance + variance_before + (change - middle) ** 2),
        middle_level,
        mean_of(variance + (level - middle_level) ** 2),
        middle_before,
        mean_of(variance_before + (level_before - middle_before) ** 2),
    )
    return tuple(
        Change(
            place=place,
            onset=onset,
            probability=probability,
            change=size,
            change_variance=size_variance,
            level=own_level,
            level_variance=own_variance,
            level_before=before,
            variance_before=before_variance,
        )
        for place, (onset, probability, size, size_variance, own_level, own_variance, before, before_variance) in (
            enumerate(zip(onsets, *(column.tolist() for column in columns), strict=True), start=1)
        )
    )


def with_reruns(
    before: Filter, first: NightValue, again: NightValue, noise: SeriesNoise, settings: DetectorSettings
) -> tuple[NightValue, bool]:
    """Return the night's value with its reruns, and whether these confirm that it differs from the expectation.

    Reruns see the same level, but only part of the night's effect, plus a new effect of the same size. If night and
    reruns differ by more than these explain, something disturbed the night, and only the reruns give its value.
    Otherwise both count, with the weights that estimate a common change best (generalised least squares). Reruns agree
    if they alone show more than half of that change: they are then likelier with it than without.

    before: the filter on this night, before its value.
    """
    share = settings.rerun_correlation
    fresh = (1 - share * share) * noise.night_variance
    first_mean, first_variance = before.predict()
    again_mean, again_variance = before.predict(share)
    first_variance += first.variance
    again_variance += again.variance + fresh
    first_off, again_off = first.log_value - first_mean, again.log_value - again_mean
    # Covariance of the two: the level's error, and the part of the night's effect that remains during the reruns.
    shared_variance = before.level_variance + (1 + share) * before.covariance + share * before.effect_variance
    first_weight, again_weight = again_variance - shared_variance, first_variance - shared_variance
    weight = min(max(first_weight / (first_weight + again_weight), 0.0), 1.0)
    change = weight * first_off + (1 - weight) * again_off
    agree = again_off * change > 0 and abs(again_off) > abs(change) / 2
    if (first_off - again_off) ** 2 > OUTLIER_SDS**2 * (first_weight + again_weight):
        weight = 0.0
    value = NightValue(
        first.number,
        weight * first.log_value + (1 - weight) * again.log_value,
        weight**2 * first.variance + (1 - weight) ** 2 * (again.variance + fresh),
        weight + (1 - weight) * share,
    )
    return value, agree


def moved_mean(hypotheses: Hypotheses, number: int, noise: SeriesNoise, settings: DetectorSettings) -> Filter:
    """Return the expectation of no change for a later night, before its value, as the mean over the models."""
    moved = move(hypotheses.array()[:, :, :1], number - hypotheses.number, noise, settings)
    return _mean(moved[:, :, 0], number, noise)
