"""Regimes of a figure's series in retrospect, on request: the levels of its nights, and when each began."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bench.gate.detector.detector import JudgedNight
from bench.gate.detector.known_levels import returned_to
from bench.gate.detector.night import Night, TrialSample
from bench.gate.detector.regimes import regimes
from bench.gate.gated import placement_of
from bench.gate.missing import with_day
from bench.gate.verdicts import SeriesKey, Verdict, load_verdicts
from bench.store.history import History

MOST_NIGHTS = 200
"""Most nights of a series that are judged again: each costs as much as on its own night."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRegime:
    """Nights on one level. value: in the metric's unit, with its 95 % interval.

    since_ns: Unix time of its first night; since_low_ns, since_high_ns: its 95 % range. In the first regime all are
    equal.
    """

    nights: int
    value: float
    low: float
    high: float
    since_ns: int
    since_low_ns: int
    since_high_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRegimes:
    """The regimes of a figure, oldest first. figure: its newest verdict."""

    figure: Verdict
    regimes: tuple[PastRegime, ...]


def regimes_of(history: History, suite: str, keys: Collection[SeriesKey]) -> tuple[SeriesRegimes, ...]:
    """Return the regimes of the suite's figures that have more than one, from the trials of their verdicts.

    Reruns and late verdicts are left out.
    """
    of_key: dict[SeriesKey, list[Verdict]] = {key: [] for key in keys}
    for verdict in load_verdicts(history, suite):
        if verdict.key in of_key and verdict.outcome != "late" and verdict.trial_values:
            of_key[verdict.key].append(verdict)
    figures = []
    for verdicts in of_key.values():
        newest = sorted(verdicts, key=lambda verdict: verdict.number)[-MOST_NIGHTS:]
        times = {verdict.number: verdict.started_ns for verdict in newest}
        levels = regimes([_night(verdict) for verdict in newest])
        if len(levels) > 1:
            past = tuple(
                PastRegime(
                    nights=regime.nights,
                    value=math.exp(regime.log_level),
                    low=math.exp(regime.log_level_low),
                    high=math.exp(regime.log_level_high),
                    since_ns=times[regime.first],
                    since_low_ns=times[regime.onset_low],
                    since_high_ns=times[regime.onset_high],
                )
                for regime in levels
            )
            figures.append(SeriesRegimes(figure=newest[-1], regimes=past))
    return tuple(figures)


def dated_reason(judged: JudgedNight, times: Mapping[int, int]) -> str:
    """Return the detector's reason with the day of its night. For a new change it also says whether the level is known.

    times: Unix times of nights by number.
    """
    reason = judged.reason
    if judged.reason_night is not None:
        reason = with_day(reason, judged.reason_night, times)
    if judged.is_new and judged.alert is not None:
        known = returned_to(judged.state, judged.alert.onset)
        if known is not None:
            reason = f"{reason}; {with_day(known.reason, known.last, times)}"
    return reason


def _night(verdict: Verdict) -> Night:
    """Return the night of a verdict. The scatter of its steps is not stored, so it is taken as unchanged."""
    placement = placement_of(verdict.hosts)
    trials = (
        TrialSample(log_median=math.log(value), mad=0.0, steps=1, placement=placement) for value in verdict.trial_values
    )
    return Night(number=verdict.number, trials=tuple(trials))
