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
from bench.rank.messages import FailureCause, TrialEnded, TrialOrder, TrialOutcome
from bench.store import run_dir
from bench.store.resume import resume
from bench.store.summary import StoredPrediction, Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRuns:
    """Summaries of the cases, in their order, before they are stored. Use it in a `with`, or close it.

    runs: their folders stay locked until `close`, so that no other process takes them for abandoned.
    is_interrupted: the user stopped the work.
    lost_beside: ids of the runs that the engine's failure ended while another run's trial was running.
    lost_engine: the engine failed and was stopped.
    """

    summaries: tuple[Summary, ...]
    runs: tuple[run_dir.Run, ...]
    is_interrupted: bool = False
    lost_beside: frozenset[str] = frozenset()
    lost_engine: bool = False

    def __enter__(self) -> MeasuredRuns:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the runs' folders."""
        for run in self.runs:
            run.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSettings:
    """How trials are carried out, whatever they measure.

    limit_s: for one trial. keep_traces: keep traces in addition to Timelines. instrumentation: runs in extra steps.
    purpose: the purpose of the runs.
    """

    limit_s: float
    keep_traces: bool = False
    instrumentation: InstrumentationOptions = NO_INSTRUMENTATION
    purpose: Purpose = ONE_RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePlace:
    """Where a case's ranks run: an engine, and the machine that its ranks report."""

    engine: Engine
    machine: Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOrder:
    """A case to measure.

    title: its name in displays; None: the case's own title. fault: to inject. resumes: the folder of a run whose
    missing trials should be measured; None begins a new run. place: replaces the engine and machine that the other
    cases share, for example for ranks of another checkout.
    """

    case: Case
    title: str | None = None
    fault: Fault | None = None
    settings: TrialSettings
    resumes: Path | None = None
    place: CasePlace | None = None


def alike(cases: Iterable[tuple[Case, Fault | None]], settings: TrialSettings) -> list[CaseOrder]:
    """Return orders for cases that share their settings."""
    return [CaseOrder(case=case, fault=fault, settings=settings) for case, fault in cases]


class Listener:
    """Is notified of events of the cases; this one ignores them. Measuring waits for each call to return."""

    def begun(self, order: CaseOrder, run: run_dir.Run) -> None:
        """The run's folder exists, and its first trial is next."""

    def progressed(self, order: CaseOrder, trial: int, steps: int) -> None:
        """The slowest rank of the trial has finished this many steps."""

    def trial_ended(self, order: CaseOrder, run: run_dir.Run, ended: TrialEnded) -> None:
        """A trial of the run has ended, successfully or not."""

    def round_ended(self, rounds: int, collect: Callable[[], None]) -> None:
        """Each continuing run has this many trials. collect: brings the runs' logs to this machine."""

    def is_over(self, order: CaseOrder) -> bool:
        """Whether the run has as many trials as it needs; called before the first round and after each round."""
        return False


def measure(
    orders: Sequence[CaseOrder],
    *,
    engine: Engine,
    machine: Machine,
    folder: Path,
    store: str | None = None,
    ceiling_of: Callable[[Case, Machine], float | None] = lambda case, machine: None,
    prediction_of: Callable[[Case, Machine], StoredPrediction | None] = lambda case, machine: None,
    listener: Listener = Listener(),  # noqa: B008  # It has no state.
    is_counterbalanced: bool = False,
) -> MeasuredRuns:
    """Run all trials of all cases in turn; the summaries contain what was completed, whatever happens.

    folder: where run folders are created. store: URL of the history that will store the runs.
    ceiling_of: returns the FLOP/s of the fastest matrix product measured on a case's machine; None if unknown.
    listener: may end a run early; the run is then done with the trials that it has.
    prediction_of: returns the cost models' prediction of a new run; None if there is none. It is written into the run's
        folder before the first trial of any case, so that it cannot depend on a result. A resumed run keeps its first
        prediction.
    is_counterbalanced: every other trial takes the cases in reverse, A B B A A B B A, so that a machine that slows down
        steadily affects all cases equally.

    Raises:
        InfrastructureFailed: a run folder cannot be created.
        Misuse: a run to resume was measured on another machine, or is already running; see `resume`.
    """
    active: list[_RunState] = []
    shared = CasePlace(engine=engine, machine=machine)
    try:
        for order in orders:
            place = order.place or shared
            ceiling = ceiling_of(order.case, place.machine)
            prediction = None if order.resumes else prediction_of(order.case, place.machine)
            active.append(_begin(order, place, folder, store, ceiling, prediction))
        for state in active:
            listener.begun(state.order, state.run)
    except BaseException:
        for state in active:
            state.run.close()
        raise
    failure: InfrastructureFailed | None = None
    is_interrupted = False
    present: _RunState | None = None
    lost_beside: set[str] = set()
    not_received: dict[str, tuple[str, ...]] = {}

    def collect() -> None:
        """Bring the logs to this machine, and store the notes."""
        for state in active:
            not_received[state.run.id] = state.place.engine.collect(state.run.id) or not_received.get(state.run.id, ())

    try:
        _end_early(active, listener)
        for trial in range(max(state.run.case.trials for state in active)):
            is_measured = False
            for state in reversed(active) if is_counterbalanced and trial % 2 else active:
                if state.trials_done <= trial < state.run.case.trials and state.is_going_on:
                    present, is_measured = state, True
                    listener.trial_ended(state.order, state.run, _run_trial(state, trial, listener))
            if is_measured:
                listener.round_ended(trial + 1, collect)
                _end_early(active, listener)
    except KeyboardInterrupt:
        is_interrupted = True
    except InfrastructureFailed as error:
        failure = error
    collect()
    if is_interrupted or failure is not None:
        for state in active:
            if state.outcome == "done" or state.cause is not None:
                continue
            if failure is None:
                text = "the user or a signal ended it"
                state.cause = FailureCause(kind="interrupted", rank=None, step=None, text=text)
            else:
                state.outcome = "failed"
                state.cause = FailureCause(kind="agent", rank=None, step=None, text=str(failure))
                if state is not present:
                    lost_beside.add(state.run.id)
        for state in active:
            state.place.engine.stop()  # From here on no rank writes to a log.
    summaries = (run_dir.summarise(state.run.folder, state.outcome, state.cause) for state in active)
    # The trials of a resumed run were not necessarily measured in turn with the others'.
    interleaved = [state.run.id for state in active if state.order.resumes is None]
    return MeasuredRuns(
        summaries=tuple(
            replace(
                summary,
                notes=(*summary.notes, *not_received[summary.run]),
                in_turn_with=tuple(run for run in interleaved if run != summary.run)
                if summary.run in interleaved
                else (),
            )
            for summary in summaries
        ),
        runs=tuple(state.run for state in active),
        is_interrupted=is_interrupted,
        lost_beside=frozenset(lost_beside),
        lost_engine=failure is not None,
    )


@dataclass(slots=True)
class _RunState:
    """A run and how far it has come. Until all its trials are done, its outcome is "interrupted"."""

    run: run_dir.Run
    order: CaseOrder
    place: CasePlace
    ceiling_flops_per_second: float | None
    outcome: TrialOutcome = "interrupted"
    cause: FailureCause | None = None
    trials_done: int = 0
    is_ended_early: bool = False

    @property
    def is_going_on(self) -> bool:
        """Whether it needs further trials."""
        return self.cause is None and not self.is_ended_early


def _end_early(active: Sequence[_RunState], listener: Listener) -> None:
    """End the runs that need no further trial, and record in each how many trials it has."""
    for state in active:
        if state.is_going_on and state.outcome != "done" and listener.is_over(state.order):
            run_dir.change_trials(state.run.folder, state.trials_done)
            state.outcome, state.is_ended_early = "done", True


def _begin(
    order: CaseOrder,
    place: CasePlace,
    folder: Path,
    store: str | None,
    ceiling: float | None,
    prediction: StoredPrediction | None,
) -> _RunState:
    case, trials_done = order.case, 0
    if order.resumes is None:
        purpose = order.settings.purpose
        run = run_dir.begin(case, place.machine, folder, order.fault, store, purpose, prediction=prediction)
    else:
        run, trials_done = resume(order.resumes, place.machine)
        if run.case.trials < case.trials:  # It was ended early.
            run = replace(run, case=run_dir.change_trials(run.folder, case.trials))
    outcome: TrialOutcome = "done" if trials_done >= case.trials else "interrupted"
    return _RunState(run, order, place, ceiling, outcome=outcome, trials_done=trials_done)


def _run_trial(active: _RunState, trial: int, listener: Listener) -> TrialEnded:
    case, settings = active.run.case, active.order.settings
    listener.progressed(active.order, trial, 0)
    ended = active.place.engine.run(
        TrialOrder(
            run=active.run.id,
            trial=trial,
            case=case,
            limit_s=settings.limit_s,
            keep_trace=settings.keep_traces,
            instrumentation=settings.instrumentation,
            ceiling_flops_per_second=active.ceiling_flops_per_second,
            fault=active.order.fault,
        ),
        lambda progress: listener.progressed(active.order, progress.trial, progress.steps),
    )
    if ended.outcome == "interrupted":
        # The runner did not request this: the agent lost contact because this process was stopped or its machine slept.
        raise InfrastructureFailed("the agent ended the trial" if ended.cause is None else ended.cause.text)
    if ended.outcome != "done":
        active.outcome, active.cause = ended.outcome, ended.cause
        return ended
    active.trials_done += 1
    if active.trials_done == case.trials:
        active.outcome = "done"
    return ended
