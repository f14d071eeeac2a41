"""Measures cases side by side: their trials take turns, so that what disturbs the machine disturbs them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import run as runs
from bench.case import Case
from bench.engines.messages import Cause, Outcome, Progress, TrialOrder
from bench.engines.roster import Engine
from bench.errors import InfrastructureFailed
from bench.faults import Fault
from bench.machine import Machine
from bench.summary import Summary


@dataclass(slots=True)
class _Underway:
    """One run and how it stands. Until all its trials are done it counts as interrupted."""

    run: runs.Run
    fault: Fault | None
    outcome: Outcome = "interrupted"
    cause: Cause | None = None
    trials_done: int = 0

    @property
    def has_failed(self) -> bool:
        return self.cause is not None

    def take(self, outcome: Outcome, cause: Cause | None) -> None:
        if outcome != "done":
            self.outcome, self.cause = outcome, cause
            return
        self.trials_done += 1
        if self.trials_done == self.run.case.trials:
            self.outcome = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of the cases, in their order. is_interrupted: a person ended the work."""

    summaries: tuple[Summary, ...]
    is_interrupted: bool = False


Watch = Callable[[Case, int, int], None]
"""Told the case, its trial and the steps its slowest rank has finished."""


def measure(
    cases: Sequence[tuple[Case, Fault | None]],
    *,
    engine: Engine,
    machine: Machine,
    folder: Path,
    limit_s: float,
    watch: Watch,
) -> Measured:
    """Run all trials of all cases, taking turns; what was completed is kept, whatever happens.

    folder: where the run folders are made. limit_s: for one trial.

    Raises:
        InfrastructureFailed: a run folder cannot be made.
    """
    underway = [_Underway(runs.begin(case, machine, folder, fault), fault) for case, fault in cases]
    failure: InfrastructureFailed | None = None
    is_interrupted = False
    try:
        for trial in range(max(one.run.case.trials for one in underway)):
            for one in underway:
                if trial < one.run.case.trials and not one.has_failed:
                    _run_trial(one, trial, engine, limit_s, watch)
    except KeyboardInterrupt:
        is_interrupted = True
    except InfrastructureFailed as error:
        failure = error
    if is_interrupted or failure is not None:
        _mark_unfinished(underway, failure)
    engine.stop()  # So that no rank writes to a log any more.
    summaries = tuple(_summarise(one) for one in underway)
    return Measured(summaries=summaries, is_interrupted=is_interrupted)


def _run_trial(one: _Underway, trial: int, engine: Engine, limit_s: float, watch: Watch) -> None:
    case = one.run.case

    def progress(message: Progress) -> None:
        watch(case, message.trial, message.steps)

    watch(case, trial, 0)
    ended = engine.run(
        TrialOrder(
            run=one.run.id, trial=trial, case=case, folder=str(one.run.folder), limit_s=limit_s, fault=one.fault
        ),
        progress,
    )
    one.take(ended.outcome, ended.cause)


def _mark_unfinished(underway: Sequence[_Underway], failure: InfrastructureFailed | None) -> None:
    for one in underway:
        if one.outcome == "done" or one.has_failed:
            continue
        if failure is None:
            one.cause = Cause(kind="interrupted", rank=None, step=None, text="interrupted")
        else:
            one.outcome = "failed"
            one.cause = Cause(kind="agent", rank=None, step=None, text=str(failure))


def _summarise(one: _Underway) -> Summary:
    try:
        return runs.summarise(one.run.folder, one.outcome, one.cause)
    finally:
        one.run.close()
