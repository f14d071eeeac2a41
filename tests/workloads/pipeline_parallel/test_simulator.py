"""The simulated pipeline, against the papers' formulas, a step drawn by hand, and what holds for any times."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.cost_models.schedules import Action, ActionKind, Pipeline, ScheduleName, actions, why_not
from workloads.pipeline_parallel.simulator import Simulated, StageTimes, simulate

EQUAL_S: dict[ActionKind, float] = {"forward": 1, "backward": 2, "input_backward": 1, "weight_backward": 1}
KINDS = get_args(ActionKind)


def pipeline(schedule: ScheduleName, ranks: int, stages_per_rank: int, microbatches: int) -> Pipeline:
    return Pipeline(
        schedule=schedule,
        ranks=ranks,
        stages_per_rank=stages_per_rank,
        microbatches=microbatches,
        boundary_bytes=4,
    )


def equal_stages(stages: int) -> StageTimes:
    return {(stage, kind): EQUAL_S[kind] for stage in range(stages) for kind in KINDS}


def simulated(schedule: ScheduleName, ranks: int, stages_per_rank: int, microbatches: int) -> Simulated:
    one = pipeline(schedule, ranks, stages_per_rank, microbatches)
    return simulate(actions(one), equal_stages(one.stages))


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (2, 5), (4, 4), (4, 16), (4, 32), (7, 30), (1, 3)])
def test_gpipe_and_one_f_one_b_wait_p_minus_1_of_m_plus_p_minus_1(
    schedule: ScheduleName, ranks: int, microbatches: int
) -> None:
    expected = Fraction(ranks - 1, microbatches + ranks - 1)
    assert simulated(schedule, ranks, 1, microbatches).bubble_ratio == pytest.approx(float(expected))


@pytest.mark.parametrize(("microbatches", "percent"), [(32, 8.6), (16, 15.8)])
def test_the_published_bubbles_of_four_stages(microbatches: int, percent: float) -> None:
    assert round(100 * simulated("gpipe", 4, 1, microbatches).bubble_ratio, 1) == percent


@pytest.mark.parametrize(("ranks", "stages_per_rank", "microbatches"), [(4, 2, 8), (2, 2, 4), (4, 3, 16), (3, 4, 6)])
def test_interleaving_divides_the_wait_by_the_stages_of_a_rank(
    ranks: int, stages_per_rank: int, microbatches: int
) -> None:
    expected = Fraction(ranks - 1, stages_per_rank * microbatches + ranks - 1)
    found = simulated("interleaved", ranks, stages_per_rank, microbatches).bubble_ratio
    assert found == pytest.approx(float(expected))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_of_a_naive_pipeline_one_rank_works_at_a_time(ranks: int) -> None:
    assert simulated("naive", ranks, 1, 1).bubble_ratio == pytest.approx((ranks - 1) / ranks)


@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_a_v_of_equal_thirds_waits_only_to_fill(ranks: int) -> None:
    # Qi et al. 2023, section 6: the first forward reaches the last rank after p - 1, and nobody waits from then on.
    microbatches = 3 * ranks
    found = simulated("zbv", ranks, 2, microbatches)
    assert found.makespan_s == pytest.approx(6 * microbatches + ranks - 1)


def test_zero_bubble_with_one_stage_a_rank_waits_a_third_of_one_f_one_b() -> None:
    # Qi et al. 2023, table 2: (p - 1)(F + I - W) instead of (p - 1)(F + B), here 1 instead of 3.
    ranks, microbatches = 4, 12
    halved = simulated("interleaved_zero_bubble", ranks, 1, microbatches)
    whole = simulated("one_f_one_b", ranks, 1, microbatches)
    busy_s = 3 * microbatches
    assert [round(one.makespan_s - busy_s) for one in (halved, whole)] == [ranks - 1, 3 * (ranks - 1)]


def test_a_step_drawn_by_hand() -> None:
    # Forward 1 and 2, backward 2 and 3, half a second on the wire:
    # rank 0: F0 0-1, F1 1-2,               B0 7-9, B1 10-12
    # rank 1:   F0 1.5-3.5, B0 3.5-6.5, F1 6.5-8.5, B1 8.5-11.5: its gradient is there at 12, so B1 of rank 0 is 12-14
    times: StageTimes = {(0, "forward"): 1, (0, "backward"): 2, (1, "forward"): 2, (1, "backward"): 3}
    found = simulate(actions(pipeline("one_f_one_b", 2, 1, 2)), times, transfer_s=0.5)
    spans = [[(done.action.kind[0], done.start_s, done.end_s) for done in rank] for rank in found.performed]
    assert spans == [
        [("f", 0, 1), ("f", 1, 2), ("b", 7, 9), ("b", 12, 14)],
        [("f", 1.5, 3.5), ("b", 3.5, 6.5), ("f", 6.5, 8.5), ("b", 8.5, 11.5)],
    ]
    assert found.makespan_s == 14
    assert found.busy_s == (6, 10)
    assert found.stage_busy_s == {0: 6, 1: 10}
    assert found.bubble_ratio == pytest.approx(12 / 28)
    assert found.bottleneck_stage == 1
    assert found.live_microbatches == (2, 1)


def test_stages_of_one_rank_hand_over_at_once() -> None:
    one = pipeline("zbv", 2, 2, 1)
    found = simulate(actions(one), equal_stages(4), transfer_s=10)
    ends_s = {(done.action.kind, done.action.stage): done.end_s for rank in found.performed for done in rank}
    starts_s = {(done.action.kind, done.action.stage): done.start_s for rank in found.performed for done in rank}
    waits_s = [starts_s["forward", stage + 1] - ends_s["forward", stage] for stage in range(3)]
    assert waits_s == [10, 0, 10]


def test_equal_stages_have_no_bottleneck() -> None:
    assert simulated("interleaved", 4, 2, 8).bottleneck_stage is None


def test_an_order_that_waits_for_itself_is_refused() -> None:
    order = [
        [Action(kind="backward", stage=0, microbatch=0), Action(kind="forward", stage=0, microbatch=0)],
        [Action(kind="forward", stage=1, microbatch=0), Action(kind="backward", stage=1, microbatch=0)],
    ]
    with pytest.raises(
        ValueError,
        match="rank 0 can never begin backward of microbatch 0 on stage 0: forward of microbatch 0 on stage 0 must",
    ):
        simulate(order, equal_stages(2))


def test_an_action_that_is_there_twice_is_refused() -> None:
    twice = Action(kind="forward", stage=0, microbatch=3)
    with pytest.raises(ValueError, match="forward of microbatch 3 on stage 0 occurs twice, on rank 0 and on rank 1"):
        simulate([[twice], [twice]], equal_stages(1))


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ({(0, "forward"): 1.0}, "the time of backward on stage 0 is missing"),
        ({(0, "forward"): 1.0, (0, "backward"): -2.0}, "the time of backward on stage 0 is -2.0 s; it must be 0 or"),
        ({(0, "forward"): 0.0, (0, "backward"): 0.0}, "no action takes time"),
    ],
)
def test_times_that_make_no_step_are_refused(times: StageTimes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        simulate(actions(pipeline("gpipe", 1, 1, 1)), times)


def test_a_negative_transfer_is_refused() -> None:
    with pytest.raises(ValueError, match="transfer_s is -1; it must be 0 or more"):
        simulate(actions(pipeline("gpipe", 1, 1, 1)), equal_stages(1), transfer_s=-1)


@st.composite
def timed_pipelines(draw: st.DrawFn) -> tuple[Pipeline, StageTimes, float]:
    schedule: ScheduleName = draw(st.sampled_from(get_args(ScheduleName)))
    per_rank = 2 if schedule == "zbv" else draw(st.integers(2, 3)) if schedule.startswith("inter") else 1
    ranks = draw(st.integers(1, 4))
    microbatches = 1 if schedule == "naive" else draw(st.integers(1, 9))
    if why_not(schedule, ranks, per_rank, microbatches) is not None:
        microbatches = 2 * ranks
    one = pipeline(schedule, ranks, per_rank, microbatches)
    seconds = st.integers(1, 50)
    times = {(stage, kind): float(draw(seconds)) for stage in range(one.stages) for kind in KINDS}
    return one, times, float(draw(st.integers(0, 20)))


@settings(max_examples=60)
@given(timed_pipelines())
def test_no_step_is_shorter_than_its_busiest_rank_or_its_longest_path(
    drawn: tuple[Pipeline, StageTimes, float],
) -> None:
    one, times, transfer_s = drawn
    found = simulate(actions(one), times, transfer_s=transfer_s)
    back: ActionKind = (
        "backward" if ("backward" in {done.action.kind for done in found.performed[0]}) else "input_backward"
    )
    hops = sum(one.rank_of(stage) != one.rank_of(stage + 1) for stage in range(one.stages - 1))
    path_s = sum(times[stage, "forward"] + times[stage, back] for stage in range(one.stages)) + 2 * hops * transfer_s
    assert found.makespan_s >= max(*found.busy_s, path_s)
    assert 0 <= found.bubble_ratio < 1


@settings(max_examples=60)
@given(timed_pipelines())
def test_a_rank_does_one_thing_at_a_time_and_computes_what_it_was_given(
    drawn: tuple[Pipeline, StageTimes, float],
) -> None:
    one, times, transfer_s = drawn
    order = actions(one)
    found = simulate(order, times, transfer_s=transfer_s)
    for rank, performed in enumerate(found.performed):
        assert [done.action for done in performed] == list(order[rank])
        assert all(earlier.end_s <= later.start_s for earlier, later in pairwise(performed))
        assert found.busy_s[rank] == sum(times[action.stage, action.kind] for action in order[rank])


@settings(max_examples=60)
@given(timed_pipelines(), st.data())
def test_a_slower_stage_or_link_never_shortens_the_step(
    drawn: tuple[Pipeline, StageTimes, float], data: st.DataObject
) -> None:
    one, times, transfer_s = drawn
    order = actions(one)
    place = data.draw(st.sampled_from(sorted(times)))
    before_s = simulate(order, times, transfer_s=transfer_s).makespan_s
    assert simulate(order, {**times, place: times[place] + 7}, transfer_s=transfer_s).makespan_s >= before_s
    assert simulate(order, times, transfer_s=transfer_s + 3).makespan_s >= before_s
