"""Detect changes in a series, night by night: suspicion, alert, page, and recovery.

`judge` takes a night; if it requests reruns, `confirm_by_rerun` takes them. Both take the series' state and return the
next one; nothing else is stored about the past. docs/reference/detector.md has the formulae. Knows neither store nor
clock, nor which direction is worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Literal

from msgspec.structs import replace as with_fields

from bench.errors import plural
from bench.gate.detector.hypotheses import Weighed, begin, moved_mean, since, weigh, with_reruns
from bench.gate.detector.level_filter import Change, Filter, NightValue
from bench.gate.detector.night import (
    CLIP_SDS,
    Night,
    SeriesNoise,
    TrialSample,
    learn,
    require_finite,
    trial_variance,
)
from bench.gate.detector.noise_change import Growth, grown, growth
from bench.gate.detector.placements import learn_offsets, reduce_trials
from bench.gate.detector.settings import SETTINGS, DetectorSettings
from bench.gate.detector.state import KeptNight, SeriesAlert, SeriesState, Suspected
from bench.gate.detector.tails import freedom, is_far, p_value, past_nights, quantile, tail_p

NightVerdict = Literal["insufficient data", "no change", "suspicion", "alert", "page", "recovered"]
RANGE = 0.95
RANGE_SDS = 1.96
"""Half the width of a 95 % interval, in standard deviations."""
_BUSIEST = 4.0
"""Largest factor by which a night's trials are assumed to scatter more than usual, however much its steps do."""
PAST_LEVELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedNight:
    """The verdict on a night, and the state to store.

    is_new: this call raised the alert or the page.
    alert: the alert that is open, was just raised or has just recovered; if a paged change has reverted, the change
        back.
    reason: in words; `{night}` in it stands for the night with number `reason_night`, which only the caller can date.
    score: standard deviations between the night and the expectation of its regime; p_value: two-sided p-value of the
        score. Both include reruns if there were any.
    log_value: value of the night, without the placements' offsets; expected_log: expected value. half_width: of the 95
        % interval of their difference. visible_log: smallest difference that would be suspected.
    """

    state: SeriesState
    verdict: NightVerdict
    reason: str
    reason_night: int | None = None
    is_new: bool = False
    alert: SeriesAlert | None = None
    reruns_wanted: int = 0
    score: float | None = None
    p_value: float | None = None
    log_value: float | None = None
    expected_log: float | None = None
    half_width: float | None = None
    visible_log: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLevel:
    """A level (logarithm) with its 95 % interval, and the number of stored nights that it is based on."""

    log_level: float
    low: float
    high: float
    nights: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestMean:
    """Mean of the newest nights, with the variance of its error and the degrees of freedom of this variance."""

    log_value: float
    variance: float
    freedom: int
    nights: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reruns:
    """Whether a night's reruns agree with it, and how many trials the night and its reruns have together."""

    agree: bool
    trials: int


def judge(state: SeriesState | None, night: Night, settings: DetectorSettings = SETTINGS) -> JudgedNight:
    """Judge a night of a series; state: what the previous night returned, None for a new series.

    Raises:
        ValueError: the night is not after the last one, has no trial, or has values that are not finite.
    """
    before = SeriesState() if state is None else state
    require_finite(night.trials)
    if not night.trials:
        raise ValueError(f"night {night.number} has no trial; leave out a night on which nothing ran")
    if before.nights and night.number <= before.nights[-1].number:
        last = before.nights[-1].number
        raise ValueError(f"night {night.number} is not after night {last}, the last one judged; give nights in order")
    error = _trial_error(before.nights, night.trials)
    reduced = reduce_trials(night.trials, before.placements, error, settings)
    current = KeptNight(
        night.number,
        reduced.log_value,
        reduced.variance,
        reduced.spread,
        len(night.trials),
        median(trial.mad for trial in night.trials),
    )
    nights = (*before.nights, current)[-settings.memory_nights :]
    now = with_fields(before, nights=nights, regime_starts=_starts(before, nights), suspected=None)
    if len(now.nights) < settings.fewest_nights:
        expected = median(current.log_value for current in now.nights), settings.placement_sd**2
        placements = learn_offsets(night.trials, now.placements, error, expected, night.number, settings)
        reason = f"{plural(len(now.nights), 'night')} so far, and a verdict needs {settings.fewest_nights}"
        return JudgedNight(
            state=with_fields(now, placements=placements),
            verdict="insufficient data",
            reason=reason,
            log_value=current.log_value,
        )
    noise, increase = _noise(now, settings)
    hypotheses = before.hypotheses
    if hypotheses is None:
        # The first of these nights were reduced before it was known how much trials differ.
        values = [
            NightValue(earlier.number, earlier.log_value, max(earlier.variance, error / earlier.trials))
            for earlier in before.nights
            if earlier.number >= before.regime_starts[-1]
        ]
        _, hypotheses = begin(values, noise, settings)
    value = NightValue(night.number, current.log_value, increase.trials**2 * current.variance)
    suspected = Suspected(value=value, hypotheses=hypotheses)
    return _weighed(now, suspected, night.trials, error, noise, increase, settings)


def confirm_by_rerun(
    state: SeriesState, reruns: tuple[TrialSample, ...], settings: DetectorSettings = SETTINGS
) -> JudgedNight:
    """Judge the last night again, with new trials of the same night; state: from the `judge` call that suspected it.

    Raises:
        ValueError: the last verdict was not a suspicion, there is no trial, or values are not finite.
    """
    require_finite(reruns)
    suspected = state.suspected
    if suspected is None or suspected.hypotheses is None:
        raise ValueError("there is no suspicion to confirm; judge a night first, and rerun it if that asks for it")
    if not reruns:
        raise ValueError("there is no rerun to confirm the suspicion with; give its trials, or leave it a suspicion")
    error = _trial_error(state.nights[:-1], reruns)
    again = reduce_trials(reruns, state.placements, error, settings)
    noise, increase = _noise(state, settings)
    first = suspected.value
    before = moved_mean(suspected.hypotheses, first.number, noise, settings)
    value, agree = with_reruns(
        before, first, NightValue(first.number, again.log_value, increase.trials**2 * again.variance), noise, settings
    )
    last = state.nights[-1]
    now = with_fields(state, nights=(*state.nights[:-1], with_fields(last, log_value=value.log_value)), suspected=None)
    hypotheses = with_fields(suspected, value=value)
    rerun_counts = _Reruns(agree=agree, trials=last.trials + len(reruns))
    return _weighed(now, hypotheses, reruns, error, noise, increase, settings, rerun_counts)


def level(state: SeriesState) -> SeriesLevel | None:
    """Return the level of the present regime, None before the first verdict."""
    if state.unchanged is None:
        return None
    now = state.unchanged
    half_width = RANGE_SDS * math.sqrt(now.level_variance)
    nights = sum(night.number >= state.regime_starts[-1] for night in state.nights)
    return SeriesLevel(log_level=now.level, low=now.level - half_width, high=now.level + half_width, nights=nights)


def newest_mean(state: SeriesState, settings: DetectorSettings = SETTINGS) -> NewestMean | None:
    """Return the mean of the newest nights, None before the first verdict."""
    if state.unchanged is None:
        return None
    noise = learned_noise(state, settings)
    newest = state.nights[-settings.creep_nights :]
    middle = median(night.log_value for night in newest)
    error = median(night.variance for night in newest)
    # Outlying nights are clipped, as they are when the noise is learned.
    limit = CLIP_SDS * math.sqrt(noise.night_variance + error)
    values = [min(max(night.log_value, middle - limit), middle + limit) for night in newest]
    count = len(values)
    # Variance of a mean of correlated nights: each pair `lag` apart shares correlation^lag of the night variance.
    pairs = sum((count - lag) * noise.correlation**lag for lag in range(1, count))
    variance = (noise.night_variance * (1 + 2 * pairs / count) + error) / count
    return NewestMean(log_value=sum(values) / count, variance=variance, freedom=freedom(noise), nights=count)


def learned_noise(state: SeriesState, settings: DetectorSettings = SETTINGS) -> SeriesNoise:
    """Return the noise with which the newest night was judged."""
    return _noise(state, settings)[0]


def _weighed(
    state: SeriesState,
    suspected: Suspected,
    trials: Sequence[TrialSample],
    error: float,
    noise: SeriesNoise,
    increase: Growth,
    settings: DetectorSettings,
    reruns: _Reruns | None = None,
) -> JudgedNight:
    """Update all hypotheses with the night's value, and return the verdict.

    state: its nights include this one. suspected: the night's value, and the hypotheses before it.
    """
    value = suspected.value
    assert suspected.hypotheses is not None, "what is suspected has the hypotheses before it"
    weighed = weigh(suspected.hypotheses, value, noise, state.past_levels, settings)
    mean, _ = weighed.before.predict(value.share)
    deviation = weighed.deviation
    placements = learn_offsets(trials, state.placements, error, weighed.night_value, value.number, settings)
    now = with_fields(
        state,
        likely_onset=_likely_onset(weighed, settings),
        unchanged=weighed.unchanged,
        hypotheses=weighed.hypotheses,
        placements=placements,
    )
    judged = JudgedNight(
        state=now,
        verdict="no change",
        reason="",
        score=(value.log_value - mean) / deviation,
        p_value=p_value(weighed.scores, noise),
        log_value=value.log_value,
        expected_log=mean,
        half_width=quantile(RANGE / 2 + 0.5, noise) * deviation,
        visible_log=quantile(1 - settings.suspicion_p / 2, noise) * deviation,
    )
    page = _page(judged, weighed, settings)
    if page is not None:
        return page
    if state.alert is not None:
        return _followed(judged, state.alert, weighed, settings)
    return _first_night(judged, suspected, weighed, reruns, increase, settings)


def _likely_onset(weighed: Weighed, settings: DetectorSettings) -> int | None:
    """Return the likeliest onset of a change, if the change is likely enough for the noise to be learned around it."""
    best = max(weighed.changes, key=lambda change: change.probability)
    is_likely = sum(change.probability for change in weighed.changes) >= settings.likely_probability
    return best.onset if is_likely else None


def _page(judged: JudgedNight, weighed: Weighed, settings: DetectorSettings) -> JudgedNight | None:
    """Return the page if later nights confirm a change, with the regime that the change began; None otherwise."""
    state = judged.state
    last_night = state.nights[-1 - settings.hold_nights].number
    for direction in (1, -1):
        changes = weighed.changes_to(direction, last_night)
        if not changes:
            continue
        best = max(changes, key=lambda change: change.probability)
        if sum(change.probability for change in changes) < _page_limit(best.change, settings):
            continue
        if abs(best.change) < settings.smallest_change:
            continue
        alert = _alert(changes, best, direction, state.nights[-1].number, tier=2)
        is_return = _is_return(state, best, settings)
        now = with_fields(
            state,
            unchanged=Filter(best.onset, best.level, 0.0, best.level_variance, 0.0, 0.0),
            hypotheses=since(weighed.hypotheses, best),
            likely_onset=None,
            regime_starts=(*state.regime_starts, best.onset),
            past_levels=((best.level_before, best.variance_before), *state.past_levels)[:PAST_LEVELS],
            alert=None,
        )
        if is_return:
            reason, began = "the level is back where it was before {night}", state.regime_starts[-1]
            return replace(judged, state=now, verdict="recovered", reason=reason, reason_night=began, alert=alert)
        reason = f"the level has changed by {100 * math.expm1(best.change):+.1f} % since {{night}}"
        return replace(
            judged, state=now, verdict="page", reason=reason, reason_night=best.onset, is_new=True, alert=alert
        )
    return None


def _page_limit(change: float, settings: DetectorSettings) -> float:
    """Return the probability at which a change of this size (logarithm) becomes a page."""
    odds = settings.page_probability / (1 - settings.page_probability)
    odds *= min(1.0, settings.page_change / max(abs(change), settings.smallest_change))
    return max(odds / (1 + odds), settings.page_probability_least)


def _is_return(state: SeriesState, change: Change, settings: DetectorSettings) -> bool:
    """Whether a regime that lasted at most one window ends at the level that preceded it."""
    if not state.past_levels or change.onset - state.regime_starts[-1] > settings.window_nights:
        return False
    log_level, variance = state.past_levels[0]
    return abs(change.level - log_level) <= RANGE_SDS * math.sqrt(
        change.level_variance + variance + settings.return_sd**2
    )


def _followed(judged: JudgedNight, alert: SeriesAlert, weighed: Weighed, settings: DetectorSettings) -> JudgedNight:
    """Return the verdict on a night with an open alert, which stays open or recovers."""
    changes = weighed.changes_to(alert.direction, weighed.before.number)
    probability = sum(change.probability for change in changes)
    if probability < settings.close_probability:
        reason = f"the change of {{night}} has gone: its probability is {probability:.2f}"
        now = with_fields(judged.state, alert=None)
        return replace(judged, state=now, verdict="recovered", reason=reason, reason_night=alert.onset, alert=alert)
    reason = f"the change of {{night}} has probability {probability:.2f}, and is confirmed at "
    reason += f"{_page_limit(alert.log_change, settings):.2f}"
    return replace(judged, verdict="alert", reason=reason, reason_night=alert.onset, alert=alert)


def _first_night(
    judged: JudgedNight,
    suspected: Suspected,
    weighed: Weighed,
    reruns: _Reruns | None,
    increase: Growth,
    settings: DetectorSettings,
) -> JudgedNight:
    """Return the verdict on a night without an open alert: suspicion, or with reruns an alert or nothing."""
    assert judged.score is not None
    assert judged.p_value is not None
    assert judged.log_value is not None
    assert judged.expected_log is not None
    difference = math.expm1(judged.log_value - judged.expected_log)
    off = f"{100 * difference:+.1f} % from what was expected, p {judged.p_value:.2g}"
    if reruns is None:
        if judged.p_value > settings.suspicion_p:
            return replace(judged, reason=off)
        now = with_fields(judged.state, suspected=suspected)
        reason = f"{off}; {settings.reruns} reruns would show whether it holds"
        return replace(judged, state=now, verdict="suspicion", reason=reason, reruns_wanted=settings.reruns)
    newest = weighed.changes[-1]
    if not reruns.agree:
        return replace(judged, reason=f"{off} with its reruns, which do not show it")
    if judged.p_value > settings.alert_p or abs(newest.change) < settings.smallest_change:
        return replace(judged, reason=f"{off} with its reruns: too little for an alert")
    direction = 1 if judged.score > 0 else -1
    usual = _usual_variance(judged.state.nights)
    past = past_nights(judged.state, _slow_noise(judged.state, usual, settings), direction)
    if not is_far(judged.log_value - judged.expected_log, past):
        return replace(judged, reason=f"{off} with its reruns: earlier nights lay as far off")
    by_shape = tail_p(judged.p_value, past, increase, settings)
    if len(judged.state.nights) > settings.shape_nights and by_shape > settings.alert_p:
        reason = f"{off} with its reruns: too little for an alert by how earlier nights differ, p {by_shape:.2g}"
        return replace(judged, reason=reason)
    if reruns.trials < settings.fewest_trials:
        reason = f"{off} with its reruns, {reruns.trials} trials in all; an alert needs {settings.fewest_trials}"
        return replace(judged, verdict="insufficient data", reason=reason)
    alert = _alert([newest], newest, direction, suspected.value.number, tier=1)
    now = with_fields(judged.state, alert=alert)
    return replace(judged, state=now, verdict="alert", reason=f"{off} with its reruns", is_new=True, alert=alert)


def _alert(changes: Sequence[Change], best: Change, direction: int, raised: int, *, tier: int) -> SeriesAlert:
    total = sum(change.probability for change in changes)
    half_width = RANGE_SDS * math.sqrt(best.change_variance)
    # Onsets in order, without those in either tail of the probability.
    passed, inside = 0.0, [best.onset]
    for change in changes:
        passed += change.probability
        if passed > (1 - RANGE) / 2 * total and passed - change.probability < (1 + RANGE) / 2 * total:
            inside.append(change.onset)
    return SeriesAlert(
        onset=best.onset,
        onset_low=min(inside),
        onset_high=max(inside),
        direction=direction,
        log_change=best.change,
        log_change_low=best.change - half_width,
        log_change_high=best.change + half_width,
        raised=raised,
        tier=tier,
    )


def _trial_error(nights: Sequence[KeptNight], trials: Sequence[TrialSample]) -> float:
    """Return the variance of one trial's error on this night, which is larger if its steps scatter more than usual."""
    variance = _usual_variance(nights)
    usual = median(night.mad for night in nights) if nights else 0.0
    if not usual:
        return variance
    busy = median(trial.mad for trial in trials) / usual
    return variance * min(max(busy, 1.0), _BUSIEST) ** 2


def _usual_variance(nights: Sequence[KeptNight]) -> float:
    """Return the variance of one trial's error on an ordinary night."""
    return trial_variance([(night.spread, night.trials) for night in nights if night.spread is not None])


def _starts(before: SeriesState, nights: Sequence[KeptNight]) -> tuple[int, ...]:
    """Return where regimes began among these nights; the present regime's start is always included."""
    oldest = nights[0].number
    return tuple(start for start in before.regime_starts if start > oldest) or before.regime_starts[-1:] or (oldest,)


def _noise(state: SeriesState, settings: DetectorSettings) -> tuple[SeriesNoise, Growth]:
    """Learn the noise of the newest night from settled nights; the noise is larger if it has grown since."""
    usual = _usual_variance(state.nights)
    slow = _slow_noise(state, usual, settings)
    increase = growth(state, slow, usual, settings)
    return grown(slow, increase), increase


def _slow_noise(state: SeriesState, usual: float, settings: DetectorSettings) -> SeriesNoise:
    """Learn the noise from settled nights: a change on a newer night may not be known yet.

    The values of each regime count relative to its own level, as do the nights since a likely but unconfirmed change.
    usual: variance of a trial's error over all nights, which is known better than on each night by itself.
    """
    count = len(state.nights)
    settled = state.nights[: count - min(settings.window_nights, count // 3)]
    starts = [*state.regime_starts, *([] if state.likely_onset is None else [state.likely_onset])]
    edges = (settled[0].number, *starts, math.inf)
    regimes = [[night.log_value for night in settled if start <= night.number < end] for start, end in pairwise(edges)]
    error = median(usual / night.trials for night in settled)
    return learn([values for values in regimes if values], error, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Creep:
    """How far the newest nights lie from an accepted level, as logarithms.

    low, high: interval that excludes the settings' `creep_p` in both directions together. nights: nights used.
    has_crept: the interval excludes zero, and the change is at least `smallest_creep`.
    """

    log_change: float
    low: float
    high: float
    nights: int
    has_crept: bool


def creep(state: SeriesState, accepted_log_level: float, settings: DetectorSettings = SETTINGS) -> Creep | None:
    """Compare the newest nights with an accepted level; None before the first verdict.

    The test is repeated each night, so its interval is wider than 95 %. It uses only the newest nights, because the
    estimated level of a creeping regime lags behind them.

    Raises:
        ValueError: the accepted level is not finite.
    """
    from scipy.special import stdtrit  # Imported here: reading states needs no scipy.

    if not math.isfinite(accepted_log_level):
        raise ValueError(f"the accepted level is {accepted_log_level}; it must be finite, a logarithm")
    mean = newest_mean(state, settings)
    if mean is None:
        return None
    change = mean.log_value - accepted_log_level
    half_width = float(stdtrit(mean.freedom, 1 - settings.creep_p / 2)) * math.sqrt(mean.variance)
    return Creep(
        log_change=change,
        low=change - half_width,
        high=change + half_width,
        nights=mean.nights,
        has_crept=abs(change) > max(half_width, settings.smallest_creep),
    )
