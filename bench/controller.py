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
from bench.looks import NO_LOOKS, Looks
from bench.machine import Machine
from bench.purpose import ONE_RUN, Purpose
from bench.summary import Summary


@dataclass(slots=True)
class _Underway:
    """One run and how it stands. Until all its trials are done it counts as interrupted."""

    run: runs.Run
    fault: Fault | None
    ceiling_flops_per_second: float | None = None
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
    """What came of the cases, in their order, until it is kept.

    runs: whose folders stay locked until `close`, so that nobody else takes them for abandoned.
    is_interrupted: a person ended the work.
    """

    summaries: tuple[Summary, ...]
    runs: tuple[runs.Run, ...]
    is_interrupted: bool = False

    def close(self) -> None:
        """Give the runs' folders back."""
        for run in self.runs:
            run.close()


def _no_ceiling(case: Case) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """How trials are carried out, whatever they measure.

    limit_s: for one trial. keep_traces: beside the Timelines. looks: of their ranks, beside the measured steps.
    store: where the runs will be kept. purpose: what they are for.
    ceiling_of: the FLOP/s of the fastest matrix product measured where a case runs, None where nobody measured one.
    """

    limit_s: float
    keep_traces: bool = False
    looks: Looks = NO_LOOKS
    store: str | None = None
    purpose: Purpose = ONE_RUN
    ceiling_of: Callable[[Case], float | None] = _no_ceiling


Watch = Callable[[Case, int, int], None]
"""Told the case, its trial and the steps its slowest rank has finished."""


def measure(
    cases: Sequence[tuple[Case, Fault | None]],
    *,
    engine: Engine,
    machine: Machine,
    folder: Path,
    conduct: Conduct,
    watch: Watch,
) -> Measured:
    """Run all trials of all cases, taking turns; what was completed is kept, whatever happens.

    folder: where the run folders are made. conduct: of every trial.

    Raises:
        InfrastructureFailed: a run folder cannot be made.
    """
    underway = [
        _Underway(
            runs.begin(case, machine, folder, fault, conduct.store, conduct.purpose), fault, conduct.ceiling_of(case)
        )
        for case, fault in cases
    ]
    failure: InfrastructureFailed | None = None
    is_interrupted = False
    try:
        for trial in range(max(one.run.case.trials for one in underway)):
            for one in underway:
                if trial < one.run.case.trials and not one.has_failed:
                    _run_trial(one, trial, engine, conduct, watch)
    except KeyboardInterrupt:
        is_interrupted = True
    except InfrastructureFailed as error:
        failure = error
    if is_interrupted or failure is not None:
        _mark_unfinished(underway, failure)
    engine.stop()  # So that no rank writes to a log any more.
    summaries = tuple(runs.summarise(one.run.folder, one.outcome, one.cause) for one in underway)
    return Measured(summaries=summaries, runs=tuple(one.run for one in underway), is_interrupted=is_interrupted)


def _run_trial(one: _Underway, trial: int, engine: Engine, conduct: Conduct, watch: Watch) -> None:
    case = one.run.case

    def progress(message: Progress) -> None:
        watch(case, message.trial, message.steps)

    watch(case, trial, 0)
    ended = engine.run(
        TrialOrder(
            run=one.run.id,
            trial=trial,
            case=case,
            folder=str(one.run.folder),
            limit_s=conduct.limit_s,
            keep_trace=conduct.keep_traces,
            looks=conduct.looks,
            ceiling_flops_per_second=one.ceiling_flops_per_second,
            fault=one.fault,
        ),
        progress,
    )
    one.take(ended.outcome, ended.cause)


def _mark_unfinished(underway: Sequence[_Underway], failure: InfrastructureFailed | None) -> None:
    for one in underway:
        if one.outcome == "done" or one.has_failed:
            continue
        if failure is None:
            one.cause = Cause(kind="interrupted", rank=None, step=None, text="a person or a signal ended it")
        else:
            one.outcome = "failed"
            one.cause = Cause(kind="agent", rank=None, step=None, text=str(failure))
