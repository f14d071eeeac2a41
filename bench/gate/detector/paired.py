"""Pairs of source trees and a change: whether the change is worth measuring pairs, and a page based on their result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as with_fields

from bench.gate.detector.detector import PAST_LEVELS, RANGE, RANGE_SDS, JudgedNight, learned_noise
from bench.gate.detector.hypotheses import changes_after, since
from bench.gate.detector.level_filter import Change, Filter
from bench.gate.detector.settings import SETTINGS, DetectorSettings
from bench.gate.detector.state import SeriesAlert, SeriesState


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyChange:
    """The change that a series' last nights suggest, in one direction.

    probability: of any change in this direction. onset: likeliest first night, with a 95 % range. log_change: of the
    likeliest change.
    """

    probability: float
    onset: int
    onset_low: int
    onset_high: int
    log_change: float


def likely_change(state: SeriesState, direction: int, settings: DetectorSettings = SETTINGS) -> LikelyChange | None:
    """Return the likely change after the last night; None if there is no candidate in this direction."""
    changes = _changes(state, direction, settings)
    if not changes:
        return None
    best = max(changes, key=lambda change: change.probability)
    low, high = _onsets(changes)
    return LikelyChange(
        probability=sum(change.probability for change in changes),
        onset=best.onset,
        onset_low=min(low, best.onset),
        onset_high=max(high, best.onset),
        log_change=best.change,
    )


def page_by_pairs(judged: JudgedNight, direction: int, settings: DetectorSettings = SETTINGS) -> JudgedNight:
    """Return the night as a page of its likeliest change, after pairs of both trees have shown that the code caused it.

    The change begins a regime, as if later nights had confirmed it. A night without a candidate, or that is a page
    already, is returned unchanged.
    """
    state = judged.state
    changes = _changes(state, direction, settings)
    if not changes or judged.verdict in ("page", "recovered"):
        return judged
    assert state.hypotheses is not None, "changes are of hypotheses"
    best = max(changes, key=lambda change: change.probability)
    low, high = _onsets(changes)
    half_width = RANGE_SDS * math.sqrt(best.change_variance)
    alert = SeriesAlert(
        onset=best.onset,
        onset_low=min(low, best.onset),
        onset_high=max(high, best.onset),
        direction=direction,
        log_change=best.change,
        log_change_low=best.change - half_width,
        log_change_high=best.change + half_width,
        raised=state.nights[-1].number,
        tier=2,
    )
    after = with_fields(
        state,
        unchanged=Filter(best.onset, best.level, 0.0, best.level_variance, 0.0, 0.0),
        hypotheses=since(state.hypotheses, best),
        likely_onset=None,
        regime_starts=(*state.regime_starts, best.onset),
        past_levels=((best.level_before, best.variance_before), *state.past_levels)[:PAST_LEVELS],
        alert=None,
        suspected=None,
    )
    percent = 100 * math.expm1(best.change)
    reason = f"the level has changed by {percent:+.1f} % since {{night}}, by runs of both trees on this night"
    return replace(
        judged, state=after, verdict="page", reason=reason, reason_night=best.onset, is_new=True, alert=alert
    )


def _changes(state: SeriesState, direction: int, settings: DetectorSettings) -> list[Change]:
    """Return the changes in this direction, by onset."""
    if state.hypotheses is None or state.unchanged is None:
        return []
    changes = changes_after(state.hypotheses, learned_noise(state, settings), state.past_levels, settings)
    return [change for change in changes if change.change * direction > 0]


def _onsets(changes: Sequence[Change]) -> tuple[int, int]:
    """Return the first and last onset, without those in either tail of the probability."""
    total, passed = sum(change.probability for change in changes), 0.0
    inside = []
    for change in changes:
        passed += change.probability
        if passed > (1 - RANGE) / 2 * total and passed - change.probability < (1 + RANGE) / 2 * total:
            inside.append(change.onset)
    return min(inside), max(inside)
