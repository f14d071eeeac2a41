"""`observatory compare --aa`: measures a suite twice in turn, for the noise of each of its series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.analysis.compare.ab import ad_hoc_order, take_turns
from bench.analysis.compare.report import NoiseReport, SeriesNoise
from bench.errors import plural
from bench.results.comparison import FigureChange, changes, judge
from bench.session.persist import PersistedRuns
from bench.session.session import Session
from bench.store.history import History
from bench.store.nights import nights_of, noise_over
from bench.store.summary import Summary
from bench.suite.plan import PlannedCase

NIGHTS_SEARCHED = 200
"""Newest runs of a series that are searched for the difference between nights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePair:
    """Both stored runs of a case of the suite. name: of the case."""

    name: str
    runs: PersistedRuns


def measure_twice(
    suite: str, cases: Sequence[PlannedCase], session: Session, *, is_drawn: bool | None
) -> list[CasePair]:
    """Measure each case twice in turn, one case after the other, and store the runs as ad hoc.

    The list ends early if a person interrupts a case or the engine fails in it.

    Raises:
        InfrastructureFailed: nothing can be started or stored.
    """
    pairs: list[CasePair] = []
    for planned in cases:
        assert planned.case is not None, "a case without refusal is resolved"
        name, limit_s = planned.suite_case.name, planned.suite_case.limit_s
        titles = (f"{name}, first", f"{name}, second")
        orders = [ad_hoc_order(title, planned.case, f"compare --aa {suite}: {title}", limit_s) for title in titles]
        runs = take_turns(orders, session, is_drawn=is_drawn)
        pairs.append(CasePair(name=name, runs=runs))
        if runs.is_interrupted or runs.lost_engine:
            break
    return pairs


# The report


def report_of(
    suite: str, pairs: Sequence[CasePair], history: History | None, missing: Iterable[str] = ()
) -> NoiseReport:
    """Return the noise of each series that was measured twice, and the false differences.

    history: of earlier nights; None if the store does not answer.
    """
    compared: list[tuple[str, Summary, list[FigureChange]]] = []
    lines = list(missing)
    for pair in pairs:
        first, second = pair.runs.summaries
        if (trials := min(first.trials_done, second.trials_done)) < 2:
            why = first.cause or second.cause
            reason = "" if why is None else f" ({why.text})"
            lines.append(f"{pair.name} has only {plural(trials, 'complete trial')} of the 2 that noise needs{reason}")
            continue
        compared.append((pair.name, first, changes(first.estimates, second.estimates, is_paired=True)))
    series: list[SeriesNoise] = []
    for name, first, changed in compared:
        past = () if history is None else history.baselines(first.case.key(), first.hardware, NIGHTS_SEARCHED)
        nights = nights_of(first.case, past)
        for change in changed:
            # Noise is a share of the figure, so only noisy figures above 0 have it.
            if not change.is_exact and change.scale == "ratio":
                noise = noise_over(nights, change.a.metric, change.a.labels, [change.a.trials, change.b.trials])
                series.append(SeriesNoise(case=name, estimate=change.a, trials=first.case.trials, noise=noise))
    judged = judge([change for _, _, changed in compared for change in changed])
    return NoiseReport(suite=suite, series=tuple(series), judged=tuple(judged), missing=tuple(lines))
