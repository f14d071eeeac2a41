"""The verdict on one figure of a night: what the detector says of it, read with the metric's direction in mind.

A confirmed change for the worse stays open until the level is back or a person accepts the new one. An efficiency is
read with both of its legs. A level that was accepted is held against slow creep.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from bench.gate.cause.definition import FindBefore, hold
from bench.gate.detector.detector import JudgedNight, confirm_by_rerun, creep, judge, level
from bench.gate.detector.night import Night
from bench.gate.detector.settings import SETTINGS
from bench.gate.detector.state import SeriesAlert, SeriesState
from bench.gate.gated import GatedValue
from bench.gate.missing import NIGHTS_SEEN, day_of
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
from workloads.cost_models.shape import Shape

DAY_NS = 86_400 * 10**9
NIGHTS_KEPT = 60
"""Nights whose times a state keeps, to date the beginning of a change."""
LEG_NIGHTS = SETTINGS.creep_nights
"""Most nights that the legs of an efficiency are taken from, as creep is."""
SMALLEST_CHANGE = SETTINGS.smallest_change
"""What may be left of a confirmed change that counts as recovered, of the logarithm."""
LASTING_NIGHTS = 7
"""Nights after which a regression that is neither confirmed nor gone has a verdict of its own."""
_OUTCOMES: dict[str, Outcome] = {
    "insufficient data": "insufficient_data",
    "no change": "same",
    "suspicion": "suspicion",
    "recovered": "recovered",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one run. again: the same figure of the night's reruns. find_before: see `series_before`."""

    key: SeriesKey
    value: GatedValue
    summary: Summary
    suite_run: str
    again: Sequence[GatedValue]
    find_before: FindBefore

    def judge(self, known: KnownSeries | None, accepted: AcceptedLevel | None) -> tuple[Verdict, KnownSeries]:
        """Return the verdict, and what is known of the series afterwards."""
        started_ns = self.summary.started_ns
        state = GateState(detector=SeriesState()) if known is None else known.state
        if known is not None and started_ns < known.last_ns - DAY_NS:
            reason = (
                "it began before a night that is already judged: a clock was set back, or the run reached"
                " the history late"
            )
            return self._verdict("late", reason, number=state.nights[-1][0]), known
        # Two runs of a day are two nights. Whichever is read first is the earlier one.
        number = started_ns // DAY_NS
        if state.nights:
            number = max(number, state.nights[-1][0] + 1)
        nights = (*state.nights, (number, started_ns))[-NIGHTS_KEPT:]
        own = self.value.legs
        legs = () if own is None else (*state.legs, (own.own, own.baseline))[-NIGHTS_KEPT:]
        judged = judge(state.detector, Night(number=number, trials=self.value.trials))
        reruns = [trial for rerun in self.again for trial in rerun.trials]
        if judged.verdict == "suspicion" and reruns:
            judged = confirm_by_rerun(judged.state, tuple(reruns))
        else:
            reruns = []
        reason = _dated(judged, dict(nights))
        if judged.state.unchanged is None:  # The series has no level of its own yet.
            outcome, opened, change = self._first_nights(judged, state.open, nights, is_accepted=accepted is not None)
            reason = change.pop("reason", reason)
        else:
            outcome, opened = self._outcome(judged, state.open, nights)
            change = self._change(judged, outcome, opened, dict(nights))
        # The detector takes a return for the end of a change; one to a level that was worse has begun on this night.
        is_lost = judged.verdict == "recovered" and outcome == "confirmed" and self._has_worse_page(judged)
        if is_lost:
            reason = f"an improvement is lost: {reason}"
        if outcome == "confirmed" and opened is not None and self._has_worse_alert(judged):
            reason = f"{reason}; on top of what is worse since {day_of(opened.since_ns)}"
        if outcome == "confirmed" and opened is not None and opened.definition is not None and opened == state.open:
            outcome, reason = "redefined", _since_definition(opened.definition)
            change["definition"] = opened.definition
        if outcome == "lasting":
            reason = f"{reason}; it is open for {LASTING_NIGHTS} nights or more, and can be accepted if they agree"
        if legs and outcome in ("regression", "lasting", "confirmed", "improvement"):
            own_ratio, baseline_ratio = _legs_changed(legs, nights, change["since_ns"])
            change |= {"own_ratio": own_ratio, "baseline_ratio": baseline_ratio}
            if outcome != "improvement" and _is_of_the_baseline(own_ratio, baseline_ratio):
                outcome, opened = "faster_baseline", state.open
                reason = "the baseline got faster, and the run did not get slower by as much"
        if accepted is not None and outcome in ("same", "suspicion", "insufficient_data"):
            crept = creep(judged.state, math.log(accepted.level))
            # A level that was accepted after few nights is known no better than they tell.
            if crept is not None and abs(crept.log_change) <= math.hypot(
                (crept.high - crept.low) / 2, state.accepted_half_width
            ):
                crept = None
            if crept is not None and crept.has_crept and crept.log_change * self._worse > 0:
                outcome, reason = "creep", f"against the level that {accepted.who} accepted: {accepted.because}"
                change = {
                    "change_ratio": math.exp(crept.log_change),
                    "low": math.exp(crept.low),
                    "high": math.exp(crept.high),
                    "since_ns": accepted.accepted_ns,
                }
                # An older version did not keep them; the nights before tell, as long as they are known.
                at_level = state.accepted_legs or middle_legs(legs, nights, until_ns=accepted.accepted_ns)
                if at_level is not None and (newest := middle_legs(legs, nights)) is not None:
                    own_ratio, baseline_ratio = (newest[side] / at_level[side] for side in (0, 1))
                    change |= {"own_ratio": own_ratio, "baseline_ratio": baseline_ratio}
                    if _is_of_the_baseline(own_ratio, baseline_ratio):
                        outcome = "faster_baseline"
                        reason = f"{reason}: the baseline got faster, and the run did not get slower by as much"
        if outcome in BAD and self._margin is not None and _is_within(change["change_ratio"], self._margin):
            outcome = "accepted"
            reason = f"{reason}; within the margin of {100 * self._margin:g} % that the suite file gives the case"
        verdict = self._verdict(
            outcome,
            reason,
            number=number,
            margin=self._margin,
            expected=None if judged.expected_log is None else math.exp(judged.expected_log),
            p_value=judged.p_value,
            is_suspected=judged.verdict == "suspicion",
            visible_ratio=None if judged.visible_log is None else math.expm1(judged.visible_log),
            is_equivalent=_is_equivalent(judged, self._margin or MARGIN),
            reruns=len(reruns),
            is_new=judged.is_new or is_lost or (outcome == "redefined" and state.open is None),
            **change,
        )
        after = GateState(
            detector=judged.state,
            nights=nights,
            legs=legs,
            accepted_legs=state.accepted_legs,
            accepted_half_width=state.accepted_half_width,
            open=opened,
            is_worse=outcome in BAD,
        )
        last_ns = started_ns if known is None else max(started_ns, known.last_ns)
        return verdict, KnownSeries(key=self.key, last_run=self.summary.run, last_ns=last_ns, packed=packed(after))

    def _first_nights(
        self, judged: JudgedNight, opened: OpenChange | None, nights: Sequence[tuple[int, int]], *, is_accepted: bool
    ) -> tuple[Outcome, OpenChange | None, dict[str, Any]]:
        """Return the outcome of a new series' first nights, the change that is open, and fields of the verdict.

        They are held against the last level of the series before, if the definition of the case changed.
        """
        first_ns = nights[0][1]
        before = None if is_accepted else self.find_before(self.key, self.summary, first_ns)
        held = None
        if before is not None and len(nights) >= before.nights:
            held = hold(before.series.state.detector, judged.state)
        if before is None or held is None:
            return "insufficient_data", None, {}
        fields: dict[str, Any] = {
            "change_ratio": math.exp(held.log_change),
            "low": math.exp(held.log_change - held.change_half_width),
            "high": math.exp(held.log_change + held.change_half_width),
            "since_ns": first_ns,
            "definition": before.words,
        }
        is_change = held.p_value <= SETTINGS.alert_p and abs(held.log_change) >= SMALLEST_CHANGE
        since = _since_definition(before.words)
        if is_change and held.log_change * self._worse > 0:
            now = OpenChange(
                log_level=held.log_level,
                half_width=held.half_width,
                since_ns=first_ns,
                since_low_ns=None,
                since_high_ns=None,
                definition=before.words,
                against=before.series.key.series,
                own_half_width=held.own_half_width,
            )
            runs = {"good_run": before.series.last_run, "bad_run": self.summary.run}
            return "redefined", now, {**fields, **runs, "reason": since}
        if opened is not None:
            return "recovered", None, {**fields, "reason": f"no longer worse {since}"}
        if is_change and len(nights) <= NIGHTS_SEEN:
            return "improvement", None, {**fields, "reason": since}
        return "insufficient_data", None, {**fields, "reason": f"{judged.reason}; nothing is worse {since}"}

    @property
    def _margin(self) -> float | None:
        """The largest change that does not matter, where the suite file says so."""
        member = self.summary.purpose.member
        return None if member is None else member.margin

    @property
    def _worse(self) -> int:
        """The sign of a change for the worse."""
        return 1 if self.value.metric.better == "lower" else -1

    def _has_worse_alert(self, judged: JudgedNight) -> bool:
        """Whether reruns of this night, or of one of the last, show a change for the worse that is not confirmed."""
        return judged.verdict == "alert" and judged.alert is not None and judged.alert.direction == self._worse

    def _has_worse_page(self, judged: JudgedNight) -> bool:
        """Whether nights confirm a change for the worse, which the detector may take for the end of another change."""
        alert = judged.alert
        is_page = judged.verdict in ("page", "recovered") and alert is not None and alert.tier == 2
        return is_page and alert is not None and alert.direction == self._worse

    def _outcome(
        self, judged: JudgedNight, opened: OpenChange | None, nights: Sequence[tuple[int, int]]
    ) -> tuple[Outcome, OpenChange | None]:
        """Return the outcome of the night, and the change that is open after it.

        A confirmed change for the worse stays open until the level is back, or a person accepts the new one. Where
        later nights confirm a further one, the open change is both together.
        """
        alert, times = judged.alert, dict(nights)
        if self._has_worse_page(judged) and alert is not None:  # Also a return: what went back was an improvement.
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
        """Whether the level is where it was before the open change, now that it has changed for the better."""
        change = _change_since(judged, opened)
        if change is None:
            return False
        middle, half_width = change
        return self._worse * middle < SMALLEST_CHANGE or abs(middle) < half_width

    def _change(
        self, judged: JudgedNight, outcome: Outcome, opened: OpenChange | None, times: Mapping[int, int]
    ) -> dict[str, Any]:
        """Return the fields of the verdict that say how much, and since when."""
        if outcome == "confirmed" and opened is not None:
            change = _change_since(judged, opened)
            assert change is not None, "a confirmed change has nights after it"
            middle, half_width = change
            if judged.alert is not None and self._has_worse_alert(judged):
                # A further change that is not confirmed: the level does not have it yet.
                middle += judged.alert.log_change
                half_width = math.hypot(half_width, (judged.alert.log_change_high - judged.alert.log_change_low) / 2)
                opened = _further(opened, judged.alert, times)
            return {
                "change_ratio": math.exp(middle),
                "low": math.exp(middle - half_width),
                "high": math.exp(middle + half_width),
                "since_ns": opened.since_ns,
                "since_low_ns": opened.since_low_ns,
                "since_high_ns": opened.since_high_ns,
                "first_ns": opened.first_ns,
            }
        if judged.alert is not None and judged.verdict in ("alert", "page"):
            alert = judged.alert
            return {
                "change_ratio": math.exp(alert.log_change),
                "low": math.exp(alert.log_change_low),
                "high": math.exp(alert.log_change_high),
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


def _since_definition(words: str) -> str:
    return f"since the case definition changed ({words})"


def _dated(judged: JudgedNight, times: Mapping[int, int]) -> str:
    """Return the detector's reason with the day of the night that it names; times: of nights by their numbers."""
    night = judged.reason_night
    if night is None:
        return judged.reason
    # Of a night that is no longer known the number itself counts days since 1970.
    return judged.reason.replace("{night}", day_of(times.get(night, night * DAY_NS)))


def middle_legs(
    legs: Sequence[tuple[float, float]],
    nights: Sequence[tuple[int, int]],
    *,
    since_number: int = 0,
    until_ns: int | None = None,
) -> tuple[float, float] | None:
    """Return the run's and the baseline's median rate of the newest of these nights; None without any.

    legs: of the last of the nights, as in `GateState`. since_number, until_ns: only nights from this one on, and before
    this time.
    """
    chosen = [
        leg
        for leg, (number, time_ns) in zip(reversed(legs), reversed(nights), strict=False)
        if number >= since_number and (until_ns is None or time_ns < until_ns)
    ][:LEG_NIGHTS]
    if not chosen:
        return None
    own, baseline = (median(leg[side] for leg in chosen) for side in (0, 1))
    return own, baseline


def _legs_changed(
    legs: Sequence[tuple[float, float]], nights: Sequence[tuple[int, int]], since_ns: int | None
) -> tuple[float | None, float | None]:
    """Return the own and the baseline's rate of this night, each over its median of the nights before the change."""
    before = None if since_ns is None else middle_legs(legs, nights, until_ns=since_ns)
    if before is None:
        return None, None
    return legs[-1][0] / before[0], legs[-1][1] / before[1]


def _is_of_the_baseline(own_ratio: float | None, baseline_ratio: float | None) -> bool:
    """Whether more of an efficiency's fall is the baseline's gain than the run's own loss."""
    if own_ratio is None or baseline_ratio is None:
        return False
    return baseline_ratio > 1 and math.log(baseline_ratio) > -math.log(own_ratio)


def shape_words(shape: Shape) -> str:
    """Return a model's shape in a few words, without the batch, which differs with the ranks."""
    return f"{shape.layers} x {shape.width}, sequence {shape.sequence}"


def _opened(alert: SeriesAlert, judged: JudgedNight, times: Mapping[int, int]) -> OpenChange:
    """Return the change that is open after it was confirmed."""
    present = level(judged.state)
    assert present is not None, "a page has a level after it"
    # The change's interval has the errors of both levels in it.
    both, after = (alert.log_change_high - alert.log_change_low) / 2, (present.high - present.low) / 2
    return OpenChange(
        log_level=present.log_level - alert.log_change,
        half_width=math.sqrt(max(0.0, both**2 - after**2)),
        since_ns=times.get(alert.onset, max(times.values())),
        since_low_ns=times.get(alert.onset_low),
        since_high_ns=times.get(alert.onset_high),
    )


def _further(opened: OpenChange, alert: SeriesAlert, times: Mapping[int, int]) -> OpenChange:
    """Return an open change with one on top of it, by which it is dated: of the first one people know."""
    return msgspec.structs.replace(
        opened,
        since_ns=times.get(alert.onset, max(times.values())),
        since_low_ns=times.get(alert.onset_low),
        since_high_ns=times.get(alert.onset_high),
        first_ns=opened.since_ns if opened.first_ns is None else opened.first_ns,
        definition=None,
    )


def _is_within(change_ratio: float, margin: float) -> bool:
    """Whether a change, up or down, is no more than the margin."""
    return abs(math.log(change_ratio)) <= math.log1p(margin)


def _is_equivalent(judged: JudgedNight, margin: float) -> bool:
    """Whether the night shows that nothing has changed by more than the margin."""
    if judged.log_value is None or judged.expected_log is None or judged.half_width is None:
        return False
    return abs(judged.log_value - judged.expected_log) + judged.half_width <= math.log1p(margin)


def _change_since(judged: JudgedNight, opened: OpenChange) -> tuple[float, float] | None:
    """Return the logarithm of the present level over that before the open change, and half of its 95 % interval."""
    present = level(judged.state)
    if present is None:
        return None
    half_width = math.hypot(opened.half_width, (present.high - present.low) / 2)
    return present.log_level - opened.log_level, half_width
