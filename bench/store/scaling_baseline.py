"""Scaling over several runs: the curve of one command over several numbers of ranks, and the choice of a baseline.

A run in the history can be a baseline for another only if both were measured in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.errors import plural
from bench.machine.machine import Machine
from bench.results.estimate import Estimate, EstimatedRatio, estimate, ratio
from bench.store.summary import Summary
from collectors.metrics.results import RUN_TOKENS_PER_SECOND, RUN_TOKENS_PER_SECOND_PER_DEVICE

# Scaling curve: the throughput of each run, and its efficiency against the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of the curve. throughput: tokens per second over all ranks; None if no trial was complete.

    efficiency: tokens per second and rank, divided by those of the first run. All have the same batch, so this is
    strong scaling. None for the first run, for a probe, and if either run has no throughput; see `reason`.
    """

    summary: Summary
    throughput: Estimate | None
    efficiency: EstimatedRatio | None
    reason: str | None = None


def curve_of(summaries: Sequence[Summary]) -> tuple[Point, ...]:
    """Return the curve of the runs, in order, each compared with the first."""
    first, *others = [
        next((figure for figure in summary.estimates if figure.metric == RUN_TOKENS_PER_SECOND.name), None)
        for summary in summaries
    ]
    points = [Point(summary=summaries[0], throughput=first, efficiency=None, reason="it is the baseline of the others")]
    for summary, throughput in zip(summaries[1:], others, strict=True):
        if throughput is None or first is None:
            failed = summary if throughput is None else summaries[0]
            why = f"{failed.case.title} has no throughput"
            points.append(Point(summary=summary, throughput=throughput, efficiency=None, reason=why))
            continue
        efficiency = ratio(_per_rank(throughput, summary), _per_rank(first, summaries[0]))
        points.append(Point(summary=summary, throughput=throughput, efficiency=efficiency))
    return tuple(points)


def _per_rank(throughput: Estimate, summary: Summary) -> Estimate:
    return estimate(RUN_TOKENS_PER_SECOND_PER_DEVICE, [rate / summary.case.ranks for rate in throughput.trials])


# Whether a run was measured like its baseline

OLDEST_DAYS = 14
"""Most days between a run and its baseline: machines and their settings change."""
ENOUGH_TRIALS = 3
"""A baseline with this many trials suffices for any run; for a run with fewer, an equal number suffices."""


def unlike(run: Summary, machine: Machine, baseline: Summary, its_machine: Machine) -> str | None:
    """Return how the baseline was measured differently from the run; None if it was measured in the same way.

    The caller has checked that the cases are comparable and the hardware has the same name; see `scaling_between` and
    `Machine.hardware`.
    """
    differences = list(_differences_of_runs(run, machine, baseline, its_machine))
    return "; ".join(differences) or None


def _differences_of_runs(run: Summary, machine: Machine, baseline: Summary, its_machine: Machine) -> Iterator[str]:
    for name, least in (("warm_up", "warm-up steps"), ("steps", "measured steps")):
        of_run, of_baseline = getattr(run.case, name), getattr(baseline.case, name)
        if of_baseline < of_run:
            yield f"{of_baseline} {least}, the run {of_run}"
    enough = min(run.trials_done, ENOUGH_TRIALS)
    if baseline.trials_done < enough:
        yield f"{plural(baseline.trials_done, 'trial')} done, the run {run.trials_done}"
    pairs = (
        ("torch", baseline.torch_version, run.torch_version),
        ("commit", _short(baseline.commit), _short(run.commit)),
        ("parallel-observatory", its_machine.own_version, machine.own_version),
        ("driver", its_machine.driver_version, machine.driver_version),
    )
    for name, of_baseline, of_run in pairs:
        if of_baseline != of_run:
            yield f"{name} {of_baseline or 'unknown'}, the run {of_run or 'unknown'}"
    if its_machine.is_dirty or machine.is_dirty:
        yield "a source tree with uncommitted changes"
    age_days = abs(run.started_ns - baseline.started_ns) / 86_400e9
    if age_days > OLDEST_DAYS:
        yield f"an age of {age_days:.0f} days, but at most {OLDEST_DAYS} are allowed"


def _short(commit: str | None) -> str | None:
    return None if commit is None else commit[:12]
