"""The verdict on one figure of a night: the detector's result, interpreted with the metric's direction.

A confirmed change for the worse stays open until the level is back or a person accepts the new one. The verdict on an
efficiency considers both of its legs. An accepted level is compared with later nights to catch slow creep.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from bench.gate.cause.definition import FindBefore, compare_first_nights
from bench.gate.cause.legs import is_of_the_baseline, legs_changed, middle_legs
from bench.gate.detector.detector import JudgedNight, confirm_by_rerun, creep, judge, level
from bench.gate.detector.look_back import begun_again, look_back
from bench.gate.detector.night import Night
from bench.gate.detector.noise_change import noise_change
from bench.gate.detector.paired import page_by_pairs
from bench.gate.detector.settings import SETTINGS
from bench.gate.detector.state import SeriesAlert, SeriesState
from bench.gate.gated import GatedValue, shape_words
from bench.gate.missing import NIGHTS_SEEN, day_of, with_day
from bench.gate.regimes import dated_reason
from bench.gate.verdicts import (
    BAD,
    MARGIN,
    AcceptedLevel,
    GateState,
    KnownSeries,
    OpenChange,
    SeriesKey,
    Verdict,
    packed,
)
from bench.store.summary import Summary
from collectors.metrics.gate import Outcome

DAY_NS = 86_400 * 10**9
NIGHTS_KEPT = 60
"""Nights whose times a state stores, to date the beginning of a change."""
SMALLEST_CHANGE = SETTINGS.smallest_change
"""Remaining part of a confirmed change (logarithm) below which it counts as recovered."""
NOISE_NIGHTS = 7
"""Nights between checks for a change of a series' noise: what takes weeks to show can wait for one."""
RAMP_NIGHTS = 7
"""Most nights from the onset of a change to a further change that belongs to the same ramp."""
_STANDING: dict[str, Outcome] = {"level": "standing", "mixture": "mixture", "creep": "creep"}
_OF_LEGS = (*BAD - {"redefined"}, "improvement")
LASTING_NIGHTS = 7
"""Nights after which a regression that is neither confirmed nor gone gets a verdict of its own."""
_OUTCOMES: dict[str, Outcome] = {
    "insufficient data": "insufficient_data",
    "no change": "same",
    "suspicion": "suspicion",
    "recovered": "recovered",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """The result so far. change: fields of the verdict with the size and the date of the change."""

    outcome: Outcome
    reason: str
    opened: OpenChange | None
    change: dict[str, Any]
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one run.

    again: the same figure in the night's reruns. find_before: see `series_before`. accepted: the level that a person
    accepted, against which slow creep is judged.
    """

    key: SeriesKey
    value: GatedValue
    summary: Summary
    suite_run: str
    again: Sequence[GatedValue]
    find_before: FindBefore
    accepted: AcceptedLevel | None

    def judge(self, known: KnownSeries | None) -> tuple[Verdict, KnownSeries]:
        """Return the verdict, and the state of the series afterwards."""
        started_ns = self.summary.started_ns
        state = GateState(detector=SeriesState()) if known is None else known.state
        if known is not None and started_ns < known.last_ns - DAY_NS:
            reason = (
                "it began before a night that is already judged: a clock was set back, or the run reached"
                " the history late"
            )
            return self._verdict("late", reason, number=state.nights[-1][0]), known
        # Two runs on one day count as two nights; the one that is read first is the earlier night.
        number = max(started_ns // DAY_NS, state.nights[-1][0] + 1 if state.nights else 0)
        nights = (*state.nights, (number, started_ns))[-NIGHTS_KEPT:]
        own = self.value.legs
        legs = () if own is None else (*state.legs, (own.own, own.baseline))[-NIGHTS_KEPT:]
        judged = judge(state.detector, Night(number=number, trials=self.value.trials))
        reruns = [trial for rerun in self.again for trial in rerun.trials] if judged.verdict == "suspicion" else []
        if reruns:
            judged = confirm_by_rerun(judged.state, tuple(reruns))
        if state.open is None and state.attribution is not None and state.attribution.is_code_on(self.suite_run):
            judged = page_by_pairs(judged, self._worse)
        finding, detector = self._finding(judged, state, nights)
        finding = self._with_legs(finding, legs, nights, state)
        finding = self._against_accepted(finding, detector, state, legs, nights)
        finding = self._within_margin(finding)
        is_new_week = bool(state.nights) and number // NOISE_NIGHTS != state.nights[-1][0] // NOISE_NIGHTS
        noise = noise_change(detector, reported=state.noise_onset) if is_new_week else None
        verdict = self._verdict(
            finding.outcome,
            finding.reason,
            number=number,
            margin=self._margin,
            expected=None if judged.expected_log is None else math.exp(judged.expected_log),
            p_value=judged.p_value,
            is_suspected=judged.verdict == "suspicion",
            visible_ratio=None if judged.visible_log is None else math.expm1(judged.visible_log),
            is_equivalent=_is_equivalent(judged, self._margin or MARGIN),
            reruns=len(reruns),
            is_new=finding.is_new,
            noise=None if noise is None or noise.factor < 1 else with_day(noise.reason, noise.onset, dict(nights)),
            **finding.change,
        )
        after = GateState(
            detector=detector,
            nights=nights,
            legs=legs,
            accepted_legs=state.accepted_legs,
            accepted_half_width=state.accepted_half_width,
            open=finding.opened,
            blame=state.blame,
            noise_onset=state.noise_onset if noise is None else noise.onset,
            is_worse=finding.outcome in BAD,
            attribution=state.attribution,
        )
        return verdict, KnownSeries(
            key=self.key,
            last_run=self.summary.run,
            last_ns=started_ns if known is None else max(started_ns, known.last_ns),
            packed=packed(after),
            revision=0 if known is None else known.revision,
        )

    # From the detector's verdict to the gate's

    def _finding(
        self, judged: JudgedNight, state: GateState, nights: Sequence[tuple[int, int]]
    ) -> tuple[_Finding, SeriesState]:
        """Return the result of this night and the nights before it, and the detector's state after it."""
        times = dict(nights)
        if judged.state.unchanged is None:  # The series has no level of its own yet.
            return self._first_nights(judged, state.open, nights), judged.state
        outcome, opened = self._outcome(judged, state.open, nights)
        change = self._change(judged, outcome, opened, times)
        reason, is_new = dated_reason(judged, times), judged.is_new
        # The detector takes a return for the end of a change; a return to a worse level begins on this night.
        if judged.verdict == "recovered" and outcome == "confirmed" and self._has_worse_page(judged):
            reason, is_new = f"an improvement is lost: {reason}", True
        if outcome == "confirmed" and opened is not None and self._has_worse_alert(judged):
            reason = f"{reason}; in addition to the regression since {day_of(opened.since_ns)}"
        if outcome == "lasting":
            reason = f"{reason}; it has been open for {LASTING_NIGHTS} nights or more; accept it if these agree"
        is_still_open = opened is not None and state.open is not None and opened.since_ns == state.open.since_ns
        if opened is not None and is_still_open and not self._has_worse_alert(judged):
            is_new = False  # A further page of the same ramp updates the open change.
            outcome, reason = opened.outcome, opened.reason or reason
            change["definition"] = opened.definition
        finding = _Finding(outcome=outcome, reason=reason, opened=opened, change=change, is_new=is_new)
        return self._looked_back(finding, judged, times)

    def _looked_back(
        self, finding: _Finding, judged: JudgedNight, times: Mapping[int, int]
    ) -> tuple[_Finding, SeriesState]:
        """Return the lasting change, if any, that all nights of the regime show, and the state with its new regime."""
        standing = look_back(judged.state)
        if standing is None:
            return finding, judged.state
        detector = begun_again(judged.state, standing)
        since_ns, low_ns, high_ns = (
            times.get(night, night * DAY_NS) for night in (standing.onset, standing.onset_low, standing.onset_high)
        )
        change = _sized(standing.log_change, standing.log_change_low, standing.log_change_high)
        change |= {"since_ns": since_ns, "since_low_ns": low_ns, "since_high_ns": high_ns}
        reason = with_day(standing.reason, standing.onset, times)
        opened = finding.opened
        if standing.direction != self._worse:
            if opened is None and finding.outcome not in BAD:
                finding = _Finding(outcome="improvement", reason=reason, opened=None, change=change, is_new=True)
            elif opened is not None and self._is_back(replace(judged, state=detector), opened):
                finding = _Finding(outcome="recovered", reason=reason, opened=None, change=change, is_new=False)
            return finding, detector
        if opened is None:
            opened = OpenChange(
                log_level=detector.past_levels[0][0],
                half_width=(standing.log_change_high - standing.log_change_low) / 2,
                since_ns=since_ns,
                since_low_ns=low_ns,
                since_high_ns=high_ns,
                outcome=_STANDING[standing.kind],
                reason=reason,
            )
            outcome = opened.outcome
        else:  # On top of an open change: the size is that of both, and this change gives the date.
            outcome = "confirmed"
            opened = msgspec.structs.replace(
                opened,
                since_ns=since_ns,
                since_low_ns=low_ns,
                since_high_ns=high_ns,
                first_ns=opened.since_ns if opened.first_ns is None else opened.first_ns,
                outcome="confirmed",
                definition=None,
                reason=None,
            )
            change = self._change(
                replace(judged, state=detector, verdict="no change", alert=None), outcome, opened, times
            )
        return _Finding(outcome=outcome, reason=reason, opened=opened, change=change, is_new=True), detector

    def _with_legs(
        self,
        finding: _Finding,
        legs: Sequence[tuple[float, float]],
        nights: Sequence[tuple[int, int]],
        state: GateState,
    ) -> _Finding:
        """Return the finding on an efficiency, extended by the changes of its run's and its baseline's rates."""
        if not legs or finding.change.get("since_ns") is None or finding.outcome not in _OF_LEGS:
            return finding
        own_ratio, baseline_ratio = legs_changed(legs, nights, finding.change["since_ns"])
        finding = replace(finding, change={**finding.change, "own_ratio": own_ratio, "baseline_ratio": baseline_ratio})
        if finding.outcome == "improvement" or not is_of_the_baseline(own_ratio, baseline_ratio):
            return finding
        reason = "the baseline got faster, and the run did not get slower by as much"
        return replace(finding, outcome="faster_baseline", reason=reason, opened=state.open)

    def _against_accepted(
        self,
        finding: _Finding,
        detector: SeriesState,
        state: GateState,
        legs: Sequence[tuple[float, float]],
        nights: Sequence[tuple[int, int]],
    ) -> _Finding:
        """Return the finding, or a finding that the newest nights have crept away from the accepted level."""
        accepted = self.accepted
        crept = None if accepted is None else creep(detector, math.log(accepted.level))
        if accepted is None or crept is None or not crept.has_crept or crept.log_change * self._worse <= 0:
            return finding
        # A level that was accepted after few nights has a wide interval of its own.
        if abs(crept.log_change) <= math.hypot((crept.high - crept.low) / 2, state.accepted_half_width):
            return finding
        reason = f"against the level that {accepted.who} accepted: {accepted.because}"
        if finding.outcome in BAD and finding.outcome != "creep":
            percent = 100 * math.expm1(crept.log_change)
            return replace(finding, reason=f"{finding.reason}; {percent:+.1f} % {reason}")
        change = {**_sized(crept.log_change, crept.low, crept.high), "since_ns": accepted.accepted_ns}
        outcome: Outcome = "creep"
        # Older versions did not store the legs; the earlier nights have them as long as they are known.
        at_level = state.accepted_legs or middle_legs(legs, nights, until_ns=accepted.accepted_ns)
        if at_level is not None and (newest := middle_legs(legs, nights)) is not None:
            own_ratio, baseline_ratio = (newest[side] / at_level[side] for side in (0, 1))
            change |= {"own_ratio": own_ratio, "baseline_ratio": baseline_ratio}
            if is_of_the_baseline(own_ratio, baseline_ratio):
                outcome = "faster_baseline"
                reason = f"{reason}: the baseline got faster, and the run did not get slower by as much"
        return replace(finding, outcome=outcome, reason=reason, change=change)

    def _within_margin(self, finding: _Finding) -> _Finding:
        """Return the finding, marked as accepted if it is worse by no more than the margin of the case."""
        if finding.outcome not in BAD or self._margin is None:
            return finding
        if abs(math.log(finding.change["change_ratio"])) > math.log1p(self._margin):
            return finding
        reason = f"{finding.reason}; within the margin of {100 * self._margin:g} % that the suite file gives the case"
        return replace(finding, outcome="accepted", reason=reason)

    def _first_nights(
        self, judged: JudgedNight, opened: OpenChange | None, nights: Sequence[tuple[int, int]]
    ) -> _Finding:
        """Return the finding on a new series' first nights.

        If the definition of the case changed, they are compared with the last level of the previous series.
        """
        first_ns = nights[0][1]
        before = None if self.accepted is not None else self.find_before(self.key, self.summary, first_ns)
        comparison = None
        if before is not None and len(nights) >= before.nights:
            comparison = compare_first_nights(before.series.state.detector, judged.state)
        if before is None or comparison is None:
            return _Finding(outcome="insufficient_data", reason=judged.reason, opened=None, change={"since_ns": None})
        log_change, half_width = comparison.log_change, comparison.change_half_width
        fields = _sized(log_change, log_change - half_width, log_change + half_width)
        fields |= {"since_ns": first_ns, "definition": before.words}
        is_change = comparison.p_value <= SETTINGS.alert_p and abs(log_change) >= SMALLEST_CHANGE
        since = f"since the case definition changed ({before.words})"
        if is_change and log_change * self._worse > 0:
            now = OpenChange(
                log_level=comparison.log_level,
                half_width=comparison.half_width,
                since_ns=first_ns,
                since_low_ns=None,
                since_high_ns=None,
                outcome="redefined",
                reason=since,
                definition=before.words,
                against=before.series.key.series,
                own_half_width=comparison.own_half_width,
            )
            runs = {"good_run": before.series.last_run, "bad_run": self.summary.run}
            return _Finding(
                outcome="redefined", reason=since, opened=now, change={**fields, **runs}, is_new=opened is None
            )
        if opened is not None:
            return _Finding(outcome="recovered", reason=f"no longer worse {since}", opened=None, change=fields)
        if is_change and len(nights) <= NIGHTS_SEEN:
            is_new = len(nights) == before.nights
            return _Finding(outcome="improvement", reason=since, opened=None, change=fields, is_new=is_new)
        reason = f"{judged.reason}; nothing is worse {since}"
        return _Finding(outcome="insufficient_data", reason=reason, opened=None, change=fields)

    @property
    def _margin(self) -> float | None:
        """The largest change that does not matter, if the suite file sets one."""
        member = self.summary.purpose.member
        return None if member is None else member.margin

    @property
    def _worse(self) -> int:
        """The sign of a change for the worse."""
        return 1 if self.value.metric.better == "lower" else -1

    def _has_worse_alert(self, judged: JudgedNight) -> bool:
        """Whether reruns of this or a recent night show a change for the worse that is not confirmed yet."""
        return judged.verdict == "alert" and judged.alert is not None and judged.alert.direction == self._worse

    def _has_worse_page(self, judged: JudgedNight) -> bool:
        """Whether later nights confirm a change for the worse; the detector may take it for the end of another."""
        alert = judged.alert
        is_page = judged.verdict in ("page", "recovered") and alert is not None and alert.tier == 2
        return is_page and alert is not None and alert.direction == self._worse

    def _outcome(
        self, judged: JudgedNight, opened: OpenChange | None, nights: Sequence[tuple[int, int]]
    ) -> tuple[Outcome, OpenChange | None]:
        """Return the outcome of the night, and the change that is open after it.

        A confirmed change for the worse stays open until the level is back, or a person accepts the new one. If later
        nights confirm a further change, the open change combines both.
        """
        alert, times = judged.alert, dict(nights)
        if self._has_worse_page(judged) and alert is not None:  # Or an improvement that went back.
            return "confirmed", _opened(alert, judged, times) if opened is None else _further(opened, alert, times)
        if opened is not None:
            is_page = judged.verdict in ("page", "recovered") and alert is not None and alert.tier == 2
            return ("recovered", None) if is_page and self._is_back(judged, opened) else ("confirmed", opened)
        if self._has_worse_alert(judged) and alert is not None:
            has_lasted = sum(number >= alert.raised for number, _ in nights) >= LASTING_NIGHTS
            return "lasting" if has_lasted else "regression", None
        if judged.verdict in ("alert", "page"):
            return "improvement", None
        return _OUTCOMES[judged.verdict], None

    def _is_back(self, judged: JudgedNight, opened: OpenChange) -> bool:
        """Whether the level, after a change for the better, is back where it was before the open change."""
        change = _change_since(judged, opened)
        if change is None:
            return False
        middle, half_width = change
        return self._worse * middle < SMALLEST_CHANGE or abs(middle) < half_width

    def _change(
        self, judged: JudgedNight, outcome: Outcome, opened: OpenChange | None, times: Mapping[int, int]
    ) -> dict[str, Any]:
        """Return the fields of the verdict with the size and the date of the change."""
        if outcome == "confirmed" and opened is not None:
            change = _change_since(judged, opened)
            assert change is not None, "a confirmed change has nights after it"
            middle, half_width = change
            if judged.alert is not None and self._has_worse_alert(judged):
                # A further, unconfirmed change: the level does not include it yet.
                middle += judged.alert.log_change
                half_width = math.hypot(half_width, (judged.alert.log_change_high - judged.alert.log_change_low) / 2)
                opened = _further(opened, judged.alert, times)
            return {
                **_sized(middle, middle - half_width, middle + half_width),
                "since_ns": opened.since_ns,
                "since_low_ns": opened.since_low_ns,
                "since_high_ns": opened.since_high_ns,
                "first_ns": opened.first_ns,
            }
        if judged.alert is not None and judged.verdict in ("alert", "page"):
            alert = judged.alert
            return {
                **_sized(alert.log_change, alert.log_change_low, alert.log_change_high),
                "since_ns": times.get(alert.onset),
                "since_low_ns": times.get(alert.onset_low),
                "since_high_ns": times.get(alert.onset_high),
            }
        if judged.expected_log is None:
            return {"since_ns": None}
        return {"since_ns": None, "change_ratio": self.value.value / math.exp(judged.expected_log)}

    def _verdict(self, outcome: Outcome, reason: str, *, number: int, **fields: Any) -> Verdict:
        case = self.summary.case
        return Verdict(
            key=self.key,
            run=self.summary.run,
            suite_run=self.suite_run,
            started_ns=self.summary.started_ns,
            number=number,
            outcome=outcome,
            reason=reason,
            value=self.value.value,
            trial_values=tuple(math.exp(trial.log_median) for trial in self.value.trials),
            strategy=case.strategy,
            shape="" if case.model is None else shape_words(case.model),
            ranks=case.ranks,
            hosts=self.summary.hosts,
            commit=self.summary.commit,
            **fields,
        )


def _sized(log_change: float, low: float, high: float) -> dict[str, Any]:
    """Return the fields of a verdict with the size of a change: ratios, from logarithms."""
    return {"change_ratio": math.exp(log_change), "low": math.exp(low), "high": math.exp(high)}


def _opened(alert: SeriesAlert, judged: JudgedNight, times: Mapping[int, int]) -> OpenChange:
    """Return the open change after its confirmation."""
    present = level(judged.state)
    assert present is not None, "a page has a level after it"
    # The change's interval includes the errors of both levels.
    both, after = (alert.log_change_high - alert.log_change_low) / 2, (present.high - present.low) / 2
    return OpenChange(
        log_level=present.log_level - alert.log_change,
        half_width=math.sqrt(max(0.0, both**2 - after**2)),
        since_ns=times.get(alert.onset, max(times.values())),
        since_low_ns=times.get(alert.onset_low),
        since_high_ns=times.get(alert.onset_high),
        log_change=alert.log_change,
    )


def _further(opened: OpenChange, alert: SeriesAlert, times: Mapping[int, int]) -> OpenChange:
    """Return an open change with a further one on top, which gives the date; people already know about the first.

    A change within `RAMP_NIGHTS` of the last that is no larger than all before it is the same ramp: it only updates it.
    """
    onset_ns = times.get(alert.onset, max(times.values()))
    newest_ns = opened.since_ns if opened.newest_ns is None else opened.newest_ns
    if alert.tier == 2 and onset_ns - newest_ns <= RAMP_NIGHTS * DAY_NS and opened.is_within(alert.log_change):
        return msgspec.structs.replace(opened, newest_ns=onset_ns)
    return _on_top(opened, onset_ns, times.get(alert.onset_low), times.get(alert.onset_high))


def _on_top(opened: OpenChange, since_ns: int, low_ns: int | None, high_ns: int | None) -> OpenChange:
    """Return an open change with the date of a further one."""
    return msgspec.structs.replace(
        opened,
        since_ns=since_ns,
        since_low_ns=low_ns,
        since_high_ns=high_ns,
        first_ns=opened.since_ns if opened.first_ns is None else opened.first_ns,
        newest_ns=None,
        outcome="confirmed",
        reason=None,
        definition=None,
    )


def _is_equivalent(judged: JudgedNight, margin: float) -> bool:
    """Whether the night shows that nothing changed by more than the margin."""
    if judged.log_value is None or judged.expected_log is None or judged.half_width is None:
        return False
    return abs(judged.log_value - judged.expected_log) + judged.half_width <= math.log1p(margin)


def _change_since(judged: JudgedNight, opened: OpenChange) -> tuple[float, float] | None:
    """Return the log ratio of the present level to that before the open change, and half of its 95 % interval."""
    present = level(judged.state)
    if present is None:
        return None
    half_width = math.hypot(opened.half_width, (present.high - present.low) / 2)
    return present.log_level - opened.log_level, half_width
