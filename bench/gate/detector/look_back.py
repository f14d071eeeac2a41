"""Changes of a series that only show in retrospect: a lasting level, a shifted mixture, or a slow creep.

The nightly rule weighs changes of the last two weeks; a change that it lets pass becomes noise. This module splits all
stored nights of the present regime in two at the best place, by ranks, with a limit that holds over years of nights.
`begun_again` begins a new regime at the change, so that each change is reported once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec.structs import replace as with_fields
from numpy.typing import NDArray

from bench.gate.detector.hypotheses import begin
from bench.gate.detector.level_filter import NightValue
from bench.gate.detector.night import CLIP_SDS, RESOLUTION, learn, robust_sd
from bench.gate.detector.rank_scan import (
    Split,
    Values,
    best_share_split,
    best_split,
    inflation,
    neighbour_inflation,
    ranks,
    two_kinds,
    unequal_score,
)
from bench.gate.detector.settings import SETTINGS, DetectorSettings
from bench.gate.detector.state import KeptNight, SeriesState

StandingKind = Literal["level", "mixture", "creep"]
FEWEST_NIGHTS = 8
"""Nights on each side: what lasts a week may be a disturbance, and ranks of fewer nights cannot reach the limit."""
LIMIT = 4.5
"""Score from which a level or a creep is reported. For a single place, chance reaches it once in 150,000; but places
and nights are many, and the allowance for correlation is itself estimated from few nights.
"""
SHARE_LIMIT = 5.0
"""The same for a share, where the border between the two kinds is also chosen."""
CLEAR_SHARE_LIMIT = 4.3
"""The same if the kind of every night is clear."""
_APART = 0.85
"""Least share of the largest possible score for a split: in 93 % of pairs the later night is the larger one."""
_FAR_P = 2e-5
"""p-value of the means' difference below which a change is reported if there are too few nights for ranks. It is that
of Student's t, with the degrees of freedom of the shorter side; correlated nights count as fewer.
"""
_FAR_NIGHTS = 12
"""Nights that this needs on each side: if one of two modes stays for a week, that is not a level."""
_KINDS_APART = 5.0
"""Deviations by which two kinds of nights must differ. The two halves of one normal distribution differ by 2.7."""
_CLEARLY_APART = 8.0
_KIND_NIGHTS = 5
_MINORITY_NIGHTS = 3
"""If a part has fewer nights of a kind, they are a few disturbed nights and not a kind."""
_WIDER = 2.0
"""Largest ratio of the spreads of one kind in the two parts: with five nights, chance doubles it once in ten cases."""
_UNSEEN = 9.0
"""A night's variance on an unknown placement is at least this multiple of the usual variance."""
_ABOUT_HALF = 0.1
RANGE = 0.95
RANGE_SDS = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of nights with its 95 % interval."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A lasting change.

    onset: its first night, with a 95 % range. direction: +1 if the metric rose, -1 if it fell. log_change: change of
    the mean logarithm, with its 95 % interval; for a creep, from before it to the newest nights. nights: nights
    measured since the onset. score: in standard deviations, with allowances for correlation. before, after: for a
    mixture, the share of high nights. log_gap: for a mixture, the distance between its two kinds.
    """

    kind: StandingKind
    onset: int
    onset_low: int
    onset_high: int
    direction: int
    log_change: float
    log_change_low: float
    log_change_high: float
    nights: int
    score: float
    before: Share | None = None
    after: Share | None = None
    log_gap: float | None = None

    @property
    def reason(self) -> str:
        """The change in words; `{night}` in them stands for the onset, which only the caller can date."""
        percent = 100 * math.expm1(self.log_change)
        if self.before is not None and self.after is not None and self.log_gap is not None:
            what = "higher" if self.direction > 0 else "lower"
            share, before = self.after, self.before
            gap = 100 * math.expm1(self.log_gap)
            if self.direction < 0:
                share, before = _others(share), _others(before)
                gap = 100 * -math.expm1(-self.log_gap)
            nights = f"{100 * share.share:.0f} % of nights are"
            if abs(share.share - 0.5) < _ABOUT_HALF:
                nights = "about every second night is"
            shares = f"{_percents(share)} of nights, {_percents(before)} before"
            return f"{nights} {gap:.3g} % {what} since {{night}}: {shares}"
        if self.kind == "creep":
            each = 100 * math.expm1(self.log_change / self.nights)
            return f"it has crept by {percent:+.1f} % since {{night}}, {each:+.2g} % a night"
        return f"looking back, {self.nights} nights since {{night}} are on another level, {percent:+.1f} %"


def _others(share: Share) -> Share:
    return Share(share=1 - share.share, low=1 - share.high, high=1 - share.low)


def _percents(share: Share) -> str:
    return f"{100 * share.share:.0f} % [{100 * share.low:.0f}, {100 * share.high:.0f}]"


def look_back(state: SeriesState, settings: DetectorSettings = SETTINGS) -> Standing | None:
    """Return the lasting change in the stored nights of the present regime; None if there is none."""
    nights = _comparable(state)
    if len(nights) < 2 * FEWEST_NIGHTS:
        return None
    values = np.array([night.log_value for night in nights])
    mixture = _mixture(nights, values, settings)
    return _level(nights, values, settings) if mixture is None else mixture


def begun_again(state: SeriesState, standing: Standing, settings: DetectorSettings = SETTINGS) -> SeriesState:
    """Return the state with a present regime that begins at the reported change, without an open alert.

    A creep has no level: its regime begins with the newest nights, and further creep is a change of its own.
    """
    onset = standing.onset
    if standing.kind == "creep":
        onset = state.nights[-FEWEST_NIGHTS].number
    of_regime = _comparable(state)
    # A creep may have begun with the regime, whose first nights then give the level before it.
    old = [night.log_value for night in of_regime if night.number < standing.onset]
    old = old or [night.log_value for night in of_regime[:FEWEST_NIGHTS]]
    own = [night for night in state.nights if night.number >= onset]
    # How nights differed before a mixture says nothing about how they differ within it.
    count = len(own) if standing.kind == "mixture" else len(state.nights)
    nights = state.nights[-max(count, settings.fewest_nights) :]
    noise = learn([[night.log_value for night in own]], float(np.median([night.variance for night in own])), settings)
    values = [NightValue(night.number, night.log_value, night.variance) for night in own]
    unchanged, hypotheses = begin(values, noise, settings)
    before = (float(np.mean(old)), noise.long_run_variance / len(old))
    return with_fields(
        state,
        nights=nights,
        regime_starts=(*state.regime_starts, onset),
        unchanged=unchanged,
        hypotheses=hypotheses,
        likely_onset=None,
        past_levels=(before, *state.past_levels)[:3],
        alert=None,
        suspected=None,
    )


def _comparable(state: SeriesState) -> list[KeptNight]:
    """Return the nights of the present regime, without those on placements whose offset was not known yet."""
    nights = [night for night in state.nights if night.number >= state.regime_starts[-1]] if state.regime_starts else []
    if not nights:
        return []
    variances = sorted(night.variance for night in nights)
    limit = _UNSEEN * max(variances[len(variances) // 2], RESOLUTION**2)
    return [night for night in nights if night.variance <= limit]


def _level(nights: list[KeptNight], values: Values, settings: DetectorSettings) -> Standing | None:
    from scipy.special import stdtr  # Imported here: reading states needs no scipy.

    ranked = ranks(values)
    split = best_split(ranked, FEWEST_NIGHTS)
    if split is None:
        return None
    place = split.place
    # Ranks of few nights cannot reach the limit, however far apart they are; parts that hardly overlap need less.
    few, count = min(place, len(values) - place), len(values)
    is_apart = few >= _FAR_NIGHTS and abs(split.score) > _APART * math.sqrt(3 * few * (count - few) / (count + 1))
    if abs(split.score) < LIMIT and not is_apart:  # Allowances only lower the score.
        return None
    score = unequal_score(values, ranked, place)
    if abs(score) < LIMIT and not is_apart:
        return None
    whole = np.concatenate([cut_to_ordinary(part) for part in (values[:place], values[place:])])
    ramp = _ramp(whole)
    if ramp is None and not is_apart and abs(score) < LIMIT * math.sqrt(neighbour_inflation(ranked, place)):
        return None
    if ramp is None:
        # Ranks locate the change to a night or two, values better; nights on the wrong side would look correlated.
        place = min(max(int(_explained(whole).argmax()) + 1, FEWEST_NIGHTS), count - FEWEST_NIGHTS)
    before, after = whole[:place], whole[place:]
    fitted = np.repeat([before.mean(), after.mean()], [len(before), len(after)]) if ramp is None else ramp.fitted
    left = (whole - fitted)[:place], (whole - fitted)[place:]
    # The residuals of the likelier shape show how nights are correlated.
    error = float(np.median([night.variance for night in nights]))
    inflated = inflation(left if ramp is None else [whole - fitted], error, settings)
    variances = [max(float(part @ part) / (len(part) - 1), RESOLUTION**2) * inflated for part in left]
    deviation = math.sqrt(variances[0] / len(before) + variances[1] / len(after))
    change = float(after.mean() - before.mean())
    score /= math.sqrt(inflated)
    freedom = max(1.0, min(len(before), len(after)) / inflated - 1)
    far = 2 * float(stdtr(freedom, -abs(change) / deviation))
    if abs(score) < LIMIT and not (is_apart and far < _FAR_P):
        return None
    direction = 1 if change > 0 else -1
    newest = float(after[-FEWEST_NIGHTS:].mean() - before.mean())
    if abs(change) < settings.smallest_change or newest * direction < abs(change) / 2:
        return None
    weights = _onset_weights(whole, float(np.dot(variances, [len(before), len(after)])) / len(whole))
    kind: StandingKind = "level"
    onset, low, high = _onset(weights, place)
    if ramp is not None:
        kind, onset, change = "creep", ramp.start, float(fitted[-1] - fitted[0])
        low, high = min(low, onset), max(high, onset)
    half_width = RANGE_SDS * deviation
    return Standing(
        kind=kind,
        onset=nights[onset].number,
        onset_low=nights[low].number,
        onset_high=nights[high].number,
        direction=direction,
        log_change=change,
        log_change_low=change - half_width,
        log_change_high=change + half_width,
        nights=len(nights) - onset,
        score=score,
    )


def _mixture(nights: list[KeptNight], values: Values, settings: DetectorSettings) -> Standing | None:
    kinds = two_kinds(values, _KIND_NIGHTS)
    if kinds is None or kinds[1] < _KINDS_APART:
        return None
    is_high: NDArray[np.bool_] = values > kinds[0]
    split = best_share_split(is_high, FEWEST_NIGHTS)
    limit = SHARE_LIMIT if kinds[1] < _CLEARLY_APART else CLEAR_SHARE_LIMIT
    if split is None or abs(split.score) < limit:
        return None
    place, whole = split.place, is_high.astype(np.float64)
    inflated = neighbour_inflation(whole, place)
    score = split.score / math.sqrt(inflated)
    if abs(score) < limit or not _has_minority(is_high, split) or _is_wider(values, is_high, place):
        return None
    before = _share(is_high[:place], inflated)
    after = _share(is_high[place:], inflated)
    newest = float(is_high[-FEWEST_NIGHTS:].mean())
    direction = 1 if split.score > 0 else -1
    if (newest - before.share) * direction < abs(after.share - before.share) / 2:
        return None
    gap = float(np.median(values[is_high]) - np.median(values[~is_high]))
    change = gap * (after.share - before.share)
    if abs(change) < settings.smallest_change:
        return None
    half_width = gap * math.hypot((after.high - after.low) / 2, (before.high - before.low) / 2)
    weights = _onset_weights(whole, max(float(whole[:place].var()), float(whole[place:].var())) * inflated)
    onset, low, high = _onset(weights, place)
    return Standing(
        kind="mixture",
        onset=nights[onset].number,
        onset_low=nights[low].number,
        onset_high=nights[high].number,
        direction=direction,
        log_change=change,
        log_change_low=change - half_width,
        log_change_high=change + half_width,
        nights=len(nights) - onset,
        score=score,
        before=before,
        after=after,
        log_gap=gap,
    )


def _has_minority(is_high: NDArray[np.bool_], split: Split) -> bool:
    """Whether a part has nights of both kinds; otherwise the kinds are two successive levels."""
    parts = (is_high[: split.place], is_high[split.place :])
    return any(
        min(int(part.sum()), len(part) - int(part.sum())) >= max(_MINORITY_NIGHTS, len(part) / 20) for part in parts
    )


def _is_wider(values: Values, is_high: NDArray[np.bool_], place: int) -> bool:
    """Whether nights of one kind differ more in one part: then the noise has changed, and not the shares."""
    for chosen in (is_high, ~is_high):
        parts = [
            part[is_kind] for part, is_kind in ((values[:place], chosen[:place]), (values[place:], chosen[place:]))
        ]
        if min(len(part) for part in parts) >= _KIND_NIGHTS:
            low, high = sorted(max(float(part.std()), RESOLUTION) for part in parts)
            if high > _WIDER * low:
                return True
    return False


def _share(is_high: NDArray[np.bool_], inflated: float) -> Share:
    """Return the share of high nights with Wilson's interval; correlated nights count as fewer."""
    count = len(is_high) / inflated
    share = float(is_high.mean())
    square = RANGE_SDS**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half_width = RANGE_SDS * math.sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return Share(share=share, low=max(0.0, middle - half_width), high=min(1.0, middle + half_width))


def cut_to_ordinary(part: Values) -> Values:
    """Return the values, clipped to the range of ordinary nights around their median."""
    middle = float(np.median(part))
    limit = CLIP_SDS * robust_sd(part - middle)
    return np.clip(part, middle - limit, middle + limit)


def _explained(values: Values) -> Values:
    """Return the sum of squares that a step explains at each place, from index 1 on."""
    count = len(values)
    before = np.arange(1, count)
    sums = np.cumsum(values - values.mean())[:-1]
    return np.asarray(sums**2 * count / (before * (count - before)))


def _onset_weights(values: Values, variance: float) -> Values:
    """Return the likelihood of each place as the onset, from index 1 on, relative to the largest."""
    explained = _explained(values)
    return np.asarray(np.exp((explained - explained.max()) / (2 * max(variance, RESOLUTION**2))))


def _onset(weights: Values, place: int) -> tuple[int, int, int]:
    """Return the likeliest onset and its 95 % range."""
    passed = np.cumsum(weights) / weights.sum()
    tail = (1 - RANGE) / 2
    onset = 1 + int(weights.argmax())
    low = 1 + int(np.searchsorted(passed, tail))
    high = min(1 + int(np.searchsorted(passed, 1 - tail)), len(weights))
    return onset, min(low, onset), max(high, onset)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ramp:
    """A level that climbs from `start` until now. fitted: its values."""

    start: int
    fitted: Values


def _ramp(values: Values) -> _Ramp | None:
    """Return the best-fitting ramp, if it fits better than every step."""
    count = len(values)
    nights = np.arange(count)
    off = values - values.mean()
    step = float(_explained(values).max())
    # A centred ramp from each place, (places, nights), so that one product gives what each explains.
    starts = np.arange(0, count - FEWEST_NIGHTS)
    ramps = np.maximum(nights[None, :] - starts[:, None], 0.0)
    ramps -= ramps.mean(axis=1, keepdims=True)
    products = ramps @ off
    slopes = products / (ramps**2).sum(axis=1)
    explained = slopes * products
    best = int(explained.argmax())
    if float(explained[best]) <= step:
        return None
    return _Ramp(start=int(starts[best]), fitted=float(values.mean()) + slopes[best] * ramps[best])
