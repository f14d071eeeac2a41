"""Hypotheses of a series, weighed night by night: no change, or a change on one of the last nights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from statistics import median

from bench.gate.detector.level_filter import Candidate, Filter, NightValue, changed, log_odds, moved, see
from bench.gate.detector.night import OUTLIER_SDS, SeriesNoise
from bench.gate.detector.settings import DetectorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """All hypotheses after a night.

    probabilities: of the candidates, in their order; what is left to 1 is that of no change. before: the unchanged
    filter on this night, before its value was seen. night_value: mean and variance of what all hypotheses together
    expected of the night.
    """

    unchanged: Filter
    candidates: tuple[Candidate, ...]
    probabilities: tuple[float, ...]
    before: Filter
    night_value: tuple[float, float]

    def changes(self, direction: int, last_night: int) -> list[tuple[float, Candidate]]:
        """Return the candidates of this direction with an onset until then, each with its probability."""
        return [
            (probability, candidate)
            for probability, candidate in zip(self.probabilities, self.candidates, strict=True)
            if candidate.onset <= last_night and candidate.change * direction > 0
        ]


def weigh(
    unchanged: Filter,
    candidates: Sequence[Candidate],
    value: NightValue,
    noise: SeriesNoise,
    past_levels: Sequence[tuple[float, float]],
    settings: DetectorSettings,
) -> Weighed:
    """Take a night into all hypotheses, with a new one: that the level changed on it."""
    before = moved(unchanged, value.number, noise, settings)
    now = copy(before)
    now.log_likelihood = 0.0
    see(now, value, noise, settings)
    recent = candidates[-settings.window_nights + 1 :]
    all_changes = [
        *(moved(candidate, value.number, noise, settings) for candidate in recent),
        changed(before, settings),
    ]
    forecasts = [*(candidate.predict() for candidate in all_changes), before.predict()]
    for candidate in all_changes:
        see(candidate, value, noise, settings, is_onset=candidate.onset == value.number)
        candidate.log_likelihood -= now.log_likelihood
    odds = [log_odds(candidate, past_levels, settings) for candidate in all_changes]
    # Probabilities from odds against no change, whose own are 1; the largest is taken out so that none overflows.
    largest = max(0.0, *odds)
    weights = [*(math.exp(change_odds - largest) for change_odds in odds), math.exp(-largest)]
    total = sum(weights)
    shares = [weight / total for weight in weights]
    # Mean and variance of the mixture of all forecasts; an outlier may lie anywhere near.
    mean = sum(share * middle for share, (middle, _) in zip(shares, forecasts, strict=True))
    variance = sum(
        share * (spread + (middle - mean) ** 2) for share, (middle, spread) in zip(shares, forecasts, strict=True)
    )
    variance += shares[-1] * (1 - now.good) * settings.outlier_sd**2
    return Weighed(
        unchanged=now,
        candidates=tuple(all_changes),
        probabilities=tuple(shares[:-1]),
        before=before,
        night_value=(mean, variance),
    )


def begin(
    values: Sequence[NightValue], noise: SeriesNoise, settings: DetectorSettings
) -> tuple[Filter, tuple[Candidate, ...]]:
    """Return the hypotheses that a series' first nights leave.

    The level is first taken from the nights' median, three standard deviations wide: the median of few nights is nearer
    than that, and a first night that is an outlier is known as one.
    """
    spread = noise.night_variance + median(value.variance for value in values)
    middle = median(value.log_value for value in values)
    unchanged = Filter(values[0].number, middle, 0.0, 9 * spread, 0.0, noise.night_variance)
    candidates: tuple[Candidate, ...] = ()
    for passed, value in enumerate(values):
        weighed = weigh(unchanged, candidates, value, noise, (), settings)
        unchanged = weighed.unchanged
        # The first nights have no regime before them that they could have changed.
        candidates = weighed.candidates if passed > settings.hold_nights else ()
    return unchanged, candidates


def score(before: Filter, value: NightValue) -> float:
    """Return how many standard deviations the value lies from what the filter expected."""
    mean, variance = before.predict(value.share)
    return (value.log_value - mean) / math.sqrt(variance + value.variance)


def with_reruns(
    before: Filter, first: NightValue, again: NightValue, noise: SeriesNoise, settings: DetectorSettings
) -> tuple[NightValue, bool]:
    """Return the night's value with its reruns, and whether these agree that it differs from what was expected.

    Reruns see the same level, but only a part of the night's effect, and as much new. Where night and reruns differ by
    more than both may, something disturbed the night, and the reruns alone are its value; else both count, weighted as
    a change that they share is found best (generalised least squares). Reruns agree where they alone show half of that
    change: they are then likelier with it than without.
    """
    share = settings.rerun_correlation
    fresh = (1 - share * share) * noise.night_variance
    first_mean, first_variance = before.predict()
    again_mean, again_variance = before.predict(share)
    first_variance += first.variance
    again_variance += again.variance + fresh
    first_off, again_off = first.log_value - first_mean, again.log_value - again_mean
    # Covariance of the two: the level's error, and the part of the night's effect that lasts until the reruns.
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
