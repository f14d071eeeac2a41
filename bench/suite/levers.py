"""Levers: the measured effect of an option, judged against the claim of a textbook.

The rule: a claim's ratio is the metric's median with the lever on, divided by the median with it off, and has a 95 %
interval. `more`: the whole interval lies above the claimed range; `less`: below it. `as claimed`: the ratio lies within
the claimed range, and its interval is no wider than this range, both as factors. Everything else is `unsure`: the
trials allow more than one of these. If all trials of each case are equal, as counted bytes are, the ratio is exact and
is judged without an interval. `more` and `less` refer to the metric, whether it is a cost or a speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from bench.results.estimate import Estimate, EstimatedRatio, ratio
from bench.store.summary import Summary
from bench.suite.file import Lever
from bench.suite.form.tables import Claim

Verdict = Literal["as claimed", "more", "less", "unsure"]


class CaseEnd(Protocol):
    """What a judgement needs from a case of a suite run: how it ended, and what it measured; see `CaseResult`."""

    @property
    def name(self) -> str: ...
    @property
    def outcome(self) -> str | None: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def summary(self) -> Summary | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A claim for a lever, with the measured values.

    off, on: the metric without and with the lever. off, on and ratio are None if the verdict is. verdict: None if the
    claim cannot be judged. reason: why it cannot be judged, or why it is unsure; None otherwise.
    """

    lever: Lever
    claim: Claim
    off: Estimate | None = None
    on: Estimate | None = None
    ratio: EstimatedRatio | None = None
    verdict: Verdict | None = None
    reason: str | None = None


def judge_levers(levers: Sequence[Lever], cases: Iterable[CaseEnd]) -> tuple[Judgement, ...]:
    """Return a judgement for each claim of each lever, in order. cases: those of the suite run, in any order."""
    ends = {case.name: case for case in cases}
    return tuple(
        _judge(lever, claim, ends.get(lever.off), ends.get(lever.on)) for lever in levers for claim in lever.claims
    )


def judge_ratio(estimated_ratio: EstimatedRatio, claim: Claim) -> tuple[Verdict, str | None]:
    """Return the verdict on a ratio by the rule above, and the reason if it is unsure."""
    if estimated_ratio.low is None or estimated_ratio.high is None:
        if min(estimated_ratio.numerator_trials, estimated_ratio.denominator_trials) == 1:
            return "unsure", estimated_ratio.why_no_interval
        low = high = estimated_ratio.value
    else:
        low, high = estimated_ratio.low, estimated_ratio.high
    if low > claim.high:
        return "more", None
    if high < claim.low:
        return "less", None
    if not claim.low <= estimated_ratio.value <= claim.high:
        return "unsure", "the interval overlaps the claim, but the ratio lies outside; more trials would decide"
    # high / low <= claim.high / claim.low, for a claim that may begin at 0.
    if high * claim.low > claim.high * low:
        return "unsure", "the interval is wider than the claim; more trials would decide"
    return "as claimed", None


def _judge(lever: Lever, claim: Claim, off: CaseEnd | None, on: CaseEnd | None) -> Judgement:
    try:
        off_estimate, on_estimate = _measured(lever.off, off, claim), _measured(lever.on, on, claim)
    except _Absent as absent:
        return Judgement(lever=lever, claim=claim, reason=str(absent))
    estimated_ratio = ratio(on_estimate, off_estimate)
    verdict, reason = judge_ratio(estimated_ratio, claim)
    return Judgement(
        lever=lever,
        claim=claim,
        off=off_estimate,
        on=on_estimate,
        ratio=estimated_ratio,
        verdict=verdict,
        reason=reason,
    )


class _Absent(Exception):
    """A case lacks what a claim is judged by; the message says why."""


def _measured(name: str, case: CaseEnd | None, claim: Claim) -> Estimate:
    """Return the case's estimate of the claim's metric."""
    if case is None or case.outcome is None:
        raise _Absent(f"{name} did not run")
    summary = case.summary
    if case.outcome != "done" or (summary is not None and summary.outcome != "done"):
        raise _Absent(f"{name} {case.outcome.replace('_', ' ')}{'' if case.reason is None else f': {case.reason}'}")
    if summary is None:
        raise _Absent(f"the run of {name} is no longer on this machine")
    if claim.device not in (None, summary.case.device):
        raise _Absent(f"it is claimed for {claim.device}, and {name} ran on {summary.case.device}")
    for estimate in summary.estimates:
        if estimate.metric == claim.metric and estimate.labels == claim.labels:
            if min(estimate.median, *estimate.trials) <= 0:
                raise _Absent(f"{name} has {estimate.median:g} of it, so no ratio is defined")
            return estimate
    labels = ", ".join(f"{key} {value}" for key, value in claim.labels.items())
    raise _Absent(
        f"{name} has no {claim.metric}{f' of {labels}' if labels else ''}; `observatory show {summary.run} --details`"
        " shows what is absent"
    )
