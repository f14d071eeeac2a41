"""Store a watched run when it ends: its summary, the compacted files of its ranks, and its place in the history."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.errors import InfrastructureFailed, say
from bench.rank.messages import FailureCause
from bench.results.watched.compact import compact
from bench.store import run_dir
from bench.store.history import History
from bench.store.suite_record import CaseOutcome, SuiteRecord
from bench.store.summary import Summary
from collectors.files import in_words

UNKNOWN_END = FailureCause(kind="interrupted", rank=None, step=None, text="nobody recorded how the command ended")


def keep_watched(folder: Path, store_url: str | None) -> Summary:
    """Summarise a watched run whose command has ended, and store it in its folder and in the history.

    If the history cannot be written, this is reported and the run stays in its folder; `observatory show` adds it
    later.

    Raises:
        Misuse: watch.json cannot be read, or no process of the command reported.
        InfrastructureFailed: the run's folder cannot be written.
    """
    run_dir.settle_watched(folder)
    summary = run_dir.summarise(folder.absolute(), "interrupted", UNKNOWN_END)
    run_dir.save(summary)
    try:  # Only now: the summary needs each step.
        if notes := compact(folder):
            summary = replace(summary, notes=(*summary.notes, *notes))
            run_dir.save(summary)
    except OSError as error:
        say(f"the ranks' files in {folder} were not compacted: {in_words(error)}")
    try:
        with History(store_url) as history:
            add_watched(summary, history)
    except InfrastructureFailed as error:
        say(f"run {summary.run} is only in its folder: {error}; `observatory show` adds it to the history later")
    return summary


def add_watched(summary: Summary, history: History) -> None:
    """Add a watched run to the history, as a night of its own for the gate.

    Raises:
        InfrastructureFailed: the history cannot be written.
    """
    history.add(summary, run_dir.machine_of(Path(summary.folder)))
    history.save_suite(record_of(summary))


def record_of(summary: Summary) -> SuiteRecord:
    """Return the suite run that represents a watched run; its suite has only this case, and no period."""
    member, outcome = summary.purpose.member, summary.outcome
    assert member is not None, "a watched run is a member of its name's suite"
    case_outcome: CaseOutcome = outcome
    return SuiteRecord(
        id=summary.run,
        suite=member.suite,
        started_ns=summary.started_ns,
        progress_ns=summary.ended_ns,
        ended_ns=summary.ended_ns,
        # A run that a person stopped has its figures, and cannot be resumed.
        outcome="failed" if outcome in ("failed", "timed_out") else "done",
        cases={case_outcome: 1},
        total=1,
        failed=(member.case,) if outcome in ("failed", "timed_out") else (),
        folder=summary.folder,
    )
