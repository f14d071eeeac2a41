"""Whether a run of the history may serve another as its baseline: only one that was measured alike does."""

from __future__ import annotations

from collections.abc import Iterator

from bench.machine import Machine
from bench.summary import Summary

OLDEST_DAYS = 14
"""How far from the run in time a baseline may be: machines and their settings change."""
ENOUGH_TRIALS = 3
"""So many do, also for a run that has more."""


def unlike(run: Summary, machine: Machine, baseline: Summary, its_machine: Machine) -> str | None:
    """How the baseline was measured otherwise than the run, None where it serves.

    Both have cases that may be compared, on hardware of the same name; see `scaling_between` and `Machine.hardware`.
    """
    differences = list(_differences(run, machine, baseline, its_machine))
    return "; ".join(differences) or None


def _differences(run: Summary, machine: Machine, baseline: Summary, its_machine: Machine) -> Iterator[str]:
    for name, least in (("warm_up", "warm-up steps"), ("steps", "measured steps")):
        wanted, there = getattr(run.case, name), getattr(baseline.case, name)
        if there < wanted:
            yield f"{there} {least}, the run {wanted}"
    enough = min(run.trials_done, ENOUGH_TRIALS)
    if baseline.trials_done < enough:
        yield f"{baseline.trials_done} trial(s) done, the run {run.trials_done}"
    pairs = (
        ("torch", baseline.torch_version, run.torch_version),
        ("commit", _short(baseline.commit), _short(run.commit)),
        ("parallel-observatory", its_machine.own_version, machine.own_version),
        ("driver", its_machine.driver_version, machine.driver_version),
    )
    for name, its, ours in pairs:
        if its != ours:
            yield f"{name} {its or 'unknown'}, the run {ours or 'unknown'}"
    if its_machine.is_dirty or machine.is_dirty:
        yield "a source tree with changes that no commit tells"
    age_days = abs(run.started_ns - baseline.started_ns) / 86_400e9
    if age_days > OLDEST_DAYS:
        yield f"an age of {age_days:.0f} days, of which {OLDEST_DAYS} are allowed"


def _short(commit: str | None) -> str | None:
    return None if commit is None else commit[:12]
