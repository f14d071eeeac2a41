"""Where a slower step spends its time: its parts in two runs, each tested in the same way, and their traces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench.errors import InfrastructureFailed, Misuse, plural
from bench.results.efficiency import difference_interval, loss_of
from bench.results.estimate import Estimate, of_metric
from bench.results.step_parts import MeasuredStep, PartName
from bench.store.summary import Summary
from collectors.metrics import results

# The parts of the step, from the summaries of both runs.

MAIN_RATIO = 1 / 3
"""A part explains the step's change only if it is at least this share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChange:
    """The change of the step or of one of its parts, with its 95 % interval over trials, if any."""

    name: str
    change_s: float
    low_s: float | None
    high_s: float | None

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low_s is not None and self.high_s is not None and (self.low_s > 0 or self.high_s < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """The change of the step and its parts. The parts add up to it, except those in `absent`, which gives the reasons.

    notes: assumptions behind the parts. good_trials, bad_trials: number of trials compared.
    """

    step: PartChange
    parts: tuple[PartChange, ...]
    absent: Mapping[PartName, str]
    notes: tuple[str, ...]
    good_trials: int
    bad_trials: int

    @property
    def main(self) -> PartChange | None:
        """The largest part that surely changed in the step's direction, by at least `MAIN_RATIO` of its change."""
        least_s = MAIN_RATIO * abs(self.step.change_s)
        sign = 1 if self.step.change_s >= 0 else -1
        grown = [
            part
            for part in self.parts
            if part.name != "unexplained" and part.is_shown and sign * part.change_s >= least_s > 0
        ]
        return max(grown, key=lambda part: abs(part.change_s), default=None)


def step_change(good: Sequence[Summary], bad: Sequence[Summary]) -> StepChange | str:
    """Return the parts of the step's change, or why they are unknown.

    good, bad: runs of one series before and after the change, with the run that is reported first. The trials of
    another run count only if they have all the estimates of the first.
    """
    good_run, bad_run = good[0], bad[0]
    if good_run.case.model is None or bad_run.case.model is None:
        is_watched = good_run.case.watched_name is not None
        return "no cost model covers a watched program" if is_watched else "a probe has no steps"
    good_estimates, bad_estimates = _pooled(good), _pooled(bad)
    loss = loss_of(
        MeasuredStep(case=bad_run.case, estimates=bad_estimates),
        MeasuredStep(case=good_run.case, estimates=good_estimates),
    )
    if isinstance(loss, str):
        return loss
    before, now = (of_metric(side, results.RUN_MEAN_STEP_SECONDS)[0].trials for side in (good_estimates, bad_estimates))
    change_s = loss.step_s - loss.ideal_s
    interval = difference_interval(now, before)
    return StepChange(
        step=PartChange(
            name="step",
            change_s=change_s,
            low_s=None if interval is None else min(interval[0], change_s),
            high_s=None if interval is None else max(interval[1], change_s),
        ),
        parts=tuple(
            PartChange(name=part.name.replace("_", " "), change_s=part.lost_s, low_s=part.low_s, high_s=part.high_s)
            for part in loss.parts
        ),
        absent=loss.absent,
        notes=loss.notes,
        good_trials=len(before),
        bad_trials=len(now),
    )


_DIVIDED = frozenset(
    metric.name
    for metric in (
        results.RUN_TOKENS_PER_SECOND,
        results.RUN_MEAN_STEP_SECONDS,
        results.RUN_TRACED_STEP_SECONDS,
        results.RUN_TRACED_RATIO,
        results.RUN_WAITING_RATIO,
        results.RUN_PHASE_SECONDS,
        results.RUN_BUBBLE_RATIO,
        results.RUN_STAGE_SECONDS,
    )
)
"""Metrics used to divide a step, see `bench.results.step_parts`."""


def _pooled(runs: Sequence[Summary]) -> list[Estimate]:
    """Return the first run's estimates, pooled with the trials of other runs that have all of them in every trial.

    The intervals of the estimates are not changed: what is computed from the trials gets its own.
    """
    first, *others = (
        {
            (estimate.metric, *sorted(estimate.labels.items())): estimate
            for estimate in run.estimates
            if estimate.metric in _DIVIDED
        }
        for run in runs
    )
    step = (results.RUN_MEAN_STEP_SECONDS.name,)
    complete = [
        other
        for other in others
        if step in other and all(key in other and len(other[key].trials) == len(other[step].trials) for key in first)
    ]
    pooled = [
        replace(estimate, trials=trials, median=median(trials))
        for key, estimate in first.items()
        if (trials := (*estimate.trials, *(value for other in complete for value in other[key].trials)))
    ]
    return [*pooled, *(estimate for estimate in runs[0].estimates if estimate.metric not in _DIVIDED)]


_UNITS = ((1.0, "s"), (1e-3, "ms"), (0.0, "us"))
_SIZES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def unit_of(change_s: float) -> str:
    """Return the unit in which to show a change: s, ms or us."""
    return next(unit for least_s, unit in _UNITS if abs(change_s) >= least_s)


def seconds_words(change_s: float, unit: str) -> str:
    """Return a change of seconds in this unit: `+4.4 ms`."""
    return f"{change_s / _SIZES[unit]:+.1f} {unit}"


def in_words(change: PartChange, unit: str, *, has_interval: bool = True) -> str:
    """Return a change with its interval in this unit: `+4.4 ms [3.9, 4.9]`."""
    text = seconds_words(change.change_s, unit)
    if not has_interval or change.low_s is None or change.high_s is None:
        return text
    return f"{text} [{change.low_s / _SIZES[unit]:.1f}, {change.high_s / _SIZES[unit]:.1f}]"


# The difference of the traces, if both runs kept windows.

MOST_RANKS = 8
"""Most ranks whose windows are read: the first ones that both runs have."""
SHARE_SHOWN = 0.05
"""Kernels and collectives below this share of the step's change are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedChange:
    """The change of a kernel or a collective in a traced step. seen: both, new or gone."""

    name: str
    part: str
    seen: str
    change_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceChange:
    """The difference of two runs' traced steps: kernels and collectives, largest share of the change first."""

    step_s: float
    kernels: tuple[TracedChange, ...]
    collectives: tuple[TracedChange, ...]
    notes: tuple[str, ...]


def trace_change(good: Path | None, bad: Path | None, *, watched: str | None = None) -> TraceChange | str:
    """Return the difference of the newest windows in the folders of both runs, or why there is none.

    good, bad: None if the folder is gone. watched: name of the watched runs; None for runs of a suite.
    """
    from bench.results.timelines import newest_windows, read_files
    from collectors.traces.analyzers.diff import ItemChange, NothingToCompare, difference

    windows: list[dict[int, Path]] = []
    for folder, which in ((good, "good"), (bad, "bad")):
        if folder is None:
            return f"the folder of the {which} run is gone, and its traces with it"
        try:
            windows.append({_rank_of(path): path for path in newest_windows(folder)})
        except OSError as error:
            return f"the traces of the {which} run cannot be read: {error.strerror or error}"
        if not windows[-1]:
            if watched is None:
                return f"the {which} run has no trace; set trace_steps = 3 in the suite"
            return f"the {which} run has no trace; `observatory watch --attach {watched}` traces a job while it runs"
    ranks = sorted(windows[0].keys() & windows[1].keys())
    if not ranks:
        return "no rank has a trace in both runs"
    try:
        sides = [read_files([of_rank[rank] for rank in ranks[:MOST_RANKS]]) for of_rank in windows]
        step_difference = difference(*sides)
    except (Misuse, InfrastructureFailed, NothingToCompare, ValueError) as error:
        return f"the traces cannot be compared: {error}"

    def of(changes: Sequence[ItemChange], *, is_collective: bool) -> tuple[TracedChange, ...]:
        return tuple(
            TracedChange(
                name=" ".join(filter(None, (change.item.collective, change.item.shape)))
                if is_collective
                else change.item.name,
                part=change.item.part,
                seen=change.seen,
                change_s=change.change_ns / 1e9,
            )
            for change in changes
            if (share := step_difference.share(change)) is not None and share >= SHARE_SHOWN
        )

    left_out = max(map(len, windows)) - len(ranks[:MOST_RANKS])
    return TraceChange(
        step_s=step_difference.change_ns / 1e9,
        kernels=of(step_difference.kernels, is_collective=False),
        collectives=of(step_difference.collectives, is_collective=True),
        notes=(f"this difference leaves out the traces of {plural(left_out, 'more rank')}",) if left_out else (),
    )


def _rank_of(path: Path) -> int:
    match = re.match(r"rank(\d+)\.", path.name)
    return int(match[1]) if match else 0
