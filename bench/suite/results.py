"""The results of a suite run, read from disk: how its cases ended (ledger), and what they measured (runs)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bench.errors import Misuse
from bench.machine.doctor import fleet
from bench.store import run_dir
from bench.store.files import read_small
from bench.store.suite_record import CaseOutcome, SuiteOutcome, SuiteRecord
from bench.store.summary import Summary
from bench.suite.file import Lever
from bench.suite.folder import SUITE
from bench.suite.ledger import LEDGER, CaseState, fold, is_written, read_ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """How one case ended.

    outcome: None if it has not ended. reason: why it did not end well, or did not run. run: the run that measured it.
    summary: its results; None if it did not run or its files are gone.
    """

    name: str
    outcome: CaseOutcome | None
    reason: str | None
    run: str | None
    summary: Summary | None

    @property
    def is_expected_failure(self) -> bool:
        """Whether it is a fire drill that ended as expected."""
        return self.outcome == "done" and self.summary is not None and self.summary.outcome != "done"

    @property
    def words(self) -> str:
        """The outcome for display."""
        if self.is_expected_failure:
            return "failed as expected"
        return "missing" if self.outcome is None else self.outcome.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """How a suite run ended. outcome: "running" while a process works on it.

    cases: in the suite's order. levers: those that the suite judges. took_s: time in which processes worked on it; None
    if unknown. folder: None if it is not on this machine; then cases that did not run are not listed. preflight: a line
    for each finding, missing check or change on a node before the run.
    """

    id: str
    suite: str
    outcome: SuiteOutcome
    started_ns: int
    ended_ns: int | None
    took_s: float | None
    cases: tuple[CaseResult, ...]
    counts: Mapping[CaseOutcome, int]
    total: int
    folder: Path | None
    levers: tuple[Lever, ...] = ()
    preflight: tuple[str, ...] = ()

    def named(self, *outcomes: CaseOutcome | None) -> list[CaseResult]:
        """Return the cases with these outcomes."""
        return [case for case in self.cases if case.outcome in outcomes]


def read_result(folder: Path, *, has_summaries: bool = True) -> SuiteResult:
    """Read the result of the suite run in this folder.

    has_summaries: also read what the cases measured.

    Raises:
        Misuse: its ledger cannot be read or is empty, or a newer version wrote it.
    """
    state = fold(read_ledger(folder / LEDGER).records)
    if state.begun is None:
        raise Misuse(f"{folder} holds no suite run: its ledger is empty; delete the folder")
    declared = _declared(folder)
    names = dict.fromkeys(case.name for case in declared.cases) | dict.fromkeys(state.cases)
    runs, owner = folder.parent.parent if has_summaries else None, folder.stat().st_uid
    cases = tuple(_case_result(name, state.case(name), runs, owner) for name in names)
    is_running = state.outcome is None and is_written(folder)
    last_ns = state.sessions[-1][1]
    counts: dict[CaseOutcome, int] = {}
    for case in cases:
        if case.outcome is not None:
            counts[case.outcome] = counts.get(case.outcome, 0) + 1
    return SuiteResult(
        id=folder.name,
        suite=state.begun.suite,
        outcome="running" if is_running else state.outcome or "interrupted",  # No end: its runner died.
        started_ns=state.begun.time_ns,
        ended_ns=None if is_running else last_ns,
        took_s=state.took_s,
        cases=cases,
        counts=counts,
        total=len(cases),
        folder=folder,
        levers=declared.levers,
        preflight=_preflight(folder),
    )


def _preflight(folder: Path) -> tuple[str, ...]:
    result = fleet.read(folder)
    if isinstance(result, str):
        return (result,)
    if result is None or not (result.findings or result.absent or any(node.changed for node in result.nodes)):
        return ()
    return tuple(f"pre-flight: {line}" for line in fleet.lines_of(result))


def result_of_record(record: SuiteRecord, summaries: Sequence[Summary] = ()) -> SuiteResult:
    """Return the result of a suite run whose folder is not here, as far as the history has it.

    summaries: of its runs, newest first.
    """
    members = [(run, run.purpose.member) for run in reversed(summaries)]
    of_case = {member.case: run for run, member in members if member is not None and not member.is_rerun}
    return SuiteResult(
        id=record.id,
        suite=record.suite,
        outcome=record.outcome,
        started_ns=record.started_ns,
        ended_ns=record.ended_ns,
        took_s=None,
        cases=tuple(
            CaseResult(
                name=name,
                outcome=summary.outcome,
                reason=None if summary.cause is None else summary.cause.text,
                run=summary.run,
                summary=summary,
            )
            for name, summary in of_case.items()
        ),
        counts=record.cases,
        total=record.total,
        folder=None,
    )


def with_summaries(result: SuiteResult, summaries: Iterable[Summary]) -> SuiteResult:
    """Return the result with these summaries for ended cases that have none because their run folders are gone."""
    by_run = {summary.run: summary for summary in summaries}
    return replace(
        result,
        cases=tuple(
            replace(case, summary=by_run.get(case.run))
            if case.summary is None and case.outcome is not None and case.run is not None
            else case
            for case in result.cases
        ),
    )


class _Case(msgspec.Struct):
    name: str


class _Declared(msgspec.Struct):
    """The parts of suite.json that are read: all cases, including those not yet in the ledger, and the levers."""

    cases: tuple[_Case, ...] = ()
    levers: tuple[Lever, ...] = ()


def _declared(folder: Path) -> _Declared:
    with suppress(OSError, Misuse, msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode(read_small(folder / SUITE, follows_link=False), type=_Declared)
    return _Declared()


def _case_result(name: str, state: CaseState, runs: Path | None, owner: int) -> CaseResult:
    summary = None
    if runs is not None and state.run is not None and state.outcome is not None:
        with suppress(Misuse, FileNotFoundError):  # Its folder was removed.
            if (runs / state.run).lstat().st_uid != owner:
                raise Misuse(f"{runs / state.run} belongs to another user than the suite run")
            summary = run_dir.load(runs / state.run)
    return CaseResult(name=name, outcome=state.outcome, reason=state.reason, run=state.run, summary=summary)
