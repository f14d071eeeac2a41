"""Verdicts of the gate at /metrics: the current verdict on each figure of every suite in the history.

Shows what `observatory check` has judged; it only reads the history, and judges nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from bench.errors import InfrastructureFailed, Misuse
from bench.gate.gated import figure_words
from bench.gate.missing import missing_in
from bench.gate.standing import Judged, hardware_of, judged_suites, standing_verdicts
from bench.gate.verdicts import BAD, SeriesKey, Verdict, load_accepted, load_states
from bench.store.history import History
from bench.store.suite_record import SuiteRecord
from collectors.metrics.gate import (
    ACCEPTED_CHANGE,
    ACCEPTED_EFFICIENCY,
    SUITE_MISSING,
    SUITE_NIGHT,
    VERDICT,
    VERDICT_CAUSE,
    VERDICT_CHANGE,
    VERDICT_CHANGE_HIGH,
    VERDICT_CHANGE_LOW,
    VERDICT_NIGHT,
    VERDICT_SINCE,
)
from collectors.metrics.metric import Sample
from collectors.prometheus.exposition import Owned

NIGHTS_READ = 50
"""How many of a suite's newest runs are read to find what its night lacks."""
NEWEST_READ = 5
"""How many of a suite's newest runs are read each time; the last ended one is among them."""
_MISSING = ("vanished", "stopped")
"""What no other metric reports: the metrics of suites have failures and suites that did not run."""


class StandingVerdicts:
    """The current verdicts. on_notice: called for each suite whose verdicts cannot be read."""

    what = "verdicts"

    def __init__(self, *, on_notice: Callable[[str], None]) -> None:
        self._on_notice = on_notice
        self._read: dict[str, tuple[Judged, SuiteRecord | None]] = {}
        self._by_suite: dict[str, tuple[Sample, ...]] = {}

    def samples(self) -> Iterator[Owned]:
        """Yield the verdicts as last read from the history."""
        for samples in self._by_suite.values():
            for sample in samples:
                yield sample, {}

    def read(self, history: History) -> None:
        """Read the suites that were judged since the last read."""
        judged = judged_suites(history, time.time_ns())
        for suite in self._read.keys() - judged.keys():
            del self._read[suite], self._by_suite[suite]
        for suite, so_far in judged.items():
            now = so_far, _last_ended(history.suite_runs(NEWEST_READ, suite))  # A night may have nothing to judge.
            if self._read.get(suite) != now:
                try:
                    self._by_suite[suite] = tuple(_of_suite(history, suite, so_far.suite_run))
                except (InfrastructureFailed, Misuse) as error:
                    self._on_notice(f"verdicts of suite {suite} are no longer updated: {error}")
                else:
                    self._read[suite] = now


def _last_ended(records: Sequence[SuiteRecord]) -> SuiteRecord | None:
    return next((record for record in records if record.outcome != "running"), None)


def _of_suite(history: History, suite: str, suite_run: str) -> Iterator[Sample]:
    known = load_states(history, suite)
    verdicts = standing_verdicts(history, suite, suite_run, known)
    accepted = load_accepted(history, suite)
    hardware = hardware_of(history, (verdict.run for verdict in verdicts))
    # Machines of one kind that run one suite share a series; for each figure, the newest run counts.
    newest: dict[SeriesKey, Verdict] = {}
    for verdict in sorted(verdicts, key=lambda verdict: (verdict.started_ns, verdict.run)):
        newest[verdict.key] = verdict
    for key, verdict in newest.items():
        figure = {
            "suite": suite,
            "case": key.case,
            "ranks": str(verdict.ranks),
            "hardware": hardware.get(verdict.run, ""),
            "series": key.series,
            "figure": figure_words(key.metric, verdict.labels),
        }
        yield from _of_figure(verdict, figure)
        if (level := accepted.get(key)) is not None:
            yield ACCEPTED_CHANGE.at(verdict.value / level.level - 1, **figure)
            if verdict.is_efficiency:
                yield ACCEPTED_EFFICIENCY.at(level.level, **figure)
    records = history.suite_runs(NIGHTS_READ, suite)
    if (night := _last_ended(records)) is not None:
        yield SUITE_NIGHT.at(night.started_ns / 1e9, suite=suite)
        missing = missing_in(history, records, known.values(), now_ns=time.time_ns())
        for kind in _MISSING:
            # A figure is named "case: name".
            cases = {each.what.partition(":")[0] for each in missing if each.kind == kind}
            yield SUITE_MISSING.at(len(cases), suite=suite, kind=kind)


def _of_figure(verdict: Verdict, figure: Mapping[str, str]) -> Iterator[Sample]:
    yield VERDICT.at(1, **figure, verdict=verdict.shown)
    yield VERDICT_NIGHT.at(verdict.started_ns / 1e9, **figure)
    for metric, ratio in (
        (VERDICT_CHANGE, verdict.change_ratio),
        (VERDICT_CHANGE_LOW, verdict.low),
        (VERDICT_CHANGE_HIGH, verdict.high),
    ):
        if ratio is not None:
            yield metric.at(ratio - 1, **figure)
    if verdict.since_ns is not None:
        yield VERDICT_SINCE.at(verdict.since_ns / 1e9, **figure)
    if verdict.outcome in BAD:
        yield VERDICT_CAUSE.at(
            verdict.started_ns / 1e9,
            **figure,
            run=verdict.run,
            good_run=verdict.good_run or "",
            cause=verdict.cause or "",
        )
