"""Adds scaling efficiency and comparisons with the history to what was measured, and keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from bench.analysis.scaling.efficiency import Scaling, ScalingEfficiency, scaling_between, scaling_efficiency
from bench.case import Case, one_rank_baseline
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.machine import Machine
from bench.runs import run_dir
from bench.runs.hardware_baselines import against_history, expected_efficiencies
from bench.runs.history import History
from bench.runs.scaling_baseline import Point, curve_of, unlike
from bench.runs.summary import Summary
from collectors.metrics.results import RUN_TOKENS_PER_SECOND
from workloads.cost_models.absent import Absent

BASELINES_SEEN = 20
"""How many of the newest runs of a baseline's case are searched for one that was measured like the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Summaries as they were kept, and the errors of places that could not keep one."""

    summaries: tuple[Summary, ...]
    failures: tuple[InfrastructureFailed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBaseline:
    """The baseline that a suite names for a run. summary: absent where it was not measured.

    is_beside: it was measured in turn with the run, else earlier or later in the same suite run.
    """

    summary: Summary | Absent
    is_beside: bool


def persist(
    summaries: Sequence[Summary],
    machine: Machine,
    history: History | None,
    explicit_baseline: Summary | None,
    *,
    is_curve: bool = False,
    baselines: Mapping[str, NamedBaseline] | None = None,
) -> Kept:
    """Add scaling efficiency and comparisons with the history to each summary, and write all, even if one place fails.

    history: None where it cannot be reached: then only the run folders are written.
    explicit_baseline: the one that a person named. Without it: the one that a suite names, by the run's id in
    `baselines`, else one measured beside the run, else the newest one in the history that was measured like the run.
    is_curve: the summaries are of one command with several numbers of ranks. The first one is the baseline of the
    others, and no other is searched.
    """
    points = {point.summary.run: point for point in curve_of(summaries)} if is_curve and summaries else {}
    named = [one.summary for one in (baselines or {}).values() if isinstance(one.summary, Summary)]
    explicit = [] if explicit_baseline is None else [explicit_baseline]
    known = {one.run: one for one in (*named, *explicit, *summaries)}
    failures: list[InfrastructureFailed] = []
    kept: list[Summary] = []
    for summary in summaries:
        try:
            if summary.run in points:
                scaling, notes = _on_curve(points[summary.run], summaries[0])
            elif baselines is not None and summary.run in baselines:
                scaling, notes = _against_named(summary, baselines[summary.run])
            else:
                scaling, notes = _scaling(summary, machine, summaries, history, explicit_baseline)
            summary = replace(summary, scaling=scaling, notes=(*summary.notes, *notes))
            if history is not None:
                expected, notes = expected_efficiencies(summary, known, history)
                summary = replace(summary, estimates=(*summary.estimates, *expected), notes=(*summary.notes, *notes))
                summary = against_history(summary, history)
        except InfrastructureFailed as error:  # The run is kept anyway, without what could not be read.
            failures.append(error)
        kept.append(summary)
        in_history = () if history is None else (partial(history.add, machine=machine),)
        for write in (run_dir.save, *in_history):
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


def _scaling(
    summary: Summary,
    machine: Machine,
    beside: Sequence[Summary],
    history: History | None,
    explicit_baseline: Summary | None,
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
    if near or history is None:
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


def _against_named(summary: Summary, baseline: NamedBaseline) -> tuple[tuple[ScalingEfficiency, ...], tuple[str, ...]]:
    """Return the efficiency against the baseline that a suite names, or a note on why it is absent."""
    if summary.case.model is None or not summary.trials_done:
        return (), ()
    other = baseline.summary
    if isinstance(other, Absent):
        reason = other.reason
    elif other.hardware != summary.hardware:
        reason = f"the baseline {other.run} ran on {other.hardware}"
    else:
        try:
            check_baseline(summary.case, other)
        except Misuse as error:
            reason = str(error)
        else:
            return (_efficiency(summary, other, is_beside=baseline.is_beside),), ()
    return (), (f"scaling efficiency is absent: {reason}",)


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
