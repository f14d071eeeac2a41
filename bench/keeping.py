"""Puts what was measured where it stays: the summary into the run's folder, then the run into the history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

from bench import run as runs
from bench.case import one_rank_baseline
from bench.errors import InfrastructureFailed, Misuse
from bench.judgement.scaling import Scaling, ScalingEfficiency, scaling_efficiency
from bench.machine import Machine
from bench.store.history import History
from bench.summary import Summary
from collectors.catalogue.results import RUN_TOKENS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Summaries as they were kept, and each place that refused one."""

    summaries: tuple[Summary, ...]
    failures: tuple[InfrastructureFailed, ...]


def keep(summaries: Sequence[Summary], machine: Machine, history: History, told: Summary | None) -> Kept:
    """Give each summary its scaling efficiency, then write all of them, whatever one place refuses.

    told: the baseline that a person named; without it, one measured beside the run, or the newest in the history.
    """
    kept = tuple(replace(summary, scaling=_scaling(summary, summaries, history, told)) for summary in summaries)
    failures: list[InfrastructureFailed] = []
    for summary in kept:
        for write in (runs.save, partial(history.add, machine=machine)):
            try:
                write(summary)
            except InfrastructureFailed as error:
                failures.append(error)
    return Kept(summaries=kept, failures=tuple(failures))


def adopt(folder: Path, history: History) -> list[str]:
    """Take runs into the history whose runner could not; what cannot be read is returned, a line each."""
    known = history.known()
    problems: list[str] = []
    for run_folder in runs.ended_folders(folder):
        if run_folder.name in known:
            continue
        try:
            summary = runs.load(run_folder)
            runs.save(summary)
            history.add(summary, runs.machine_of(run_folder))
        except Misuse as error:
            problems.append(f"{run_folder} is left out of the history: {error}")
    return problems


def _scaling(
    summary: Summary, beside: Iterable[Summary], history: History, told: Summary | None
) -> tuple[ScalingEfficiency, ...]:
    if summary.case.ranks == 1 or not summary.trials_done:
        return ()
    if told is not None:
        return (_efficiency(summary, told),)
    found: list[ScalingEfficiency] = []
    for scaling in get_args(Scaling):
        case = one_rank_baseline(summary.case, scaling)
        if case is None:
            continue
        near = [other for other in beside if other.case.key() == case.key() and other.trials_done]
        baseline = near[0] if near else history.baseline(case.key(), summary.hardware)
        if baseline is not None:
            found.append(_efficiency(summary, baseline))
    return tuple(found)


def _efficiency(summary: Summary, baseline: Summary) -> ScalingEfficiency:
    return scaling_efficiency(summary.case, _rates(summary), baseline.case, _rates(baseline), baseline_run=baseline.run)


def _rates(summary: Summary) -> tuple[float, ...]:
    return next(found.trials for found in summary.estimates if found.metric == RUN_TOKENS_PER_SECOND.name)
