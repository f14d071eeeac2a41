"""Judge the nights of a suite: each new run of the history against its series.

A night is one run of the suite. Its verdicts depend only on the nights before it and on its own reruns, so they are the
same whether it is judged at its end or weeks later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from sqlalchemy import func, or_, select

from bench.errors import InfrastructureFailed
from bench.gate.cause.definition import FindBefore, series_before
from bench.gate.causes import with_causes
from bench.gate.figure import DAY_NS, Figure
from bench.gate.gated import GatedValue, gated_values
from bench.gate.verdicts import (
    AcceptedLevel,
    KnownSeries,
    Raced,
    SeriesKey,
    Verdict,
    judged_runs,
    labels_of,
    load_accepted,
    load_states,
    save_night,
)
from bench.results.comparison import false_discovery
from bench.store.history import History
from bench.store.schema import RUNS
from bench.store.summary import Summary, series_of

RACES = 5
"""Most restarts of judging after another process has judged the same suite."""
FALSE_DISCOVERY_RATIO = 0.1
"""Share of a night's new alerts that may be false: people put up with one false alert in ten."""
LATE_NS = 30 * DAY_NS
"""How far back to search for runs that reached the history after a later night was judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteNight:
    """A run of the suite. runs, reruns: the runs of its cases, and their reruns, by case name."""

    suite_run: str
    runs: dict[str, list[Summary]]
    reruns: dict[str, list[Summary]]


def judge_nights(
    history: History, suite: str, *, now_ns: int | None = None, unfinished: Collection[str] = ()
) -> list[Verdict]:
    """Judge the nights that have no verdicts yet, oldest first; store and return the verdicts.

    now_ns: later runs are not judged. unfinished: ids of suite runs to judge only after they have ended.
    """
    all_verdicts: list[Verdict] = []
    for _ in range(RACES):
        known = _states(history, suite, now_ns)
        accepted = load_accepted(history, suite)
        try:
            for night in _unjudged(history, suite, known.values(), unfinished, now_ns):
                verdicts, after = judge_night(suite, night, known, accepted, series_before(history, known))
                verdicts, after = with_causes(history, verdicts, after)
                save_night(history, known, after.values(), verdicts)
                known |= {key: replace(series, revision=series.revision + 1) for key, series in after.items()}
                all_verdicts += verdicts
            return all_verdicts
        except Raced:  # Another process judges the same nights; its verdicts are not judged again.
            continue
    raise InfrastructureFailed(f"suite {suite} is being judged by other processes; try again")


def _states(history: History, suite: str, now_ns: int | None) -> dict[SeriesKey, KnownSeries]:
    """Return the series of the suite, each as of its last night until now.

    A night in the future was judged by a wrong clock, and must not prevent later nights from being judged.
    """
    known = load_states(history, suite)
    for key, series in known.items():
        if now_ns is not None and series.last_ns > now_ns:
            last_ns = max((time_ns for _, time_ns in series.state.nights if time_ns <= now_ns), default=0)
            known[key] = replace(series, last_ns=last_ns)
    return known


def suspected_cases(history: History, suite: str, suite_run: str) -> dict[str, bool]:
    """Return the cases of this suite run to measure again tonight, most suspicious first.

    These are cases that the detector suspects, including those that are already worse. The value says whether the
    case's scaling efficiency is suspected; if so, its baseline should also be measured again. Nothing is stored: the
    verdict follows when the reruns are done.
    """
    least: dict[str, float] = {}
    is_efficiency: dict[str, bool] = {}
    for verdict, _ in judge_without_keeping(history, suite, suite_run):
        if verdict.is_suspected and verdict.p_value is not None:
            case = verdict.key.case
            least[case] = min(verdict.p_value, least.get(case, 1.0))
            is_efficiency[case] = is_efficiency.get(case, False) or verdict.is_efficiency
    return {case: is_efficiency[case] for case in sorted(least, key=lambda case: least[case])}


def judge_without_keeping(history: History, suite: str, suite_run: str) -> list[tuple[Verdict, KnownSeries]]:
    """Return a suite run's verdicts as of now, each with the state its series would have; store nothing."""
    with history.transaction() as connection:
        tonight_ns = connection.scalar(select(func.max(RUNS.c.started_ns)).where(RUNS.c.suite_run == suite_run))
    known = _states(history, suite, tonight_ns)
    tonight: list[tuple[Verdict, KnownSeries]] = []
    for night in _unjudged(history, suite, known.values(), (), None):
        verdicts, after = judge_night(suite, night, known, {}, series_before(history, known))
        known |= after
        if night.suite_run == suite_run:
            tonight += [(verdict, after[verdict.key]) for verdict in verdicts]
    return tonight


# The nights that are not judged yet


def _unjudged(
    history: History, suite: str, known: Iterable[KnownSeries], unfinished: Collection[str], now_ns: int | None
) -> Iterator[SuiteNight]:
    """Yield the nights with runs that have no verdict, oldest first."""
    since_ns = max((series.last_ns for series in known), default=LATE_NS) - LATE_NS
    is_done = [RUNS.c.suite == suite, RUNS.c.outcome == "done", RUNS.c.started_ns >= since_ns]
    if now_ns is not None:
        is_done.append(RUNS.c.started_ns <= now_ns)
    query = select(RUNS.c.id, RUNS.c.suite_run, RUNS.c.started_ns).where(
        *is_done, or_(RUNS.c.is_rerun.is_(None), RUNS.c.is_rerun == 0)
    )
    with history.transaction() as connection:
        rows = connection.execute(query.order_by(RUNS.c.started_ns, RUNS.c.id)).all()
    judged = judged_runs(history, suite, since_ns)
    by_night: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.id not in judged and row.suite_run not in unfinished:
            by_night[row.suite_run].append(row.id)
    for suite_run, ids in by_night.items():
        runs: dict[str, list[Summary]] = defaultdict(list)
        reruns: dict[str, list[Summary]] = defaultdict(list)
        wanted = frozenset(ids)
        for summary in reversed(history.runs(1_000_000, suite=suite, suite_run=suite_run)):
            member = summary.purpose.member
            if member is None or summary.outcome != "done":
                continue
            if member.is_rerun:
                reruns[member.case].append(summary)
            elif summary.run in wanted:
                runs[member.case].append(summary)
        yield SuiteNight(suite_run=suite_run, runs=dict(runs), reruns=dict(reruns))


# One night


def judge_night(
    suite: str,
    night: SuiteNight,
    known: dict[SeriesKey, KnownSeries],
    accepted: Mapping[SeriesKey, AcceptedLevel],
    find_before: FindBefore,
) -> tuple[list[Verdict], dict[SeriesKey, KnownSeries]]:
    """Judge the runs of a night; return the verdicts, and the states of their series afterwards.

    known: states of all series, replaced by the new ones, since both states of 20,000 series would take too much
    memory. accepted: levels that people have accepted, against which slow creep is judged. find_before: finds the
    previous series with whose last level a new one is compared.
    """
    verdicts: list[Verdict] = []
    after: dict[SeriesKey, KnownSeries] = {}
    for case, runs in night.runs.items():
        reruns = night.reruns.get(case, [])
        for summary in runs:
            series = series_of(summary.case, summary.hardware)
            for value in gated_values(summary):
                key = SeriesKey(
                    suite=suite,
                    case=case,
                    series=series,
                    metric=value.metric.name,
                    labels=labels_of(value.labels),
                )
                rerun_values = _rerun_values(reruns, summary, value)
                figure = Figure(key, value, summary, night.suite_run, rerun_values, find_before, accepted.get(key))
                verdict, series_after = figure.judge(known.get(key))
                verdicts.append(verdict)
                after[key] = known[key] = series_after
    chance_alerts = _chance_alerts(verdicts)
    for place, verdict in enumerate(verdicts):
        if (verdict.key, verdict.run) in chance_alerts:
            verdicts[place] = msgspec.structs.replace(
                verdict,
                outcome="suspicion",
                reason="reruns agree, but among so many series a change of this size can be chance",
            )
            after[verdict.key] = _without_alert(after[verdict.key])
    return verdicts, after


def _rerun_values(reruns: Sequence[Summary], summary: Summary, value: GatedValue) -> list[GatedValue]:
    """Return the same figure from reruns of the same series."""
    return [
        again
        for rerun in reruns
        if series_of(rerun.case, rerun.hardware) == series_of(summary.case, summary.hardware)
        for again in gated_values(rerun)
        if (again.metric.name, again.labels) == (value.metric.name, value.labels)
    ]


def _chance_alerts(verdicts: Sequence[Verdict]) -> frozenset[tuple[SeriesKey, str]]:
    """Return this night's new alerts that do not count as discoveries among all its series.

    A further change of a figure that is already worse is not included: the figure would be worse without it.
    """
    tested = [(verdict, verdict.p_value) for verdict in verdicts if verdict.p_value is not None]
    adjusted = false_discovery([p_value for _, p_value in tested])
    return frozenset(
        (verdict.key, verdict.run)
        for (verdict, _), share in zip(tested, adjusted, strict=True)
        if verdict.is_new
        and verdict.reruns
        and verdict.outcome in ("regression", "improvement")
        and share > FALSE_DISCOVERY_RATIO
    )


def _without_alert(known: KnownSeries) -> KnownSeries:
    state = known.state
    detector = msgspec.structs.replace(state.detector, alert=None)
    return known.with_state(msgspec.structs.replace(state, detector=detector, is_worse=False))
