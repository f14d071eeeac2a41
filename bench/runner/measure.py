"""Measures the trials of cases in turn, so that disturbances of the machine affect all cases alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.case import NO_INSTRUMENTATION, ONE_RUN, Case, InstrumentationOptions, Purpose
from bench.engines.registry import Engine
from bench.errors import InfrastructureFailed
from bench.machine.machine import Machine
from bench.rank.fault_injection import Fault
from bench.rank.messages import Cause, Outcome, TrialEnded, TrialOrder
from bench.runs import run_dir
from bench.runs.resume import resume
from bench.runs.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Summaries of the cases, in their order, before they are kept.

    runs: their folders stay locked until `close`, so that no other process takes them for abandoned.
    is_interrupted: a person ended the work.
    lost_beside: ids of the runs that the engine's failure ended in a trial of another one.
    lost_engine: the engine failed, and was stopped.
    """

    summaries: tuple[Summary, ...]
    runs: tuple[run_dir.Run, ...]
    is_interrupted: bool = False
    lost_beside: frozenset[str] = frozenset()
    lost_engine: bool = False

    def close(self) -> None:
        """Unlock the runs' folders."""
        for run in self.runs:
            run.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSettings:
    """How trials are carried out, whatever they measure.

    limit_s: for one trial. keep_traces: keep traces beside the Timelines. instrumentation: in steps of its own.
    store: URL of the history that will keep the runs. purpose: what the runs are for.
    ceiling_of: returns the FLOP/s of the fastest matrix product measured where a case runs; None if there is none.
    """

    limit_s: float
    keep_traces: bool = False
    instrumentation: InstrumentationOptions = NO_INSTRUMENTATION
    store: str | None = None
    purpose: Purpose = ONE_RUN
    ceiling_of: Callable[[Case], float | None] = lambda case: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a case's ranks run: an engine, and the machine that its ranks report."""

    engine: Engine
    machine: Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOrder:
    """A case to measure.

    fault: to inject. resumes: the folder of a run that is to go on with the trials that it lacks; None begins a run.
    place: in place of the engine and machine that the other cases share, as for ranks of another checkout.
    """

    case: Case
    fault: Fault | None = None
    settings: TrialSettings
    resumes: Path | None = None
    place: Place | None = None


def alike(cases: Iterable[tuple[Case, Fault | None]], settings: TrialSettings) -> list[CaseOrder]:
    """Return the orders of cases that are all measured with the same settings."""
    return [CaseOrder(case=case, fault=fault, settings=settings) for case, fault in cases]


Watch = Callable[[Case, int, int], None]
"""Called with the case, its trial, and how many steps its slowest rank has finished."""


class Listener:
    """Is told what happens to the cases, and here does nothing. Each call returns before measuring goes on."""

    def begun(self, order: CaseOrder, run: run_dir.Run) -> None:
        """The run's folder is there, and its first trial comes."""

    def trial_ended(self, order: CaseOrder, run: run_dir.Run, ended: TrialEnded) -> None:
        """A trial of the run has ended, well or not."""


def measure(
    orders: Sequence[CaseOrder],
    *,
    engine: Engine,
    machine: Machine,
    folder: Path,
    watch: Watch,
    listener: Listener = Listener(),  # noqa: B008  # It has no state.
    is_counterbalanced: bool = False,
) -> Measured:
    """Run all trials of all cases in turn; summaries have what was completed, whatever happens.

    folder: where run folders are created.
    is_counterbalanced: every other trial takes the cases in reverse, A B B A A B B A, so that a machine that becomes
        slower evenly slows down no side more than another.

    Raises:
        InfrastructureFailed: a run folder cannot be created.
        Misuse: a run that is to go on was measured on another machine, or goes on already; see `resume`.
    """
    active: list[_ActiveRun] = []
    shared = Place(engine=engine, machine=machine)
    try:
        for order in orders:
            active.append(_begin(order, order.place or shared, folder))
        for one in active:
            listener.begun(one.order, one.run)
    except BaseException:
        for one in active:
            one.run.close()
        raise
    failure: InfrastructureFailed | None = None
    is_interrupted = False
    present: _ActiveRun | None = None
    lost_beside: set[str] = set()
    try:
        for trial in range(max(one.run.case.trials for one in active)):
            for one in reversed(active) if is_counterbalanced and trial % 2 else active:
                if one.trials_done <= trial < one.run.case.trials and one.cause is None:
                    present = one
                    listener.trial_ended(one.order, one.run, _run_trial(one, trial, watch))
    except KeyboardInterrupt:
        is_interrupted = True
    except InfrastructureFailed as error:
        failure = error
    not_received = {one.run.id: one.place.engine.collect(one.run.id) for one in active}
    if is_interrupted or failure is not None:
        for one in active:
            if one.outcome == "done" or one.cause is not None:
                continue
            if failure is None:
                one.cause = Cause(kind="interrupted", rank=None, step=None, text="a person or a signal ended it")
            else:
                one.outcome = "failed"
                one.cause = Cause(kind="agent", rank=None, step=None, text=str(failure))
                if one is not present:
                    lost_beside.add(one.run.id)
        for one in active:
            one.place.engine.stop()  # Afterwards no rank writes to a log any more.
    summaries = (run_dir.summarise(one.run.folder, one.outcome, one.cause) for one in active)
    # Trials of a run that went on need not stand beside those of the others.
    beside = [one.run.id for one in active if one.order.resumes is None]
    return Measured(
        summaries=tuple(
            replace(
                one,
                notes=(*one.notes, *not_received[one.run]),
                in_turn_with=tuple(other for other in beside if other != one.run) if one.run in beside else (),
            )
            for one in summaries
        ),
        runs=tuple(one.run for one in active),
        is_interrupted=is_interrupted,
        lost_beside=frozenset(lost_beside),
        lost_engine=failure is not None,
    )


@dataclass(slots=True)
class _ActiveRun:
    """One run and its state. Until all its trials are done, its outcome is "interrupted"."""

    run: run_dir.Run
    order: CaseOrder
    place: Place
    ceiling_flops_per_second: float | None = None
    outcome: Outcome = "interrupted"
    cause: Cause | None = None
    trials_done: int = 0


def _begin(order: CaseOrder, place: Place, folder: Path) -> _ActiveRun:
    case, settings = order.case, order.settings
    trials_done = 0
    if order.resumes is None:
        run = run_dir.begin(case, place.machine, folder, order.fault, settings.store, settings.purpose)
    else:
        run, trials_done = resume(order.resumes, place.machine)
    outcome: Outcome = "done" if trials_done >= case.trials else "interrupted"
    return _ActiveRun(run, order, place, settings.ceiling_of(case), outcome=outcome, trials_done=trials_done)


def _run_trial(one: _ActiveRun, trial: int, watch: Watch) -> TrialEnded:
    case, settings = one.run.case, one.order.settings
    watch(case, trial, 0)
    ended = one.place.engine.run(
        TrialOrder(
            run=one.run.id,
            trial=trial,
            case=case,
            limit_s=settings.limit_s,
            keep_trace=settings.keep_traces,
            instrumentation=settings.instrumentation,
            ceiling_flops_per_second=one.ceiling_flops_per_second,
            fault=one.order.fault,
        ),
        lambda progress: watch(case, progress.trial, progress.steps),
    )
    if ended.outcome == "interrupted":
        # Nobody here asked for it: the agent heard nothing, as where this process was stopped or its machine slept.
        raise InfrastructureFailed("the agent ended the trial" if ended.cause is None else ended.cause.text)
    if ended.outcome != "done":
        one.outcome, one.cause = ended.outcome, ended.cause
        return ended
    one.trials_done += 1
    if one.trials_done == case.trials:
        one.outcome = "done"
    return ended
