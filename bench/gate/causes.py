"""The cause of an alert: find the last good and the first bad run, and what changed between them.

The line stored with the verdict comes from the history and, for several nodes, from the run folders if they still
exist. Traces are read only to explain a cause to somebody who asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, select

from bench.errors import Misuse
from bench.gate.cause.attribution import Attribution, attribution_words
from bench.gate.cause.changes import Change, Reading, changes_between
from bench.gate.cause.commits import tree_words
from bench.gate.cause.definition import definition_words
from bench.gate.cause.likely import LIKELY, Likely, cut, likely, redefinition
from bench.gate.cause.standout import Standout, find_standout
from bench.gate.cause.where import StepChange, TraceChange, step_change, trace_change
from bench.gate.groups import Group
from bench.gate.missing import day_of
from bench.gate.verdicts import BAD, Blame, KnownSeries, SeriesKey, Verdict, load_accepted
from bench.machine.machine import Machine
from bench.store.history import History
from bench.store.run_dir import found_again, other_machines
from bench.store.schema import GATE_VERDICTS, RUNS
from bench.store.summary import Summary, series_of
from collectors.metrics.results import RUN_MEAN_STEP_SECONDS, RUN_SCALING_EFFICIENCY, RUN_STEP_SECONDS

NIGHTS_COUNTED = 30
"""Nights up to the first bad one that show how often a field changes."""
GOOD_NIGHTS = 3
"""Nights before the change with whose trials a step's parts are compared: one night has too few."""
MOST_CAUSES = 5
"""Most causes reported unless the caller wants all."""
_NEXT_MOVE = re.compile(r"trace_steps|--[a-z]|`observatory ")
"""Words in a reason that say what to do about it: a setting, an option or a command."""
_DOUBTED = ("suspicion", "regression", "lasting", "late")
"""Outcomes that rule a night out as the last good one."""
_OF_STEPS = frozenset({RUN_STEP_SECONDS.name, RUN_MEAN_STEP_SECONDS.name, RUN_SCALING_EFFICIENCY.name})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """Both runs of a change, and what they show. good: None if the history has none."""

    good: Summary | None
    bad: Summary
    changes: tuple[Change, ...]
    time: StepChange | str | None
    likely: Likely
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What is known about the cause of a case's worse figures.

    figures: the verdicts of these figures. line: the likely cause, see `likely`. is_likely: the line names a change.
    changes: from the good run to the bad one, rarest first. time: where the time went; None if the figures are not
    times of a step, or no good run is known. traces: None if not requested. standout: None if no rank stands out.
    missing: what remains unknown, and why; reasons that name a next step come first. commands: commands to run next.
    others: cases that share an attribute with this one and have no cause of their own here.
    """

    case: str
    figures: tuple[Verdict, ...]
    good_run: str | None
    bad_run: str
    line: str
    is_likely: bool
    changes: tuple[Change, ...]
    time: StepChange | None
    traces: TraceChange | None
    standout: Standout | None
    missing: tuple[str, ...]
    commands: tuple[str, ...]
    others: tuple[str, ...] = ()


# When a night is judged: one line, stored as long as the change is open


def with_causes(
    history: History, verdicts: Sequence[Verdict], after: Mapping[SeriesKey, KnownSeries]
) -> tuple[list[Verdict], dict[SeriesKey, KnownSeries]]:
    """Return a night's verdicts with the causes of worse figures, and the states that store these causes.

    A cause is searched for when a change is first reported, and again when later nights confirm it and date it better.
    after: the states after the night, with the causes from before it.
    """
    new_verdicts: list[Verdict] = []
    states = dict(after)
    blames: dict[tuple[object, ...], Blame] = {}  # Figures of one run share their cause.
    for verdict in verdicts:
        state = states[verdict.key].state
        blame = state.blame
        is_well = verdict.outcome not in BAD and state.open is None and state.detector.alert is None
        # The change comes on top of an open one, whose cause stays until later nights confirm this one.
        is_further = verdict.outcome in BAD and state.open is not None and verdict.since_ns != state.open.since_ns
        of_open = blame
        if verdict.outcome in BAD:
            if blame is None or verdict.is_new or is_further:
                key = (verdict.run, *_onset(verdict), verdict.key.metric in _OF_STEPS)
                if key not in blames:
                    blames[key] = _blame(history, verdict)
                blame = blames[key]
            attribution, line = _attributed(verdict, state.attribution, blame.cause)
            verdict = msgspec.structs.replace(
                verdict, good_run=blame.good_run, bad_run=blame.bad_run, cause=line, attribution=attribution
            )
        elif is_well:
            blame = None
        state_blame = of_open if is_further else blame
        if state_blame != state.blame:
            states[verdict.key] = states[verdict.key].with_state(msgspec.structs.replace(state, blame=state_blame))
        new_verdicts.append(verdict)
    return new_verdicts, states


def _attributed(verdict: Verdict, pairs: Attribution | None, cause: str) -> tuple[Attribution | None, str]:
    """Return the attribution of the change, and the cause including it. Pairs from before the change do not count."""
    _, low_ns, _ = _onset(verdict)
    if pairs is None or pairs.night_ns < low_ns:
        return None, cause
    return pairs, cut(f"{attribution_words(pairs)}; {cause}")


def _blame(history: History, verdict: Verdict) -> Blame:
    """Return the runs of a change and its likely cause in one line."""
    try:
        evidence = _find(history, verdict, runs_folder=None)
    except Misuse as error:  # A run that this version cannot read must not keep the night from being judged.
        return Blame(good_run=None, bad_run=verdict.run, cause=cut(f"unknown: {error}"))
    good_run = None if evidence.good is None else evidence.good.run
    return Blame(good_run=good_run, bad_run=evidence.bad.run, cause=evidence.likely.line)


# When somebody asks: everything that is known


def explain(
    history: History,
    verdicts: Iterable[Verdict],
    groups: Iterable[Group],
    runs_folder: Path,
    *,
    is_whole: bool,
    has_traces: bool = True,
) -> tuple[Cause, ...]:
    """Return the causes of worse figures, largest change first.

    runs_folder: where to search for run folders that have moved. is_whole: also return the causes of cases that share
    an attribute with a reported one, and more than `MOST_CAUSES` causes. has_traces: also compare the traces in the run
    folders.
    """
    by_case: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.outcome in BAD:
            by_case.setdefault((verdict.key.case, verdict.key.series), []).append(verdict)
    ordered = sorted(
        by_case, key=lambda case: (-max(abs((verdict.change_ratio or 1) - 1) for verdict in by_case[case]), case)
    )
    shared: dict[tuple[str, str], list[tuple[str, str]]] = {}
    if not is_whole:
        for group in groups:
            members = {(verdict.key.case, verdict.key.series) for verdict in group.alerts}
            of_group = [case for case in ordered if case in members]
            if group.shared is not None and len(of_group) > 1:
                shared[of_group[0]] = of_group[1:]
        behind = {case for cases in shared.values() for case in cases}
        ordered = [case for case in ordered if case not in behind or case in shared][:MOST_CAUSES]
    return tuple(
        _cause(
            history,
            by_case[case],
            runs_folder,
            tuple(dict.fromkeys(other for other, _ in shared.get(case, ()))),
            has_traces=has_traces,
        )
        for case in ordered
    )


def _cause(
    history: History, figures: Sequence[Verdict], runs_folder: Path, others: tuple[str, ...], *, has_traces: bool
) -> Cause:
    # A step time says more than memory does.
    verdict = next((verdict for verdict in figures if verdict.key.metric in _OF_STEPS), figures[0])
    cause = Cause(
        case=verdict.key.case,
        figures=tuple(figures),
        good_run=verdict.good_run,
        bad_run=verdict.bad_run or verdict.run,
        line=verdict.cause or "",
        is_likely=False,
        changes=(),
        time=None,
        traces=None,
        standout=None,
        missing=(),
        commands=(f"observatory diagnose {verdict.bad_run or verdict.run}",),
        others=others,
    )
    try:
        evidence = _find(history, verdict, runs_folder=runs_folder)
    except Misuse as error:
        return replace(cause, line=cause.line or cut(f"unknown: {error}"), missing=(str(error),))
    good, bad, missing = evidence.good, evidence.bad, list(evidence.missing)
    traces: TraceChange | None = None
    if has_traces and good is not None and verdict.key.metric in _OF_STEPS:
        watched = None if bad.watched is None else bad.watched.name
        compared = trace_change(_folder(good, runs_folder), _folder(bad, runs_folder), watched=watched)
        if isinstance(compared, str):
            missing.append(compared)
        else:
            traces = compared
    standout = find_standout(good, bad)
    if isinstance(standout, str):
        missing.append(standout)
    if isinstance(evidence.time, StepChange):
        missing += dict.fromkeys(f"parts of the step: {why}" for why in evidence.time.absent.values())
    # The line from when the night was judged stays, though runs and folders may have gone since.
    line = cause.line or evidence.likely.line
    compare = () if good is None else (f"observatory compare {good.run} {bad.run}",)
    return replace(
        cause,
        good_run=None if good is None else good.run,
        bad_run=bad.run,
        line=line,
        is_likely=line.startswith(LIKELY),
        changes=evidence.changes,
        time=evidence.time if isinstance(evidence.time, StepChange) else None,
        traces=traces,
        standout=None if isinstance(standout, str) else standout,
        missing=tuple(sorted(missing, key=lambda why: _NEXT_MOVE.search(why) is None)),
        commands=(*compare, f"observatory diagnose {bad.run}"),
    )


# The runs of a change, and what they show


def _find(history: History, verdict: Verdict, *, runs_folder: Path | None) -> _Evidence:
    """Return the runs before and after the change, and what changed between them.

    Raises:
        Misuse: a run of the history cannot be read.
    """
    good, bad = _runs(history, verdict)
    onset_ns = verdict.started_ns if verdict.since_ns is None else verdict.since_ns
    is_time = verdict.key.metric in _OF_STEPS
    if good is None:
        why = f"the history has no run of the series before {day_of(onset_ns)}"
        return _Evidence(
            good=None,
            bad=bad,
            changes=(),
            time=None,
            likely=Likely(line=cut(f"unknown: {why}"), change=None),
            missing=(f"what changed: {why}",),
        )
    past = _readings(history, verdict.key, bad)
    reading_of = {reading.run: reading for reading in past}
    missing = []
    readings = []
    for summary in (good, bad):
        reading = reading_of.get(summary.run) or _reading(history, summary)
        if reading.machine is None:
            missing.append(f"the machine of {summary.run} cannot be read: only hosts and commit are compared")
        folder = _folder(summary, runs_folder)
        nodes = {} if folder is None else other_machines(folder)
        if len(summary.hosts) > 1 and not nodes:
            missing.append(f"machines of {summary.run} except the first: its folder has no machine<k>.json")
        readings.append(replace(reading, nodes=nodes))
    changes = changes_between(readings[0], readings[1], past)
    tree = tree_words(readings[0], readings[1])
    is_redefined = series_of(good.case, good.hardware) != series_of(bad.case, bad.hardware)
    is_time = is_time and (good.case.model, good.case.ranks) == (bad.case.model, bad.case.ranks)
    time = step_change(*_with_further_runs(history, verdict.key, good, bad)) if is_time else None
    if isinstance(time, str):
        missing.append(f"where the time went: {time}")
    return _Evidence(
        good=good,
        bad=bad,
        changes=changes,
        time=time,
        likely=redefinition(definition_words(good, bad), changes, time, tree)
        if is_redefined
        else likely(changes, time, onset_ns, tree),
        missing=tuple(missing),
    )


def _onset(verdict: Verdict) -> tuple[int, int, int]:
    """Return the Unix time of the first night of the change, and the ends of its interval, as far as known."""
    since_ns = verdict.started_ns if verdict.since_ns is None else verdict.since_ns
    low_ns = since_ns if verdict.since_low_ns is None else min(verdict.since_low_ns, since_ns)
    high_ns = since_ns if verdict.since_high_ns is None else max(verdict.since_high_ns, since_ns)
    return since_ns, low_ns, high_ns


def _runs(history: History, verdict: Verdict) -> tuple[Summary | None, Summary]:
    """Return the last good run and the first run that is certainly bad, by the interval of the onset.

    If no run precedes the interval, the last run before the likeliest night counts as good. A night under suspicion is
    not good. Creep has no onset: the run of the accepted level is good, and tonight's run is bad. If a verdict already
    names its runs, these are returned.
    """
    if verdict.bad_run is not None:
        return (None if verdict.good_run is None else history.find(verdict.good_run)), history.find(verdict.bad_run)
    since_ns, low_ns, high_ns = _onset(verdict)
    at = RUNS.c.started_ns
    newest, oldest = (at.desc(), RUNS.c.id.desc()), (at, RUNS.c.id)
    if verdict.outcome == "creep":
        accepted = load_accepted(history, verdict.key.suite).get(verdict.key)
        of_level = None if accepted is None else _one_run(history, verdict.key, RUNS.c.id == accepted.run, newest)
        of_level = of_level or _one_run(history, verdict.key, at <= since_ns, newest)  # Its run may be pruned.
        return (None if of_level is None else history.find(of_level)), history.find(verdict.run)
    judged = GATE_VERDICTS.c
    doubted = select(judged.run).where(
        *(judged[name] == value for name, value in verdict.key.row.items()), judged.outcome.in_(_DOUBTED)
    )
    is_good = RUNS.c.id.not_in(doubted)
    good = _one_run(history, verdict.key, is_good & (at < low_ns), newest)
    good = good or _one_run(history, verdict.key, is_good & (at < since_ns), newest)
    bad = _one_run(history, verdict.key, (at >= high_ns) & (at <= verdict.started_ns), oldest)
    return (None if good is None else history.find(good)), history.find(bad or verdict.run)


def _with_further_runs(
    history: History, key: SeriesKey, good: Summary, bad: Summary
) -> tuple[list[Summary], list[Summary]]:
    """Return the good run with runs of earlier nights, and the bad run with its reruns, to have more trials."""
    of_case = (RUNS.c.suite == key.suite, RUNS.c.suite_case == key.case, RUNS.c.series == key.series)
    member = bad.purpose.member
    earlier = select(RUNS.c.id).where(*_of_series(key), RUNS.c.started_ns < good.started_ns)
    reruns = select(RUNS.c.id).where(
        *of_case, RUNS.c.outcome == "done", RUNS.c.is_rerun == 1, RUNS.c.suite_run == (member.id if member else None)
    )
    sides = []
    for first, query in ((good, earlier), (bad, reruns)):
        with history.transaction() as connection:
            newest = query.order_by(RUNS.c.started_ns.desc(), RUNS.c.id.desc()).limit(GOOD_NIGHTS - 1)
            ids = list(connection.scalars(newest))
        side = [first]
        for name in ids:
            with suppress(Misuse):  # Skipping an unreadable run only means fewer trials.
                side.append(history.find(name))
        sides.append(side)
    return sides[0], sides[1]


def _of_series(key: SeriesKey) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for the runs of a series that ended well, without reruns."""
    return (
        RUNS.c.suite == key.suite,
        RUNS.c.suite_case == key.case,
        RUNS.c.series == key.series,
        RUNS.c.outcome == "done",
        RUNS.c.is_rerun.is_(None) | (RUNS.c.is_rerun == 0),
    )


def _one_run(history: History, key: SeriesKey, condition: ColumnElement[bool], order: Sequence[Any]) -> str | None:
    query = select(RUNS.c.id).where(*_of_series(key), condition).order_by(*order).limit(1)
    with history.transaction() as connection:
        run: str | None = connection.scalar(query)
        return run


_COLUMNS = (RUNS.c.id, RUNS.c.started_ns, RUNS.c.machine_json, RUNS.c.hosts, RUNS.c.commit_id)


def _readings(history: History, key: SeriesKey, bad: Summary) -> list[Reading]:
    """Return the readings of the nights up to the bad run, oldest first."""
    query = select(*_COLUMNS).where(*_of_series(key), RUNS.c.started_ns <= bad.started_ns)
    with history.transaction() as connection:
        rows = connection.execute(query.order_by(RUNS.c.started_ns.desc()).limit(NIGHTS_COUNTED + 1)).all()
    return [_reading_of(row) for row in reversed(rows)]


def _reading(history: History, summary: Summary) -> Reading:
    """Return the reading of one run, which may be older than the counted nights."""
    with history.transaction() as connection:
        return _reading_of(connection.execute(select(*_COLUMNS).where(RUNS.c.id == summary.run)).one())


def _reading_of(row: Any) -> Reading:
    machine: Machine | None = None
    with suppress(msgspec.DecodeError, RecursionError):  # `_find` reports it for the compared runs.
        machine = msgspec.json.decode(row.machine_json, type=Machine)
    return Reading(
        run=row.id,
        started_ns=row.started_ns,
        machine=machine,
        hosts=tuple((row.hosts or "").split()),
        commit=row.commit_id,
    )


def _folder(summary: Summary, runs_folder: Path | None) -> Path | None:
    """Return the run's folder, from its old path or from `runs_folder`; None if it is gone."""
    stored = Path(summary.folder)
    if stored.is_dir():
        return stored
    return None if runs_folder is None else found_again(summary.run, summary.folder, runs_folder)
