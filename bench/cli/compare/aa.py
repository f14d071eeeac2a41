"""`observatory compare --aa`: one side twice in turn, for the noise of each series of a suite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench.analysis.comparison import FigureChange, changes, judge
from bench.cli.compare.ab import Places, Turns, take_turns
from bench.engines.local import LocalEngine
from bench.errors import InfrastructureFailed
from bench.reports.comparison import NoiseReport, SeriesNoise
from bench.runner.measure import CasePlace
from bench.runner.patient_store import PatientStore
from bench.runs.history import History
from bench.runs.nights import nights_of, noise_over
from bench.runs.summary import Summary
from bench.suites.plan import PlannedCase

NIGHTS_SEARCHED = 200
"""Runs of a series, newest first, that tell how nights differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Both runs of each case, in the suite's order, and how it ended."""

    pairs: tuple[tuple[str, Summary, Summary], ...]
    failures: tuple[InfrastructureFailed, ...]
    is_interrupted: bool = False


def measure_twice(suite: str, cases: Sequence[PlannedCase], places: Places) -> Measured:
    """Measure each case twice in turn, one case after the other, and keep the runs as ad hoc.

    Raises:
        InfrastructureFailed: nothing can be started or stored.
    """
    pairs: list[tuple[str, Summary, Summary]] = []
    failures: list[InfrastructureFailed] = []
    with places.open_store() as store, LocalEngine(places.runs) as engine:
        place = CasePlace(engine=engine, machine=engine.machine())
        for planned in cases:
            turns = _twice(suite, planned, place, replace(places, limit_s=planned.suite_case.limit_s), store)
            first, second = turns.kept.summaries
            pairs.append((planned.suite_case.name, first, second))
            failures += turns.kept.failures
            if turns.is_interrupted or turns.lost_engine:
                return Measured(pairs=tuple(pairs), failures=tuple(failures), is_interrupted=turns.is_interrupted)
    return Measured(pairs=tuple(pairs), failures=tuple(failures))


def _twice(suite: str, planned: PlannedCase, place: CasePlace, places: Places, store: PatientStore) -> Turns:
    assert planned.case is not None, "a case without refusal is resolved"
    name = planned.suite_case.name
    orders = [
        (f"{name}, {word}", replace(planned.case), place, f"compare --aa {suite}: {name}, {word}")
        for word in ("first", "second")
    ]
    return take_turns(orders, places, store)


# What it tells.


def report_of(suite: str, measured: Measured, history: History | None, missing: Iterable[str] = ()) -> NoiseReport:
    """Return the noise of each series that was measured twice, and how many false differences there were.

    history: of earlier nights; None where the store does not answer.
    """
    compared: list[tuple[str, Summary, list[FigureChange]]] = []
    lines = list(missing)
    for name, first, second in measured.pairs:
        if (trials := min(first.trials_done, second.trials_done)) < 2:
            why = first.cause or second.cause
            reason = "" if why is None else f" ({why.text})"
            lines.append(f"{name} tells nothing: {trials} complete trial(s), of 2 that are needed{reason}")
            continue
        compared.append((name, first, changes(first.estimates, second.estimates, is_paired=True)))
    series: list[SeriesNoise] = []
    for name, first, changed in compared:
        past = () if history is None else history.baselines(first.case.key(), first.hardware, NIGHTS_SEARCHED)
        nights = nights_of(first.case, past)
        for change in changed:
            # Of a figure that is noisy and above 0, the noise is a share of it.
            if not change.is_exact and change.scale == "ratio":
                noise = noise_over(nights, change.a.metric, change.a.labels, [change.a.trials, change.b.trials])
                series.append(SeriesNoise(case=name, estimate=change.a, trials=first.case.trials, noise=noise))
    judged = judge([change for _, _, changed in compared for change in changed])
    return NoiseReport(suite=suite, series=tuple(series), judged=tuple(judged), missing=tuple(lines))
