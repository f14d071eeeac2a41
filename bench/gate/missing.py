"""What a night lacks: a suite that did not run, a case that failed or vanished, a figure that stopped.

Missing data is an alert of its own: a gate that judges only existing data would be green on a night on which nothing
ran.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from bench.errors import Misuse, plural
from bench.gate.cause.definition import definition_words
from bench.gate.gated import gated_metrics, why_step_not_gated, without_logarithms
from bench.gate.verdicts import KnownSeries, labels_of
from bench.store.history import History
from bench.store.suite_record import CHOICE, FAILED, SuiteRecord
from bench.store.summary import Summary, series_of

Kind = Literal[
    "not_run",
    "stalled",
    "interrupted",
    "failed",
    "skipped",
    "vanished",
    "stopped",
    "late",
    "clock",
    "left_out",
    "unfinished",
    "new_series",
    "not_positive",
    "uneven",
]
"""late, clock: runs that began before a judged night, or in the future. left_out: left out by request, for example by a
budget. unfinished: an interrupted run of a suite without a period. new_series: earlier nights cannot be used to judge
it. not_positive: a figure that was never judged because one of its trials is 0 or less. uneven: the step of a watched
run whose work differs from step to step. The last five are no alerts.
"""
LATE_RATIO = 1.25
"""A suite counts as not run this many periods after its last beginning; the alert SuiteNotRun uses the same ratio."""
STALLED_NS = 3600 * 10**9
"""How long an active suite run may make no progress."""
NIGHTS_SEEN = 3
"""Number of earlier nights that define what a night should have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Something that is missing. what: the suite, a case, or a figure of a case. reason: as a sentence."""

    kind: Kind
    suite: str
    what: str
    reason: str

    @property
    def is_alert(self) -> bool:
        """Whether somebody must look."""
        return self.kind not in ("left_out", "unfinished", "new_series", "not_positive", "uneven")


def day_of(time_ns: int) -> str:
    """Return the UTC day of a Unix time."""
    return f"{datetime.fromtimestamp(time_ns / 1e9, tz=UTC):%Y-%m-%d}"


def with_day(reason: str, number: int, times: Mapping[int, int]) -> str:
    """Return the reason with a night's day in place of `{night}`. times: Unix times of nights by number."""
    # The number of a night with an unknown time itself counts days since 1970.
    return reason.replace("{night}", day_of(times.get(number, number * 86_400 * 10**9)))


def is_going_on(record: SuiteRecord, now_ns: int) -> bool:
    """Whether the suite run is still active, according to its record."""
    return record.outcome == "running" and now_ns - record.progress_ns < STALLED_NS


def may_be_resumed(record: SuiteRecord, records: Sequence[SuiteRecord], now_ns: int) -> bool:
    """Whether the suite run may still be finished, so that it is not judged yet.

    It has not ended well, no later one has begun, and its period (a day, if it has none) has not passed.
    """
    period_ns = (86_400 if record.period_s is None else record.period_s) * 1e9
    is_last = all(other.started_ns <= record.started_ns for other in records)
    return record.outcome in ("running", "interrupted") and is_last and now_ns - record.started_ns < period_ns


def missing_in(
    history: History,
    records: Sequence[SuiteRecord],
    known: Iterable[KnownSeries],
    *,
    now_ns: int,
) -> tuple[Missing, ...]:
    """Return what is missing in the newest night of a suite.

    records: of its runs, newest first; at least one. known: the suite's series after that night.
    """
    newest = records[0]
    ended = next((record for record in records if not is_going_on(record, now_ns)), None)
    return (*_late(newest, now_ns), *(() if ended is None else _of_night(history, ended, records, known)))


def _late(newest: SuiteRecord, now_ns: int) -> Iterator[Missing]:
    waited_ns = now_ns - newest.started_ns
    if newest.period_s is not None and waited_ns > LATE_RATIO * newest.period_s * 1e9:
        hours = f"{waited_ns / 3.6e12:.0f} h"
        yield Missing(
            kind="not_run",
            suite=newest.suite,
            what=newest.suite,
            reason=f"it last began {hours} ago, but should begin every {newest.period_s / 3600:.0f} h",
        )


def _of_night(
    history: History, night: SuiteRecord, records: Sequence[SuiteRecord], known: Iterable[KnownSeries]
) -> Iterator[Missing]:
    if night.outcome == "running":
        reason = (
            f"{night.id} is active but has made no progress since {day_of(night.progress_ns)}; its runner may be dead"
        )
        yield Missing(kind="stalled", suite=night.suite, what=night.suite, reason=reason)
        return
    if night.outcome == "interrupted":
        again = f"`observatory suite run {night.suite} --resume {night.id}` continues it"
        if night.suite == CHOICE:
            again = f"`observatory choose --resume {night.id}` with the same options continues it"
        reason = f"{night.id} was interrupted; {again}"
        kind: Kind = "unfinished" if night.period_s is None else "interrupted"
        yield Missing(kind=kind, suite=night.suite, what=night.suite, reason=reason)
        return
    before = [record for record in records if record.started_ns < night.started_ns][:NIGHTS_SEEN]
    runs = runs_by_case(history, night)
    yield from _cases(night, runs, set().union(*(runs_by_case(history, record) for record in before)))
    since_ns = min((record.started_ns for record in before), default=night.started_ns)
    yield from _figures(history, night, runs, known, since_ns)


def runs_by_case(history: History, night: SuiteRecord) -> dict[str, Summary]:
    """Return the run of each case of the night, without reruns."""
    runs = {}
    for summary in reversed(history.runs(1_000_000, suite=night.suite, suite_run=night.id)):
        member = summary.purpose.member
        if member is not None and not member.is_rerun:
            runs[member.case] = summary
    return runs


def _cases(night: SuiteRecord, runs: Mapping[str, Summary], before: Collection[str]) -> Iterator[Missing]:
    """Yield the cases that failed, and those that earlier nights have but this night lacks."""
    failed_names = [name for name, run in runs.items() if run.outcome in FAILED and night.has_failed(name)]
    # A fire drill that should have failed but ran to its end has failed, although its run is done.
    failed_names += [name for name in night.failed or () if name not in failed_names and name in runs]
    for name in failed_names:
        run = runs[name]
        if run.outcome in FAILED:
            reason = run.outcome.replace("_", " ") + ("" if run.cause is None else f": {run.cause.text}")
        else:
            reason = (
                f"its run is {run.outcome}, which is not how it should end; `observatory suite show {night.id}` shows"
                " why"
            )
        yield Missing(kind="failed", suite=night.suite, what=name, reason=reason)
    failed_count = sum(night.cases.get(outcome, 0) for outcome in FAILED)
    if failed_count > len(failed_names):
        unknown = [name for name in night.failed or () if name not in failed_names]
        names = f" ({', '.join(unknown)})" if unknown else ""
        reason = f"{plural(failed_count - len(failed_names), 'more case')} failed without a run in the history{names}"
        yield Missing(kind="failed", suite=night.suite, what=night.suite, reason=reason)
    if skipped := night.cases.get("skipped", 0):
        reason = f"{plural(skipped, 'case')} cannot run there; `observatory suite show {night.id}` shows why"
        yield Missing(kind="skipped", suite=night.suite, what=night.suite, reason=reason)
    for name in sorted(set(before) - set(runs)):
        if name in night.left_out:
            yield Missing(kind="left_out", suite=night.suite, what=name, reason="a budget or --only left it out")
        else:
            reason = f"earlier nights have it, {night.id} does not"
            yield Missing(kind="vanished", suite=night.suite, what=name, reason=reason)


def _figures(
    history: History, night: SuiteRecord, runs: Mapping[str, Summary], known: Iterable[KnownSeries], since_ns: int
) -> Iterator[Missing]:
    """Yield figures that a case measured since then and no longer measures, and cases that belong to a new series."""
    by_case: dict[str, list[KnownSeries]] = {}
    for figure in known:
        by_case.setdefault(figure.key.case, []).append(figure)
    for name, run in runs.items():
        series = series_of(run.case, run.hardware)
        of_case = by_case.get(name, [])
        same = [figure for figure in of_case if figure.key.series == series]
        why_uneven = why_step_not_gated(run)
        if why_uneven is not None:
            yield Missing(
                kind="uneven", suite=night.suite, what=f"{name}: step", reason=f"it is not judged: {why_uneven}"
            )
        if run.outcome == "done":
            gated = {metric.name for metric in gated_metrics(run)}
            zeros = {(metric.name, labels_of(labels)) for metric, labels in without_logarithms(run)}
            for figure in same:
                if (
                    figure.key.metric in gated
                    and figure.last_run != run.run
                    and since_ns <= figure.last_ns < run.started_ns
                ):
                    is_zero = (figure.key.metric, figure.key.labels) in zeros
                    why = "one of its trials is not positive and cannot be judged; " if is_zero else ""
                    yield Missing(
                        kind="stopped",
                        suite=night.suite,
                        what=_figure_name(name, figure.key.metric, figure.key.labels),
                        reason=f"{why}it was last measured on {day_of(figure.last_ns)}",
                    )
            for metric, labels in sorted(zeros - {(figure.key.metric, figure.key.labels) for figure in same}):
                yield Missing(
                    kind="not_positive",
                    suite=night.suite,
                    what=_figure_name(name, metric, labels),
                    reason="one of its trials is 0 or less, which has no logarithm, so it is not judged",
                )
        others = [figure for figure in of_case if figure.key.series != series]
        if others and all(len(figure.state.nights) <= 1 for figure in same):
            last = max(others, key=lambda figure: figure.last_ns)
            yield Missing(
                kind="new_series",
                suite=night.suite,
                what=name,
                reason=f"it is judged from the start: its definition changed ({_difference(history, last, run)})",
            )


def _figure_name(case: str, metric: str, labels: str) -> str:
    return f"{case}: {metric} {'' if labels == '{}' else labels}".rstrip()


def _difference(history: History, last: KnownSeries, run: Summary) -> str:
    """Return why the run belongs to a different series than the nights before it."""
    try:
        before = history.find(last.last_run)
    except Misuse:
        return f"how is unknown: run {last.last_run}, the last of the nights before, is no longer in the history"
    return definition_words(before, run)
