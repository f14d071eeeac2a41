"""`observatory compare --aa`: one side twice in turn, for the noise of each series of a suite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench.analysis.comparison import FigureChange, JudgedChange, changes, is_main, judge
from bench.case import Case
from bench.cli.compare.ab import Places, Turns, take_turns
from bench.engines.local import LocalEngine
from bench.errors import InfrastructureFailed
from bench.reports.comparison.noise import FalseDifferences, NoiseReport, SeriesNoise
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
        for one in cases:
            turns = _twice(suite, one, place, replace(places, limit_s=one.suite_case.limit_s), store)
            first, second = turns.kept.summaries
            pairs.append((one.suite_case.name, first, second))
            failures += turns.kept.failures
            if turns.is_interrupted or turns.lost_engine:
                return Measured(pairs=tuple(pairs), failures=tuple(failures), is_interrupted=turns.is_interrupted)
    return Measured(pairs=tuple(pairs), failures=tuple(failures))


def _twice(suite: str, one: PlannedCase, place: CasePlace, places: Places, store: PatientStore) -> Turns:
    assert one.case is not None, "a case without refusal is resolved"
    name = one.suite_case.name
    orders = [
        (f"{name}, {word}", replace(one.case), place, f"compare --aa {suite}: {name}, {word}")
        for word in ("first", "second")
    ]
    return take_turns(orders, places, store)


# What it tells.


def report_of(suite: str, measured: Measured, history: History | None, missing: Iterable[str] = ()) -> NoiseReport:
    """Return the noise of each series that was measured twice, and how many false differences there were.

    history: of earlier nights; None where the store does not answer.
    """
    found: list[tuple[str, Summary, list[FigureChange]]] = []
    lines = list(missing)
    for name, first, second in measured.pairs:
        if min(first.trials_done, second.trials_done) < 2:
            why = first.cause or second.cause
            lines.append(
                f"{name} tells nothing: {min(first.trials_done, second.trials_done)} complete trial(s), of 2 that are"
                f" needed{'' if why is None else f' ({why.text})'}"
            )
            continue
        found.append((name, first, changes(first.estimates, second.estimates, is_paired=True)))
    judged = judge([change for _, _, changed in found for change in changed])
    series: list[SeriesNoise] = []
    for name, first, changed in found:
        past = () if history is None else history.baselines(first.case.key(), first.hardware, NIGHTS_SEARCHED)
        nights = nights_of(first.case, past)
        series += [_series(name, first.case, change, nights) for change in changed if _is_timed(change)]
    return NoiseReport(
        suite=suite,
        series=tuple(series),
        false=_false_differences(judged),
        missing=tuple(lines),
    )


def _is_timed(change: FigureChange) -> bool:
    """Whether the figure is noisy and above 0, so that its noise is a share of it."""
    return not change.is_exact and change.scale == "ratio"


def _series(name: str, case: Case, change: FigureChange, nights: Sequence[Sequence[Summary]]) -> SeriesNoise:
    return SeriesNoise(
        case=name,
        estimate=change.a,
        is_main=is_main(change.a),
        trials=case.trials,
        noise=noise_over(nights, change.a.metric, change.a.labels, [change.a.trials, change.b.trials]),
    )


def _false_differences(judged: Sequence[JudgedChange]) -> FalseDifferences:
    tested = [one for one in judged if one.change.p_value is not None]
    return FalseDifferences(
        tested=len(tested),
        single=sum((one.change.p_value or 0.0) < 0.05 for one in tested),
        called=sum(one.outcome in ("better", "worse") for one in tested),
        exact=sum(one.change.is_exact and one.outcome != "same" for one in judged),
    )
