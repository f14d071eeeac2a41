"""The gate's current verdict on each figure of a suite: verdicts of a night, and earlier ones that are still open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
from sqlalchemy import func, select

from bench.gate.missing import day_of
from bench.gate.verdicts import (
    BAD,
    AcceptedLevel,
    KnownSeries,
    SeriesKey,
    Verdict,
    load_accepted,
    load_verdicts,
)
from bench.store.history import History
from bench.store.schema import ACCEPTED_LEVELS, GATE_STATES, GATE_VERDICTS, RUNS


def standing_verdicts(
    history: History, suite: str, suite_run: str | None, known: Mapping[SeriesKey, KnownSeries]
) -> list[Verdict]:
    """Return the verdicts of a night, and those that are still open for figures that it did not measure.

    Figures that were worse until a person accepted the level say so. suite_run: the night; None if none has ended.
    known: the suite's series, see `load_states`.
    """
    measured = [] if suite_run is None else load_verdicts(history, suite, suite_run=suite_run)
    return _with_accepted([*measured, *_still_open(history, suite, known, measured)], load_accepted(history, suite))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How far a suite is judged: equal as long as nothing is judged, taken back or accepted.

    suite_run: that of the newest night with verdicts. judged, revisions, accepted: numbers of rows and revisions in the
    store.
    """

    suite_run: str
    judged: int
    revisions: int
    accepted: int


def judged_suites(history: History, now_ns: int) -> dict[str, Judged]:
    """Return the suites that have verdicts. now_ns: later nights were judged by a wrong clock, and do not count."""
    verdicts, states, levels = GATE_VERDICTS.c, GATE_STATES.c, ACCEPTED_LEVELS.c
    newest = (
        select(verdicts.suite, func.max(verdicts.started_ns).label("started_ns"), func.count().label("judged"))
        .where(verdicts.started_ns <= now_ns)
        .group_by(verdicts.suite)
        .subquery()
    )
    of_newest = (
        select(newest.c.suite, newest.c.judged, func.max(verdicts.suite_run).label("suite_run"))
        .join(GATE_VERDICTS, (verdicts.suite == newest.c.suite) & (verdicts.started_ns == newest.c.started_ns))
        .group_by(newest.c.suite, newest.c.judged)
    )
    with history.transaction() as connection:
        rows = connection.execute(of_newest).all()
        revised = select(states.suite, func.sum(states.revision).label("total")).group_by(states.suite)
        revisions = {row.suite: int(row.total) for row in connection.execute(revised)}
        pinned = select(levels.suite, func.count().label("total")).group_by(levels.suite)
        accepted = {row.suite: row.total for row in connection.execute(pinned)}
    return {
        row.suite: Judged(
            suite_run=row.suite_run,
            judged=row.judged,
            revisions=revisions.get(row.suite, 0),
            accepted=accepted.get(row.suite, 0),
        )
        for row in rows
    }


def hardware_of(history: History, runs: Iterable[str]) -> dict[str, str]:
    """Return the hardware of those of these runs that are in the history."""
    query = select(RUNS.c.id, RUNS.c.hardware).where(RUNS.c.id.in_(sorted(set(runs))))
    with history.transaction() as connection:
        return {row.id: row.hardware for row in connection.execute(query)}


def _still_open(
    history: History, suite: str, known: Mapping[SeriesKey, KnownSeries], measured: Iterable[Verdict]
) -> Iterator[Verdict]:
    """Yield the last verdicts of figures that this night did not measure and that were worse at their last measurement.

    So they stay open if a night ran only some cases, if a case failed, or if it ran on another kind of machine.
    """
    tonight = {verdict.key for verdict in measured}
    open_figures = [
        figure
        for figure in known.values()
        if figure.key not in tonight and figure.is_worse and not _is_taken_back(figure, known)
    ]
    for run in dict.fromkeys(figure.last_run for figure in open_figures):
        keys = {figure.key for figure in open_figures if figure.last_run == run}
        for last in load_verdicts(history, suite, run=run):
            if last.key in keys and last.outcome in BAD:
                reason = f"not measured since {day_of(last.started_ns)}"
                yield msgspec.structs.replace(last, is_new=False, reason=reason)


def _is_taken_back(figure: KnownSeries, known: Mapping[SeriesKey, KnownSeries]) -> bool:
    """Whether the case has its earlier definition again, with which the open change of this figure was compared."""
    opened = figure.state.open
    if opened is None or opened.against is None:
        return False
    before = known.get(msgspec.structs.replace(figure.key, series=opened.against))
    return before is not None and before.last_ns > figure.last_ns


def _with_accepted(verdicts: Iterable[Verdict], accepted: Mapping[SeriesKey, AcceptedLevel]) -> list[Verdict]:
    """Return the verdicts; those that were worse until a person accepted the level become "accepted"."""
    result = []
    for verdict in verdicts:
        level = accepted.get(verdict.key)
        if level is not None and level.accepted_ns > verdict.started_ns and verdict.outcome in BAD:
            reason = f"{level.who} accepted it on {day_of(level.accepted_ns)}: {level.because}"
            verdict = msgspec.structs.replace(verdict, outcome="accepted", reason=reason)
        result.append(verdict)
    return result
