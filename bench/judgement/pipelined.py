"""From the timed steps of a run's trials to its bubble, the times of its stages and what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Protocol

from bench.judgement.delays import delay_parts
from bench.judgement.estimate import Estimate, estimate, estimate_part, estimate_share
from bench.judgement.stages import TimedStep, bubble_ratio, most_live, pipelines, stage_seconds
from collectors.catalogue.pipeline import (
    RUN_BUBBLE_PART_RATIO,
    RUN_BUBBLE_RATIO,
    RUN_LIVE_MICROBATCHES,
    RUN_STAGE_ACTIVATION_BYTES,
    RUN_STAGE_SECONDS,
)
from workloads.laws.live_microbatches import live_microbatches_of_stages
from workloads.laws.pipeline import Pipeline
from workloads.laws.schedules import actions
from workloads.laws.terms import NotCovered


class TimedTrial(Protocol):
    """What one trial measured of stages; see `bench.judgement.trials.Trial`."""

    @property
    def timed_steps(self) -> tuple[TimedStep, ...]: ...
    @property
    def stage_activation_bytes(self) -> Mapping[int, float]: ...


def pipeline_estimates(
    pipeline: Pipeline,
    axes: Mapping[str, int],
    trials: Sequence[TimedTrial],
    activations: Sequence[int] | NotCovered,
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """What was measured of a pipeline, what it should hold, and what is absent with its reason.

    axes: of the mesh, one of which is the pipeline's; see `bench.judgement.stages.pipelines`.
    activations: bytes that forwards of each stage's live microbatches should leave, or why no law tells them.
    """
    if not all(trial.timed_steps for trial in trials):
        return (), (
            "the bubble and the times of stages are absent: no step's actions were timed; --trace-steps 3 does",
        )
    groups = pipelines(axes)
    bubbles = [
        median(bubble_ratio(step.works, ranks) for step in trial.timed_steps for ranks in groups) for trial in trials
    ]
    found = [
        estimate_share(RUN_BUBBLE_RATIO, bubbles, account="measured"),
        *_delays(pipeline, trials, groups),
        *_stage_times(trials),
        *_live(pipeline, trials),
        *_activations(trials, activations),
    ]
    return tuple(found), tuple(_notes(trials, activations))


def _stage_times(trials: Sequence[TimedTrial]) -> Iterator[Estimate]:
    by_trial = [stage_seconds(work for step in trial.timed_steps for work in step.works) for trial in trials]
    for stage, kind in by_trial[0]:
        values = [times_s.get((stage, kind), 0.0) for times_s in by_trial]
        if all(values):
            yield estimate(RUN_STAGE_SECONDS, values, stage=str(stage), action=kind)


def _delays(pipeline: Pipeline, trials: Sequence[TimedTrial], groups: Sequence[Sequence[int]]) -> Iterator[Estimate]:
    """The parts of the bubble that need no law, of which those of `bench.judgement.bubble` are the rest."""
    by_trial = [delay_parts(pipeline, trial.timed_steps, groups) for trial in trials]
    for part in by_trial[0]:
        if all(part in parts for parts in by_trial):
            values = [parts[part] for parts in by_trial]
            yield estimate_part(RUN_BUBBLE_PART_RATIO, values, middle=median(values), part=part)


def _live(pipeline: Pipeline, trials: Sequence[TimedTrial]) -> Iterator[Estimate]:
    for stage, expected in live_microbatches_of_stages(actions(pipeline)).items():
        values = [max(most_live(step.works, stage) for step in trial.timed_steps) for trial in trials]
        if all(values):
            yield estimate(RUN_LIVE_MICROBATCHES, values, stage=str(stage), account="measured")
        yield estimate(RUN_LIVE_MICROBATCHES, [expected] * len(trials), stage=str(stage), account="expected")


def _activations(trials: Sequence[TimedTrial], expected: Sequence[int] | NotCovered) -> Iterator[Estimate]:
    known = set.intersection(*(set(trial.stage_activation_bytes) for trial in trials))
    stages = sorted(known) if isinstance(expected, NotCovered) else range(len(expected))
    for stage in stages:
        values = [trial.stage_activation_bytes.get(stage, 0.0) for trial in trials]
        if all(values):
            yield estimate(RUN_STAGE_ACTIVATION_BYTES, values, stage=str(stage), account="measured")
        if not isinstance(expected, NotCovered):
            sizes = [expected[stage]] * len(trials)
            yield estimate(RUN_STAGE_ACTIVATION_BYTES, sizes, stage=str(stage), account="expected")


def _notes(trials: Sequence[TimedTrial], activations: Sequence[int] | NotCovered) -> Iterator[str]:
    if isinstance(activations, NotCovered):
        yield f"expected activations of stages are absent: {activations.reason}"
    steps = [step for trial in trials for step in trial.timed_steps]
    if not all(step.has_messages and step.is_one_clock for step in steps):
        is_told = all(step.has_messages for step in steps)
        why = "ranks read several clocks" if is_told else "the ranks' logs do not tell them, as on a GPU"
        yield f"waits for messages and for a core are absent from the bubble's parts, and are in unexplained: {why}"
    elif not all(step.has_core_waits for step in steps):
        yield (
            "waiting for a core is absent from the bubble's parts, and is in unexplained: this system has no"
            " /proc/thread-self/schedstat"
        )
    if not all(step.is_one_clock for trial in trials for step in trial.timed_steps):
        yield (
            "ranks read several clocks: in the bubble each counts from the end of their meeting before the step, so"
            " that it is off by as much as the meeting left them apart"
        )
