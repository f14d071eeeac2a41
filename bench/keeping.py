"""Puts what was measured where it stays: the summary into the run's folder, then the run into the history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

from bench import run as runs
from bench.case import Case, one_rank_baseline
from bench.curve import Point, curve_of
from bench.errors import InfrastructureFailed, Misuse
from bench.judgement.against_history import against_history
from bench.judgement.baseline import unlike
from bench.judgement.scaling import Scaling, ScalingEfficiency, scaling_between, scaling_efficiency
from bench.machine import Machine
from bench.run_folders import ended_folders
from bench.store.history import History
from bench.summary import Summary
from collectors.catalogue.results import RUN_TOKENS_PER_SECOND
from collectors.error_words import in_words

BASELINES_SEEN = 20
"""Of the newest runs of a baseline's case, so many are looked at for one that was measured like the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Summaries as they were kept, and each place that refused one."""

    summaries: tuple[Summary, ...]
    failures: tuple[InfrastructureFailed, ...]


def keep(
    summaries: Sequence[Summary],
    machine: Machine,
    history: History,
    told: Summary | None,
    *,
    is_curve: bool = False,
) -> Kept:
    """Give each summary what others and the history add to it, and write all of them, whatever one place refuses.

    told: the baseline that a person named; without it, one measured beside the run, or the newest in the history that
    was measured like the run.
    is_curve: the summaries are one command on several numbers of ranks. The first is the baseline of the others, and no
    other is looked for.
    """
    points = {point.summary.run: point for point in curve_of(summaries)} if is_curve and summaries else {}
    failures: list[InfrastructureFailed] = []
    kept: list[Summary] = []
    for summary in summaries:
        try:
            if summary.run in points:
                scaling, notes = _on_curve(points[summary.run], summaries[0])
            else:
                scaling, notes = _scaling(summary, machine, summaries, history, told)
            summary = replace(summary, scaling=scaling, notes=(*summary.notes, *notes))
            summary = against_history(summary, history)
        except InfrastructureFailed as error:  # The run is kept all the same, without what could not be asked.
            failures.append(error)
        kept.append(summary)
        for write in (runs.save, partial(history.add, machine=machine)):
            try:
                write(summary)
            except InfrastructureFailed as error:
                failures.append(error)
    return Kept(summaries=tuple(kept), failures=tuple(failures))


def check_baseline(case: Case, told: Summary) -> None:
    """Refuse a baseline, before anything is started, that no efficiency could be read against.

    Raises:
        Misuse: it has no complete trial, or is of another workload.
    """
    if not told.trials_done:
        raise Misuse(f"baseline {told.run} has no complete trial ({told.outcome}); choose one that is done")
    scaling_between(case, told.case)


def check_hardware(case: Case, machine: Machine, told: Summary) -> None:
    """Refuse a baseline of another machine, as soon as ranks have told which this one is.

    Raises:
        Misuse: it ran on other hardware.
    """
    hardware = machine.hardware(case.device)
    if told.hardware != hardware:
        raise Misuse(f"baseline {told.run} ran on {told.hardware}; this is {hardware}; choose one of this hardware")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """What a look through a folder of runs added to the history.

    problems: a line for each folder left out. moved: folders of runs that the history had at a place that is no more.
    """

    runs: tuple[Summary, ...]
    problems: tuple[str, ...]
    moved: tuple[Path, ...]

    def notices(self) -> tuple[str, ...]:
        """What a person is told of it, a line each."""
        return (*self.problems, *((f"{len(self.moved)} run(s) were found at another place",) if self.moved else ()))


def new_runs(folder: Path, known: Mapping[str, str], store: str | None, *, of_every_store: bool = False) -> Adopted:
    """What `adopt` would do to a history that knows these runs, each with its folder; nothing is written."""
    found: list[Summary] = []
    problems: list[str] = []
    moved: list[Path] = []
    for run_folder in ended_folders(folder):
        stored = known.get(run_folder.name)
        if stored is not None:
            with _noting(run_folder, problems):
                again = runs.found_again(run_folder.name, stored, folder)
                moved += [] if again is None else [again]
            continue
        with _noting(run_folder, problems):
            file = runs.case_file(run_folder)
            if not of_every_store and file.store != runs.store_name(store):
                continue
            if file.run != run_folder.name:
                raise Misuse(f"it is a copy of run {file.run}; `observatory show {run_folder}` shows it")
            found.append(runs.load(run_folder))
    return Adopted(runs=tuple(found), problems=tuple(problems), moved=tuple(moved))


def adopt(folder: Path, history: History, store: str | None, *, of_every_store: bool = False) -> Adopted:
    """Take runs into the history that are not in it: their runner died, or the folder or the history is a new one.

    A run that the history knows is never replaced: where its folder was moved, the new place is noted, and nothing
    else of it. Nothing is written but in the run's own folder.

    store: the history's URL as runs were told it; those of another store are left alone.
    of_every_store: they are taken as well.
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
                runs.save(summary)
            history.add(summary, runs.machine_of(run_folder))
            taken.append(summary)
    return Adopted(runs=tuple(taken), problems=tuple(problems), moved=found.moved)


@contextmanager
def _noting(run_folder: Path, problems: list[str]) -> Iterator[None]:
    """Leave a run's folder out, with a line that says why."""
    left_out = f"{run_folder} is left out of the history"
    try:
        yield
    except (Misuse, InfrastructureFailed) as error:
        problems.append(f"{left_out}: {error}")
    except Exception as error:  # noqa: BLE001  # One broken folder must not keep people from all others.
        problems.append(f"{left_out}: its files do not fit together ({in_words(error)})")


def _scaling(
    summary: Summary, machine: Machine, beside: Sequence[Summary], history: History, told: Summary | None
) -> tuple[tuple[ScalingEfficiency, ...], tuple[str, ...]]:
    """Efficiency against the baseline told, those measured beside the run, or else those of the history; and notes."""
    if summary.case.model is None or summary.case.ranks == 1 or not summary.trials_done:
        return (), ()
    if told is not None:
        return (_efficiency(summary, told, is_beside=False, is_told=True),), ()
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
    """The efficiency that the curve tells, against its first run, which was measured beside this one; and notes."""
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
    """Efficiency against the newest baselines that were measured like the run, and why there is none."""
    found: list[ScalingEfficiency] = []
    notes: list[str] = []
    for scaling, case in cases.items():
        candidates = () if case is None else history.baselines(case.key(), summary.hardware, limit=BASELINES_SEEN)
        whys = []
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
