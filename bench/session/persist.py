"""Add scaling efficiency and comparisons with the history to measured runs, and store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from bench.case import Case, one_rank_baseline
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.machine import Machine
from bench.results.efficiency import Scaling, ScalingEfficiency, scaling_between, scaling_efficiency
from bench.store import run_dir
from bench.store.hardware_baselines import against_history, expected_efficiencies
from bench.store.history import History
from bench.store.scaling_baseline import Point, curve_of, unlike
from bench.store.summary import Summary
from collectors.metrics.results import RUN_TOKENS_PER_SECOND
from workloads.cost_models.absent import Absent

BASELINES_SEEN = 20
"""How many of the newest runs of a baseline's case are searched for one that was measured like the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistedRuns:
    """Summaries as they were stored, and the errors of places that could not store one.

    is_interrupted, lost_engine: how measuring them ended, as in `MeasuredRuns`.
    """

    summaries: tuple[Summary, ...]
    failures: tuple[InfrastructureFailed, ...]
    is_interrupted: bool = False
    lost_engine: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBaseline:
    """The baseline that a suite names for a run. summary: absent if it was not measured.

    is_beside: measured in turn with the run; otherwise earlier or later in the same suite run.
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
) -> PersistedRuns:
    """Add scaling efficiency and comparisons with the history to each summary, and write all, even if one place fails.

    history: None if it cannot be reached; then only the run folders are written. explicit_baseline: named by the user.
    Without it, the baseline is the one that a suite names (by the run's id in `baselines`), else a run measured in turn
    with the run, else the newest one in the history that was measured in the same way. is_curve: the summaries belong
    to one command with several numbers of ranks. The first is the baseline of the others, and no other is searched for.
    """
    points = {point.summary.run: point for point in curve_of(summaries)} if is_curve and summaries else {}
    named = [baseline.summary for baseline in (baselines or {}).values() if isinstance(baseline.summary, Summary)]
    explicit = [] if explicit_baseline is None else [explicit_baseline]
    baselines_by_run = {baseline.run: baseline for baseline in (*named, *explicit, *summaries)}
    failures: list[InfrastructureFailed] = []
    persisted: list[Summary] = []
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
                expected, notes = expected_efficiencies(summary, baselines_by_run, history)
                summary = replace(summary, estimates=(*summary.estimates, *expected), notes=(*summary.notes, *notes))
                summary = against_history(summary, history)
        except InfrastructureFailed as error:  # The run is stored anyway, without what could not be read.
            failures.append(error)
        persisted.append(summary)
        in_history = () if history is None else (partial(history.add, machine=machine),)
        for write in (run_dir.save, *in_history):
            try:
                write(summary)
            except InfrastructureFailed as error:
                failures.append(error)
    return PersistedRuns(summaries=tuple(persisted), failures=tuple(failures))


def check_baseline(case: Case, baseline: Summary) -> None:
    """Refuse, before anything starts, a baseline that allows no scaling efficiency.

    Raises:
        Misuse: the baseline has no complete trial, or ran another workload.
    """
    if not baseline.trials_done:
        raise Misuse(f"baseline {baseline.run} has no complete trial ({baseline.outcome}); choose a run that is done")
    scaling_between(case, baseline.case)


def check_hardware(case: Case, machine: Machine, baseline: Summary) -> None:
    """Refuse a baseline that ran on other hardware, as soon as ranks have reported this machine.

    Raises:
        Misuse: the baseline ran on other hardware.
    """
    hardware = machine.hardware(case.device)
    if baseline.hardware != hardware:
        raise Misuse(
            f"baseline {baseline.run} ran on {baseline.hardware}; this is {hardware}; choose a run on this hardware"
        )


def _scaling(
    summary: Summary,
    machine: Machine,
    interleaved: Sequence[Summary],
    history: History | None,
    explicit_baseline: Summary | None,
) -> tuple[tuple[ScalingEfficiency, ...], tuple[str, ...]]:
    """Return efficiencies and notes: against the named baseline, else runs measured in turn, else the history."""
    if summary.case.model is None or summary.case.ranks == 1 or not summary.trials_done:
        return (), ()
    if explicit_baseline is not None:
        return (_efficiency(summary, explicit_baseline, is_beside=False, is_told=True),), ()
    # A parameter server with one worker has the same baseline for both scalings, which counts as weak.
    cases: dict[Scaling, Case] = {}
    for scaling in get_args(Scaling):
        baseline = one_rank_baseline(summary.case, scaling)
        if baseline is not None and baseline.key() not in {other.key() for other in cases.values()}:
            cases[scaling] = baseline
    efficiencies = [
        _efficiency(summary, candidate, is_beside=True)
        for case in cases.values()
        for candidate in interleaved
        if candidate.case.key() == case.key() and candidate.trials_done
    ]
    if efficiencies or history is None:
        return tuple(efficiencies), ()
    return _against_history(summary, machine, cases, history)


def _on_curve(point: Point, first: Summary) -> tuple[tuple[ScalingEfficiency, ...], tuple[str, ...]]:
    """Return notes and the efficiency against the curve's first run, which was measured in turn with this one."""
    summary = point.summary
    if point.efficiency is not None:
        efficiency = ScalingEfficiency(
            scaling="strong",
            baseline_run=first.run,
            ratio=point.efficiency,
            baseline_ranks=first.case.ranks,
            is_beside=True,
        )
        return (efficiency,), ()
    has_note = summary.run != first.run and summary.case.model is not None and summary.trials_done
    return (), (f"strong scaling efficiency is absent: {point.reason}",) if has_note else ()


def _against_named(summary: Summary, baseline: NamedBaseline) -> tuple[tuple[ScalingEfficiency, ...], tuple[str, ...]]:
    """Return the efficiency against the baseline that a suite names, or a note on why it is missing."""
    if summary.case.model is None or not summary.trials_done:
        return (), ()
    baseline_run = baseline.summary
    if isinstance(baseline_run, Absent):
        reason = baseline_run.reason
    elif baseline_run.hardware != summary.hardware:
        reason = f"baseline {baseline_run.run} ran on {baseline_run.hardware}"
    else:
        try:
            check_baseline(summary.case, baseline_run)
        except Misuse as error:
            reason = str(error)
        else:
            return (_efficiency(summary, baseline_run, is_beside=baseline.is_beside),), ()
    return (), (f"scaling efficiency is absent: {reason}",)


def _against_history(
    summary: Summary, machine: Machine, cases: Mapping[Scaling, Case], history: History
) -> tuple[tuple[ScalingEfficiency, ...], tuple[str, ...]]:
    """Return efficiencies against the newest baselines measured in the same way, and notes if there are none."""
    efficiencies: list[ScalingEfficiency] = []
    notes: list[str] = []
    for scaling, case in cases.items():
        candidates = history.baselines(case.key(), summary.hardware, limit=BASELINES_SEEN)
        reasons = []  # Why each candidate, newest first, was not measured like the run.
        for candidate in candidates:
            candidate_machine = history.machine(candidate.run)
            assert candidate_machine is not None, "a run is stored with its machine"
            why = unlike(summary, machine, candidate, candidate_machine)
            if why is None:
                efficiencies.append(_efficiency(summary, candidate, is_beside=False))
                break
            reasons.append(why)
        else:
            if reasons:
                notes.append(
                    f"{scaling} scaling efficiency is absent: the newest baseline, {candidates[0].run}, has"
                    f" {reasons[0]}; use --with-baseline {scaling} to measure one alongside the run, or --baseline RUN"
                    " to choose one"
                )
    return tuple(efficiencies), tuple(notes)


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
    return next(estimate.trials for estimate in summary.estimates if estimate.metric == RUN_TOKENS_PER_SECOND.name)
