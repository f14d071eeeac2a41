"""The makespan of a plan equals the simulator's, to the last bit; and runs of actions are the actions in order."""

from __future__ import annotations

import random
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.cost_models.schedules import Action, Pipeline, ScheduleName, actions
from workloads.pipeline_parallel.cuda_peak import in_runs
from workloads.pipeline_parallel.makespan import StepTimes, makespan_s
from workloads.pipeline_parallel.simulator import Delay, replay

PIPELINES: tuple[tuple[ScheduleName, int, int, int], ...] = (
    ("naive", 4, 1, 1),
    ("gpipe", 1, 1, 2),
    ("gpipe", 4, 1, 6),
    ("one_f_one_b", 4, 1, 9),
    ("one_f_one_b", 3, 1, 3),
    ("interleaved", 4, 3, 8),
    ("interleaved", 2, 2, 1),
    ("interleaved_zero_bubble", 3, 1, 6),
    ("interleaved_zero_bubble", 4, 2, 8),
    ("zbv", 3, 2, 2),
    ("zbv", 4, 2, 11),
)


def pipeline_of(schedule: ScheduleName, ranks: int, stages_per_rank: int, microbatches: int) -> Pipeline:
    return Pipeline(
        schedule=schedule,
        ranks=ranks,
        stages_per_rank=stages_per_rank,
        microbatches=microbatches,
        boundary_bytes=4,
    )


def random_times(pipeline: Pipeline, draw: random.Random) -> StepTimes:
    kinds = sorted({(action.stage, action.kind) for action in chain.from_iterable(actions(pipeline))})
    return StepTimes(
        computing_s={kind: draw.random() for kind in kinds},
        inside_s={kind: draw.random() / 7 for kind in kinds},
        first_s={stage: draw.random() for stage in range(pipeline.stages)},
        last_s={stage: draw.random() for stage in range(pipeline.stages)},
        handed_on_s={kind: draw.choice((0.0, draw.random() / 3)) for kind in kinds},
    )


def taken_s(pipeline: Pipeline, times: StepTimes, action: Action) -> float:
    inside_s = times.inside_s[action.stage, action.kind]
    if action.kind == "forward" and action.microbatch == 0:
        inside_s += times.first_s[action.stage]
    if action.kind in ("backward", "weight_backward") and action.microbatch == pipeline.microbatches - 1:
        inside_s += times.last_s[action.stage]
    return times.computing_s[action.stage, action.kind] + inside_s


@pytest.mark.parametrize("sizes", PIPELINES, ids=str)
def test_it_is_the_simulators_to_the_last_bit(sizes: tuple[ScheduleName, int, int, int]) -> None:
    pipeline, draw = pipeline_of(*sizes), random.Random(1)
    order = actions(pipeline)
    for _ in range(5):
        times = random_times(pipeline, draw)
        planned = list(chain.from_iterable(order))
        taken = {action: taken_s(pipeline, times, action) for action in planned}
        delays = {action: Delay(hand_over_s=times.handed_on_s[action.stage, action.kind]) for action in planned}
        assert makespan_s(pipeline, times) == replay(order, taken, delays).makespan_s


def test_a_hand_made_step_of_two_stages_takes_what_its_longest_chain_does() -> None:
    times = StepTimes(
        computing_s={(0, "forward"): 1.0, (0, "backward"): 2.0, (1, "forward"): 1.0, (1, "backward"): 2.0},
        inside_s=dict.fromkeys([(0, "forward"), (0, "backward"), (1, "forward"), (1, "backward")], 0.0),
        first_s={0: 10.0, 1: 0.0},
        last_s={0: 100.0, 1: 0.0},
        handed_on_s={(0, "forward"): 0.5, (0, "backward"): 9.0, (1, "forward"): 9.0, (1, "backward"): 0.25},
    )
    # Forward 11, its message 0.5, forward 1 and backward 2 of the last stage, a message 0.25, and backward 102.
    assert makespan_s(pipeline_of("gpipe", 2, 1, 1), times) == 11 + 0.5 + 1 + 2 + 0.25 + 102


def test_a_schedule_that_cannot_run_the_pipeline_is_refused() -> None:
    with pytest.raises(ValueError, match="one_f_one_b on 4 ranks takes 4 or more"):
        makespan_s(
            pipeline_of("one_f_one_b", 4, 1, 3),
            StepTimes(computing_s={}, inside_s={}, first_s={}, last_s={}, handed_on_s={}),
        )


@given(st.lists(st.sampled_from("FB"), max_size=40))
def test_runs_are_the_names_in_order(names: list[str]) -> None:
    runs = list(in_runs(names))
    assert [name for unit, times in runs for _ in range(times) for name in unit] == names
    assert all(1 <= len(unit) <= 2 for unit, _ in runs)


def test_what_repeats_alone_or_in_turn_is_one_run() -> None:
    assert list(in_runs("FFFBFBFB")) == [("F", 3), ("BF", 2), ("B", 1)]
