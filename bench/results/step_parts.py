"""A run's step divided into parts: the time that each trial spent on computation, communication and waiting.

The parts are compute, exposed communication, waiting, bubble, data, copies and idle; the rest is unexplained, so that
all parts add up to the step. docs/guides/scaling.md has each part's formula and its limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, get_args

from bench.case import Case
from bench.results.estimate import Estimate, of_metric
from collectors.metrics import results
from collectors.metrics.metric import Metric

PartName = Literal["exposed_communication", "waiting", "bubble", "idle", "data", "copies", "compute", "unexplained"]
PARTS: tuple[PartName, ...] = get_args(PartName)
"""exposed_communication: transfers that computation does not hide, without the waiting. waiting: for the last rank of a
collective: imbalance and stragglers. bubble: of a pipeline. data: waiting for a batch. unexplained: the rest.
"""

_DECIMALS = 12
"""Decimals of a second in the unexplained rest: further ones are rounding errors, not differences of trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """The part of a measured run that is needed to divide its step."""

    case: Case
    estimates: Sequence[Estimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """Seconds of one trial's traced step."""

    step_s: float
    compute_s: float
    exposed_s: float
    copies_s: float
    idle_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAccount:
    """A run's measurements of its step. Each sequence has a value for each trial; empty if unknown.

    step_s: the tokens of a step divided by the run's tokens per second, from which efficiency is computed.
    waiting_ratios: share of the time in collectives that is waiting.
    """

    step_s: float
    steps_s: Sequence[float]
    traces: Sequence[TracedStep]
    waiting_ratios: Sequence[float]
    data_s: Sequence[float]
    bubbles_s: Sequence[float]
    absent: Mapping[PartName, str]
    notes: tuple[str, ...]

    def divide(self, absent: Mapping[PartName, str]) -> dict[PartName, list[float]]:
        """Return the seconds of each part in each trial, without absent parts; they add up to the trial's step."""
        trials = [self._divide(trial, absent) for trial in range(len(self.steps_s))]
        for step_s, parts in zip(self.steps_s, trials, strict=True):
            parts["unexplained"] = round(step_s - math.fsum(parts.values()), _DECIMALS)
        return {name: [parts[name] for parts in trials] for name in trials[0] if name not in absent}

    def of_step(self, seconds: Sequence[float]) -> float:
        """Return a part's seconds within the run's step, by its mean share of the trials' steps.

        Shares of all parts add up to 1 in each trial, and so do their means; medians would not.
        """
        return self.step_s * fmean(value / step_s for value, step_s in zip(seconds, self.steps_s, strict=True))

    def _divide(self, trial: int, absent: Mapping[PartName, str]) -> dict[PartName, float]:
        data_s = 0.0 if "data" in absent else self.data_s[trial]
        if "idle" in absent:  # No trace: nothing else is known.
            return {"data": data_s}
        trace = self.traces[trial]
        compute_s, exposed_s, copies_s, idle_s = trace.compute_s, trace.exposed_s, trace.copies_s, trace.idle_s
        # The profiler works on the host, which computes on a CPU and lets a GPU idle, so the time that it adds to the
        # step is subtracted from these two parts.
        host_s = compute_s + idle_s
        room_s = max(0.0, self.steps_s[trial] - exposed_s - copies_s)
        if host_s > room_s:
            compute_s, idle_s = compute_s * room_s / host_s, idle_s * room_s / host_s
        # A rank that waits for its batch is idle.
        data_s = min(data_s, idle_s)
        idle_s -= data_s
        waiting_s = 0.0 if "waiting" in absent else exposed_s * self.waiting_ratios[trial]
        exposed_s -= waiting_s
        # In the bubble a rank waits for messages, either in a collective or idle; nothing shows which.
        outside_s = exposed_s + waiting_s + idle_s
        bubble_s = 0.0 if "bubble" in absent else min(self.bubbles_s[trial], outside_s)
        remaining = 1 - bubble_s / outside_s if outside_s else 0.0
        return {
            "exposed_communication": exposed_s * remaining,
            "waiting": waiting_s * remaining,
            "bubble": bubble_s,
            "idle": idle_s * remaining,
            "data": data_s,
            "copies": copies_s,
            "compute": compute_s,
        }


def step_account(run: MeasuredStep) -> StepAccount | str:
    """Return the run's measurements of its step, or why there are none."""
    case, title = run.case, run.case.title
    rates = of_metric(run.estimates, results.RUN_TOKENS_PER_SECOND)
    steps = of_metric(run.estimates, results.RUN_MEAN_STEP_SECONDS)
    if not rates or not steps:
        return f"{title} has no throughput"
    trials = len(steps[0].trials)
    absent: dict[PartName, str] = {}
    traces = _traces(run.estimates, trials)
    if not traces:
        why = f"no step of {title} was traced, so it is in unexplained; use trace_steps = 3"
        for name in PARTS:
            if name not in ("data", "unexplained"):
                absent[name] = why
    data_s = _trials(run.estimates, results.RUN_PHASE_SECONDS, trials, phase="data")
    if not data_s:
        absent["data"] = f"{title} has no time of the phase data, so it is in {'idle' if traces else 'unexplained'}"
    waiting = _trials(run.estimates, results.RUN_WAITING_RATIO, trials)
    if case.ranks == 1 or (traces and not any(trace.exposed_s for trace in traces)):
        waiting = [0.0] * trials  # A lone rank waits for nobody.
    if traces and not waiting:
        absent["waiting"] = f"the traces of {title} cannot be joined in every trial, so it is in exposed communication"
    bubbles_s = _bubbles_s(run, trials)
    if traces and not bubbles_s:
        absent["bubble"] = f"{title} has no times of its stages, so it is in waiting, communication and idle"
    return StepAccount(
        step_s=case.shape.tokens / rates[0].median,
        steps_s=steps[0].trials,
        traces=traces,
        waiting_ratios=waiting,
        data_s=data_s,
        bubbles_s=bubbles_s,
        absent=absent,
        notes=tuple(
            f"{title}: rank {straggler.labels['rank']} holds the others up for {100 * straggler.median:.1f} % of"
            " the traced"
            f" time by {straggler.labels['cause']}, which counts as waiting"
            for straggler in of_metric(run.estimates, results.RUN_STRAGGLER_RATIO)
        ),
    )


def _trials(estimates: Sequence[Estimate], metric: Metric, trials: int, **labels: str) -> Sequence[float]:
    """Return the values of all trials; empty if the run does not have one for each trial."""
    values = [estimate.trials for estimate in of_metric(estimates, metric) if estimate.labels == labels]
    return values[0] if values and len(values[0]) == trials else ()


def _traces(estimates: Sequence[Estimate], trials: int) -> list[TracedStep]:
    """Return the traced step of each trial; empty if any trial has none."""
    steps_s = _trials(estimates, results.RUN_TRACED_STEP_SECONDS, trials)
    shares = {
        part: _trials(estimates, results.RUN_TRACED_RATIO, trials, part=part)
        for part in ("compute", "exposed_communication", "exposed_copy", "idle")
    }
    if not (steps_s and shares["compute"] and shares["idle"]):
        return []
    # A rank that never copies or communicates has no value for it.
    seconds = {
        part: [share * step_s for share, step_s in zip(values or [0.0] * trials, steps_s, strict=True)]
        for part, values in shares.items()
    }
    return [
        TracedStep(
            step_s=steps_s[trial],
            compute_s=seconds["compute"][trial],
            exposed_s=seconds["exposed_communication"][trial],
            copies_s=seconds["exposed_copy"][trial],
            idle_s=seconds["idle"][trial],
        )
        for trial in range(trials)
    ]


def _bubbles_s(run: MeasuredStep, trials: int) -> Sequence[float]:
    """Return the bubble of each trial's step, in seconds per rank; 0 without a pipeline, empty if it is unknown.

    The ratio refers to the time from the first action to the last, in which a rank computes for `busy_s`. So the bubble
    is busy_s ratio / (1 - ratio).
    """
    case = run.case
    pipeline = case.spec().pipeline(case)
    if pipeline is None:
        return [0.0] * trials
    ratios = _trials(run.estimates, results.RUN_BUBBLE_RATIO, trials, account="measured")
    stages = of_metric(run.estimates, results.RUN_STAGE_SECONDS)
    if not (ratios and stages and all(len(estimate.trials) == trials for estimate in stages)):
        return ()
    # Each stage computes each microbatch, and the ranks share the stages.
    share = pipeline.microbatches / pipeline.ranks
    busy_s = [share * sum(estimate.trials[trial] for estimate in stages) for trial in range(trials)]
    return [busy * ratio / (1 - ratio) if ratio < 1 else math.inf for busy, ratio in zip(busy_s, ratios, strict=True)]
