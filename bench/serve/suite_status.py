"""Suites at /metrics, from the history: outcomes of their runs and cases, the newest start, and what runs now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from bench.gate.missing import runs_by_case
from bench.store.history import History
from bench.store.suite_record import FAILED, CaseOutcome, SuiteOutcome, SuiteRecord
from collectors.metrics.metric import Sample
from collectors.metrics.suites import (
    SUITE_CASE_FAILURE,
    SUITE_CASE_INFO,
    SUITE_CASES,
    SUITE_LAST_CASES,
    SUITE_LAST_END,
    SUITE_LAST_PROGRESS,
    SUITE_LAST_START,
    SUITE_PERIOD,
    SUITE_RUNS,
)
from collectors.prometheus.exposition import Owned

NEWEST_READ = 50
"""Runs read each time: active and resumed runs are among the newest."""
ALL_READ_S = 600.0
"""Time between two reads of all runs: an older run may have been resumed, or come from another node."""
MOST_RUNS = 1_000_000
LEFT_OUT_S = 300.0
"""How long after the last read a run is shown as running; later it is unknown whether it still runs."""

MOST_FAILURES = 20
"""How many failed cases of a run are shown one by one; hundreds of failures have one reason."""
_MOST_LETTERS = 160

ENDED_OUTCOMES: tuple[SuiteOutcome, ...] = tuple(outcome for outcome in get_args(SuiteOutcome) if outcome != "running")
CASE_OUTCOMES: tuple[CaseOutcome, ...] = get_args(CaseOutcome)


class SuiteStatus:
    """The runs of suites in a history. clock_s: a monotonic clock."""

    what = "suites"

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._records: dict[str, SuiteRecord] = {}
        self._failures: dict[str, _Failures] = {}
        self._ends = _Ends()
        self._all_read_s: float | None = None
        self._read_s = clock_s()

    def samples(self) -> Iterator[Owned]:
        """Yield the suites as last read from the history."""
        is_fresh = self._clock_s() - self._read_s < LEFT_OUT_S
        failures = [
            sample
            for run in _shown_runs(self._records.values(), has_active=is_fresh)
            if (failures_of_run := self._failures.get(run.id)) is not None
            for sample in failures_of_run.samples
        ]
        newest = _newest(self._records.values(), has_active=is_fresh)
        for sample in (*self._ends.samples(), *newest, *failures):
            yield sample, {}

    def read(self, history: History) -> None:
        """Read the runs that may have changed in the history."""
        now_s = self._clock_s()
        is_all = self._all_read_s is None or now_s - self._all_read_s >= ALL_READ_S
        read = history.suite_runs(MOST_RUNS if is_all else NEWEST_READ)
        self._read_s = now_s
        if is_all:
            self._all_read_s = now_s
        for record in read:
            self._records[record.id] = record
            self._ends.count(record)
        self._failures = {
            run.id: self._failures_of(run, history)
            for run in _shown_runs(self._records.values(), has_active=True)
            if any(run.cases.get(outcome) for outcome in FAILED)
        }

    def _failures_of(self, run: SuiteRecord, history: History) -> _Failures:
        """Return what failed in a run; as read before, if no more of its cases have ended since."""
        known = self._failures.get(run.id)
        if known is not None and known.cases == run.cases:
            return known
        return _Failures(cases=run.cases, samples=tuple(_failed_cases(run, history)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failures:
    """What failed in a run of a suite. cases: how many of its cases had ended by then, by outcome."""

    cases: Mapping[CaseOutcome, int]
    samples: tuple[Sample, ...]


def _failed_cases(record: SuiteRecord, history: History) -> Iterator[Sample]:
    """Yield each failed case with its run, the rank that failed first, and what happened to the rank."""
    # A case may have failed in its suite although its run is done: a fire drill that did not fail.
    failed = [
        (case, run)
        for case, run in runs_by_case(history, record).items()
        if (case in record.failed if record.failed is not None else run.outcome in FAILED)
    ]
    for case, run in failed[:MOST_FAILURES]:
        cause = run.cause
        # Without the path of the last lines, which is useful only on the node.
        words = [] if cause is None else cause.text.partition("; its last lines are in ")[0].split()
        yield SUITE_CASE_FAILURE.at(
            1,
            suite=record.suite,
            run=record.id,
            case=case,
            case_run=run.run,
            outcome=run.outcome if run.outcome in FAILED else "failed",
            rank="" if cause is None or cause.rank is None else str(cause.rank),
            cause=" ".join(words)[:_MOST_LETTERS],
        )


class _Ends:
    """Counts ends of runs and cases, so that no count ever falls.

    A run may be resumed, and its failed cases repeated: a run that ended as failed and then as done has ended twice,
    and counts as both. A process knows this only if it saw both ends. A process that starts later counts the last end
    of each run and case, and Prometheus takes the smaller count for a counter's reset.
    """

    def __init__(self) -> None:
        self._suites: dict[str, str] = {}  # By run.
        self._runs: set[tuple[str, SuiteOutcome]] = set()
        self._cases: dict[tuple[str, CaseOutcome], int] = {}  # The highest count of each run and outcome.

    def count(self, record: SuiteRecord) -> None:
        """Count a run in its present state."""
        self._suites[record.id] = record.suite
        if record.outcome != "running":
            self._runs.add((record.id, record.outcome))
        for outcome, cases in record.cases.items():
            self._cases[record.id, outcome] = max(cases, self._cases.get((record.id, outcome), 0))

    def samples(self) -> Iterator[Sample]:
        """Yield the counts of each suite, including zeros, because a rate needs a value to grow from."""
        suites = sorted(set(self._suites.values()))
        runs = {(suite, outcome): 0 for suite in suites for outcome in ENDED_OUTCOMES}
        cases = {(suite, outcome): 0 for suite in suites for outcome in CASE_OUTCOMES}
        for run, ended in self._runs:
            runs[self._suites[run], ended] += 1
        for (run, outcome), number in self._cases.items():
            cases[self._suites[run], outcome] += number
        for (suite, ended), number in runs.items():
            yield SUITE_RUNS.at(number, suite=suite, outcome=ended)
        for (suite, outcome), number in cases.items():
            yield SUITE_CASES.at(number, suite=suite, outcome=outcome)


def _shown_runs(records: Iterable[SuiteRecord], *, has_active: bool) -> list[SuiteRecord]:
    """Return the newest ended run of each suite. has_active: also the active runs."""
    by_suite = _by_suite(records)
    ended = [next((run for run in reversed(runs) if run.outcome != "running"), None) for runs in by_suite.values()]
    # A run that stands still counts as active, because its runner may have died. If it made no progress before its
    # suite was started again, it was abandoned, and nobody will resume it.
    active = [
        run
        for runs in by_suite.values()
        for run in runs
        if has_active and run.outcome == "running" and runs[-1].started_ns <= run.progress_ns
    ]
    return [*(run for run in ended if run is not None), *active]


def _by_suite(records: Iterable[SuiteRecord]) -> dict[str, list[SuiteRecord]]:
    """Return the runs of each suite, oldest first."""
    by_suite: dict[str, list[SuiteRecord]] = {}
    for record in sorted(records, key=lambda record: (record.started_ns, record.id)):
        by_suite.setdefault(record.suite, []).append(record)
    return by_suite


def _newest(records: Iterable[SuiteRecord], *, has_active: bool) -> Iterator[Sample]:
    """Yield the samples of each suite's newest runs. has_active: also of active runs."""
    for run in _shown_runs(records, has_active=has_active):
        yield from _run_samples(run)
    for suite, runs in _by_suite(records).items():
        newest = runs[-1]
        yield SUITE_LAST_START.at(newest.started_ns / 1e9, suite=suite)
        if newest.period_s is not None:
            yield SUITE_PERIOD.at(newest.period_s, suite=suite)
        ended = [run for run in runs if run.outcome != "running"]
        if ended:
            yield SUITE_LAST_END.at(_end_ns(ended[-1]) / 1e9, suite=suite)


def _end_ns(record: SuiteRecord) -> int:
    return record.progress_ns if record.ended_ns is None else record.ended_ns


def _run_samples(record: SuiteRecord) -> Iterator[Sample]:
    of_run = {"suite": record.suite, "run": record.id}
    cases: dict[str, int] = dict(record.cases.items())
    unfinished = max(0, record.total - sum(cases.values()))
    if record.outcome == "running":
        cases |= {"running": len(record.running), "waiting": max(0, unfinished - len(record.running))}
        yield SUITE_LAST_PROGRESS.at(record.progress_ns / 1e9, **of_run)
        for case in record.running:
            yield SUITE_CASE_INFO.at(1, **of_run, case=case)
    else:
        cases |= {"missing": unfinished} if unfinished else {}
        yield SUITE_LAST_PROGRESS.at(_end_ns(record) / 1e9, **of_run)
    for outcome, number in cases.items():
        yield SUITE_LAST_CASES.at(number, **of_run, outcome=outcome)
