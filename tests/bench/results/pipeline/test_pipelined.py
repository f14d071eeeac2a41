"""The figures of a pipeline, from trials that are known by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from bench.results.estimate import Estimate
from bench.results.pipeline import TimedStep, pipeline_estimates
from collectors.metrics.metric import Metric
from collectors.metrics.results import (
    RUN_BUBBLE_RATIO,
    RUN_LIVE_MICROBATCHES,
    RUN_STAGE_ACTIVATION_BYTES,
    RUN_STAGE_SECONDS,
)
from tests.bench.results.pipeline.staged import GPIPE, ONE_F_ONE_B, Row, timed_step
from workloads.cost_models.absent import Absent
from workloads.cost_models.schedules import Pipeline

PIPELINE = Pipeline(schedule="gpipe", ranks=2, stages_per_rank=1, microbatches=2, boundary_bytes=64)
EXPECTED_BYTES = (64, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeTrial:
    timed_steps: tuple[TimedStep, ...] = (timed_step(GPIPE),)
    stage_activation_bytes: dict[int, float] = field(default_factory=dict)


def _estimates(
    trials: Sequence[FakeTrial],
    predicted: Sequence[int] | Absent = EXPECTED_BYTES,
    axes: dict[str, int] | None = None,
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    steps = [trial.timed_steps for trial in trials]
    held = [trial.stage_activation_bytes for trial in trials]
    return pipeline_estimates(PIPELINE, axes or {"stage": 2}, steps, held, predicted)


def _judge(*trials: FakeTrial, axes: dict[str, int] | None = None) -> tuple[Estimate, ...]:
    estimates, notes = _estimates(trials or (FakeTrial(),), axes=axes)
    assert notes == ()
    return estimates


def _values(estimates: Sequence[Estimate], metric: Metric, **labels: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(found.labels[name] for name in metric.labels if name not in labels): found.median
        for found in estimates
        if found.metric == metric.name and found.labels.items() >= labels.items()
    }


def _slower(row: Row, factor: float) -> Row:
    """The same, the whole time-table stretched."""
    return [(kind, stage, microbatch, start * factor, end * factor) for kind, stage, microbatch, start, end in row]


def test_the_bubble_and_the_times_of_stages_are_those_of_the_log() -> None:
    estimates = _judge()
    assert _values(estimates, RUN_BUBBLE_RATIO) == {("measured",): pytest.approx(1 / 3)}
    assert _values(estimates, RUN_STAGE_SECONDS) == pytest.approx(
        {("0", "forward"): 1e-3, ("0", "backward"): 2e-3, ("1", "forward"): 1e-3, ("1", "backward"): 2e-3}
    )


def test_a_trials_bubble_is_the_median_of_its_steps() -> None:
    one_rank_works: list[Row] = [[("forward", 0, 0, 0, 4)], [("forward", 1, 0, 4, 4)]]
    trial = FakeTrial(timed_steps=(timed_step(GPIPE), timed_step(one_rank_works), timed_step(GPIPE)))
    assert _values(_judge(trial), RUN_BUBBLE_RATIO) == {("measured",): pytest.approx(1 / 3)}


def test_trials_give_an_interval() -> None:
    trials = [FakeTrial(timed_steps=(timed_step([_slower(row, 1 + trial) for row in GPIPE]),)) for trial in range(3)]
    (found,) = (
        found
        for found in _judge(*trials)
        if found.metric == RUN_STAGE_SECONDS.name and found.labels == {"stage": "0", "action": "forward"}
    )
    assert found.trials == pytest.approx((1e-3, 2e-3, 3e-3))
    assert found.low is not None


def test_live_microbatches_stand_beside_the_schedules() -> None:
    as_one_f_one_b = FakeTrial(timed_steps=(timed_step(ONE_F_ONE_B),))
    estimates = _judge(as_one_f_one_b)
    assert _values(estimates, RUN_LIVE_MICROBATCHES, account="measured") == {("0",): 2, ("1",): 1}
    assert _values(estimates, RUN_LIVE_MICROBATCHES, account="expected") == {("0",): 2, ("1",): 2}


def test_a_stage_of_several_pipelines_holds_what_it_holds_in_the_one_where_it_holds_most() -> None:
    rows = [GPIPE[0], ONE_F_ONE_B[0], GPIPE[1], ONE_F_ONE_B[1]]
    estimates = _judge(FakeTrial(timed_steps=(timed_step(rows),)), axes={"stage": 2, "tensor": 2})
    assert _values(estimates, RUN_LIVE_MICROBATCHES, account="measured") == {("0",): 2, ("1",): 2}


def test_activations_stand_beside_those_expected() -> None:
    estimates = _judge(FakeTrial(stage_activation_bytes={0: 65.0, 1: 30.0}))
    assert _values(estimates, RUN_STAGE_ACTIVATION_BYTES, account="measured") == {("0",): 65, ("1",): 30}
    assert _values(estimates, RUN_STAGE_ACTIVATION_BYTES, account="expected") == {("0",): 64, ("1",): 32}


def test_activations_that_nobody_tracked_are_absent() -> None:
    assert _values(_judge(), RUN_STAGE_ACTIVATION_BYTES, account="measured") == {}


def test_activations_that_no_law_tells_are_absent_with_the_reason() -> None:
    estimates, notes = _estimates([FakeTrial()], Absent(reason="blocks are compiled"))
    assert _values(estimates, RUN_STAGE_ACTIVATION_BYTES) == {}
    assert notes == ("expected activations of stages are absent: blocks are compiled",)


def test_without_timed_steps_the_bubble_is_absent_with_its_reason() -> None:
    trials = [FakeTrial(), FakeTrial(timed_steps=())]
    estimates, notes = _estimates(trials)
    assert estimates == ()
    assert notes == (
        "the bubble and the times of stages are absent: no step's actions were timed; use --trace-steps 3",
    )


def test_clocks_that_cannot_be_compared_are_noted() -> None:
    trials = [FakeTrial(timed_steps=(timed_step(GPIPE, clock=None),))]
    _, notes = _estimates(trials)
    absent, note = notes
    assert absent.endswith("absent from the bubble's parts, and are in unexplained: ranks read several clocks")
    assert note.startswith("ranks read several clocks")
