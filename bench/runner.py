"""Measures the trials of cases, keeps the results in run folders and history, and adopts runs found on disk.

Trials of several cases alternate, so that disturbances of the machine affect all cases alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

from bench.analysis.scaling import Scaling, ScalingEfficiency, scaling_between, scaling_efficiency
from bench.case import NO_INSTRUMENTATION, ONE_RUN, Case, InstrumentationOptions, Purpose, one_rank_baseline
from bench.engines.local import Engine
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.machine import Machine
from bench.rank.fault_injection import Fault
from bench.rank.messages import Cause, Outcome, TrialOrder
from bench.runs import run_dir
from bench.runs.active_runs import ended_folders
from bench.runs.hardware_baselines import against_history
from bench.runs.history import History
from bench.runs.scaling_baseline import Point, curve_of, unlike
from bench.runs.summary import Summary
from collectors.errors import in_words
from collectors.metrics.results import RUN_TOKENS_PER_SECOND


@dataclass(slots=True)
class _ActiveRun:
    """One run and its state. Until all its trials are done, its outcome is "interrupted"."""

    run: run_dir.Run
    fault: Fault | None
    ceiling_flops_per_second: float | None = None
    outcome: Outcome = "interrupted"
    cause: Cause | None = None
    trials_done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Summaries of the cases, in their order, before they are kept.

    runs: their folders stay locked until `close`, so that no other process takes them for abandoned.
    is_interrupted: a person ended the work.
    """

    summaries: tuple[Summary, ...]
    runs: tuple[run_dir.Run, ...]
    is_interrupted: bool = False

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


Watch = Callable[[Case, int, int], None]
"""Called with the case, its trial, and how many steps its slowest rank has finished."""


def measure(
    cases: Sequence[tuple[Case, Fault | None]],
    *,
    engine: Engine,
    machine: Machine,
    folder: Path,
    settings: TrialSettings,
    watch: Watch,
) -> Measured:
    """Run all trials of all cases in turn; summaries have what was completed, whatever happens.

    folder: where run folders are created. settings: applies to every trial.

    Raises:
        InfrastructureFailed: a run folder cannot be created.
    """
    active = [
        _ActiveRun(
            run_dir.begin(case, machine, folder, fault, settings.store, settings.purpose),
            fault,
            settings.ceiling_of(case),
        )
        for case, fault in cases
    ]
    failure: InfrastructureFailed | None = None
    is_interrupted = False
    try:
        for trial in range(max(one.run.case.trials for one in active)):
            for one in active:
                if trial < one.run.case.trials and one.cause is None:
                    _run_trial(one, trial, engine, settings, watch)
    except KeyboardInterrupt:
        is_interrupted = True
    except InfrastructureFailed as error:
        failure = error
    if is_interrupted or failure is not None:
        for one in active:
            if one.outcome == "done" or one.cause is not None:
                continue
            if failure is None:
                one.cause = Cause(kind="interrupted", rank=None, step=None, text="a person or a signal ended it")
            else:
                one.outcome = "failed"
                one.cause = Cause(kind="agent", rank=None, step=None, text=str(failure))
    engine.stop()  # Afterwards no rank writes to a log any more.
    summaries = tuple(run_dir.summarise(one.run.folder, one.outcome, one.cause) for one in active)
    return Measured(summaries=summaries, runs=tuple(one.run for one in active), is_interrupted=is_interrupted)


def _run_trial(one: _ActiveRun, trial: int, engine: Engine, settings: TrialSettings, watch: Watch) -> None:
    case = one.run.case
    watch(case, trial, 0)
    ended = engine.run(
        TrialOrder(
            run=one.run.id,
            trial=trial,
            case=case,
            folder=str(one.run.folder),
            limit_s=settings.limit_s,
            keep_trace=settings.keep_traces,
            looks=settings.instrumentation,
            ceiling_flops_per_second=one.ceiling_flops_per_second,
            fault=one.fault,
        ),
        lambda progress: watch(case, progress.trial, progress.steps),
    )
    if ended.outcome != "done":
        one.outcome, one.cause = ended.outcome, ended.cause
        return
    one.trials_done += 1
    if one.trials_done == case.trials:
        one.outcome = "done"


BASELINES_SEEN = 20
"""How many of the newest runs of a baseline's case are searched for one that was measured like the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Summaries as they were kept, and the errors of places that could not keep one."""

    summaries: tuple[Summary, ...]
    failures: tuple[InfrastructureFailed, ...]


def persist(
    summaries: Sequence[Summary],
    machine: Machine,
    history: History,
    explicit_baseline: Summary | None,
    *,
    is_curve: bool = False,
) -> Kept:
    """Add scaling efficiency and comparisons with the history to each summary, and write all, even if one place fails.

    explicit_baseline: the one that a person named. Without it: one measured beside the run, else the newest one in the
    history that was measured like the run.
    is_curve: the summaries are of one command with several numbers of ranks. The first one is the baseline of the
    others, and no other is searched.
    """
    points = {point.summary.run: point for point in curve_of(summaries)} if is_curve and summaries else {}
    failures: list[InfrastructureFailed] = []
    kept: list[Summary] = []
    for summary in summaries:
        try:
            if summary.run in points:
                scaling, notes = _on_curve(points[summary.run], summaries[0])
            else:
                scaling, notes = _scaling(summary, machine, summaries, history, explicit_baseline)
            summary = replace(summary, scaling=scaling, notes=(*summary.notes, *notes))
            summary = against_history(summary, history)
        except InfrastructureFailed as error:  # The run is kept anyway, without what could not be read.
            failures.append(error)
        kept.append(summary)
        for write in (run_dir.save, partial(history.add, machine=machine)):
            try:
                write(summary)
            except InfrastructureFailed as error:
                failures.append(error)
    return Kept(summaries=tuple(kept), failures=tuple(failures))


def check_baseline(case: Case, baseline: Summary) -> None:
    """Refuse, before anything is started, a baseline that allows no scaling efficiency.

    Raises:
        Misuse: it has no complete trial, or is of another workload.
    """
    if not baseline.trials_done:
        raise Misuse(f"baseline {baseline.run} has no complete trial ({baseline.outcome}); choose one that is done")
    scaling_between(case, baseline.case)


def check_hardware(case: Case, machine: Machine, baseline: Summary) -> None:
    """Refuse a baseline that ran on other hardware, as soon as ranks have reported this machine.

    Raises:
        Misuse: it ran on other hardware.
    """
    hardware = machine.hardware(case.device)
    if baseline.hardware != hardware:
        raise Misuse(
            f"baseline {baseline.run} ran on {baseline.hardware}; this is {hardware}; choose one of this hardware"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredRuns:
    """What a search through a folder of runs added to the history.

    problems: a line for each folder left out. moved: new places of runs whose old folder no longer exists.
    """

    runs: tuple[Summary, ...]
    problems: tuple[str, ...]
    moved: tuple[Path, ...]

    def notices(self) -> tuple[str, ...]:
        """Return messages for a person, one line each."""
        return (*self.problems, *((f"{len(self.moved)} run(s) were found at another place",) if self.moved else ()))


def new_runs(
    folder: Path, known: Mapping[str, str], store: str | None, *, of_every_store: bool = False
) -> RecoveredRuns:
    """Return what `recover_runs` would change, without writing. known: the history's runs, with the folder of each."""
    found: list[Summary] = []
    problems: list[str] = []
    moved: list[Path] = []
    for run_folder in ended_folders(folder):
        stored = known.get(run_folder.name)
        if stored is not None:
            with _noting(run_folder, problems):
                again = run_dir.found_again(run_folder.name, stored, folder)
                moved += [] if again is None else [again]
            continue
        with _noting(run_folder, problems):
            file = run_dir.case_file(run_folder)
            if not of_every_store and file.store != run_dir.store_name(store):
                continue
            if file.run != run_folder.name:
                raise Misuse(f"it is a copy of run {file.run}; `observatory show {run_folder}` shows it")
            found.append(run_dir.load(run_folder))
    return RecoveredRuns(runs=tuple(found), problems=tuple(problems), moved=tuple(moved))


def recover_runs(folder: Path, history: History, store: str | None, *, of_every_store: bool = False) -> RecoveredRuns:
    """Add runs to the history that are missing in it: their runner died, or the folder or the history is new.

    A run that the history has is never replaced: only the new place of a moved folder is noted. No files are written
    but in the run's own folder.

    store: the history's URL as runs recorded it; runs of another store are skipped.
    of_every_store: include runs of other stores.
    """
    found = new_runs(folder, history.folders(), store, of_every_store=of_every_store)
    taken: list[Summary] = []
    problems = list(found.problems)
    for moved in found.moved:
        history.move(moved.name, str(moved))
    for summary in found.runs:
        run_folder = Path(summary.folder)
        with _noting(run_folder, problems):
            if not (run_folder / "summary.json").exists():
                run_dir.save(summary)
            history.add(summary, run_dir.machine_of(run_folder))
            taken.append(summary)
    return RecoveredRuns(runs=tuple(taken), problems=tuple(problems), moved=found.moved)


@contextmanager
def _noting(run_folder: Path, problems: list[str]) -> Iterator[None]:
    """On an error, leave the run's folder out and add a line that says why."""
    left_out = f"{run_folder} is left out of the history"
    try:
        yield
    except (Misuse, InfrastructureFailed) as error:
        problems.append(f"{left_out}: {error}")
    except Exception as error:  # noqa: BLE001  # One broken folder must not keep people from all others.
        problems.append(f"{left_out}: its files do not fit together ({in_words(error)})")


def _scaling(
    summary: Summary, machine: Machine, beside: Sequence[Summary], history: History, explicit_baseline: Summary | None
) -> tuple[tuple[ScalingEfficiency, ...], tuple[str, ...]]:
    """Return efficiencies and notes: against the named baseline, else those measured beside, else the history's."""
    if summary.case.model is None or summary.case.ranks == 1 or not summary.trials_done:
        return (), ()
    if explicit_baseline is not None:
        return (_efficiency(summary, explicit_baseline, is_beside=False, is_told=True),), ()
    cases = {scaling: one_rank_baseline(summary.case, scaling) for scaling in get_args(Scaling)}
    near = [
        _efficiency(summary, other, is_beside=True)
        for case in cases.values()
        for other in beside
        if case is not None and other.case.key() == case.key() and other.trials_done
    ]
    if near:
        return tuple(near), ()
    return _against_history(summary, machine, cases, history)


def _on_curve(point: Point, first: Summary) -> tuple[tuple[ScalingEfficiency, ...], tuple[str, ...]]:
    """Return the efficiency against the curve's first run, which was measured beside this one, and notes."""
    summary = point.summary
    if point.efficiency is not None:
        found = ScalingEfficiency(
            scaling="strong",
            baseline_run=first.run,
            ratio=point.efficiency,
            baseline_ranks=first.case.ranks,
            is_beside=True,
        )
        return (found,), ()
    is_told = summary.run != first.run and summary.case.model is not None and summary.trials_done
    return (), (f"strong scaling efficiency is absent: {point.reason}",) if is_told else ()


def _against_history(
    summary: Summary, machine: Machine, cases: Mapping[Scaling, Case | None], history: History
) -> tuple[tuple[ScalingEfficiency, ...], tuple[str, ...]]:
    """Return efficiencies against the newest baselines measured like the run, and notes where there is none."""
    found: list[ScalingEfficiency] = []
    notes: list[str] = []
    for scaling, case in cases.items():
        candidates = () if case is None else history.baselines(case.key(), summary.hardware, limit=BASELINES_SEEN)
        whys = []  # Why each candidate, newest first, was not measured like the run.
        for candidate in candidates:
            its_machine = history.machine(candidate.run)
            assert its_machine is not None, "a run is kept with its machine"
            why = unlike(summary, machine, candidate, its_machine)
            if why is None:
                found.append(_efficiency(summary, candidate, is_beside=False))
                break
            whys.append(why)
        else:
            if whys:
                notes.append(
                    f"{scaling} scaling efficiency is absent: the newest baseline, {candidates[0].run}, has {whys[0]};"
                    f" --with-baseline {scaling} measures one beside the run, --baseline RUN takes one all the same"
                )
    return tuple(found), tuple(notes)


def _efficiency(summary: Summary, baseline: Summary, *, is_beside: bool, is_told: bool = False) -> ScalingEfficiency:
    return scaling_efficiency(
        summary.case,
        _rates(summary),
        baseline.case,
        _rates(baseline),
        baseline_run=baseline.run,
        is_beside=is_beside,
        is_told=is_told,
    )


def _rates(summary: Summary) -> tuple[float, ...]:
    return next(found.trials for found in summary.estimates if found.metric == RUN_TOKENS_PER_SECOND.name)
