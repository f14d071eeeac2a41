"""The nights of a series: its runs by the day on which they began, and the noise of a figure over these nights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.case import Case, why_ad_hoc
from bench.results.estimate import Estimate
from bench.results.noise import TrialNoise, noise_of
from bench.store.summary import Summary
from collectors.metrics.metric import Metric
from workloads.cost_models.absent import Absent

_DAY_NS = 86_400 * 10**9


def is_of_a_night(run: Summary) -> bool:
    """Whether a run counts as a night's: a suite's run that is no rerun of the gate, or a run that is not ad hoc."""
    member = run.purpose.member
    if member is not None:
        return not member.is_rerun  # Reruns are a biased selection.
    return not why_ad_hoc(run.case, run.purpose)


def day_of(run: Summary) -> int:
    """Return the UTC day on which a run began, counted since 1970."""
    return run.started_ns // _DAY_NS


def nights_of(case: Case, runs: Iterable[Summary]) -> list[list[Summary]]:
    """Return the runs of a series by the UTC day on which they began, oldest first.

    Only runs of a night with as many steps as the case count, because more steps have less noise; a watched run may
    have any number of steps. runs: of the case's key on one hardware.
    """
    days: dict[int, list[Summary]] = {}
    for run in runs:
        is_as_long = (run.case.steps, run.case.warm_up) == (case.steps, case.warm_up)
        if is_of_a_night(run) and (is_as_long or run.watched is not None):
            days.setdefault(day_of(run), []).append(run)
    return [days[day] for day in sorted(days)]


def noise_over(
    nights: Sequence[Sequence[Summary]],
    metric: str,
    labels: dict[str, str],
    within_nights: Sequence[Sequence[float]] = (),
) -> TrialNoise | Absent:
    """Return the noise of one figure over nights. within_nights: see `noise_of`."""
    wanted = Estimate(metric=metric, labels=labels, median=1.0, low=None, high=None, trials=())
    values = [
        [value for run in night for figure in run.estimates if figure.is_same_as(wanted) for value in figure.trials]
        for night in nights
    ]
    return noise_of([night for night in values if night and min(night) > 0], within_nights)


def trials_of(runs: Iterable[Summary], wanted: Estimate) -> list[tuple[float, ...]]:
    """Return the trials of one figure, for each of these runs that has it."""
    return [figure.trials for run in runs for figure in run.estimates if figure.is_same_as(wanted)]


def noise_of_series(case: Case, runs: Iterable[Summary], metric: Metric) -> TrialNoise | Absent:
    """Return the noise of a figure without labels over the nights of a series."""
    return noise_over(nights_of(case, runs), metric.name, {})
