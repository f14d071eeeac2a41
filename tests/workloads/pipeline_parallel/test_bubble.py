"""The split of a bubble, against splits worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.cost_models.absent import Absent
from workloads.cost_models.schedules import ActionKind, Pipeline, ScheduleName, actions, balance, equal_layers
from workloads.pipeline_parallel.simulator import StageTimes, mean_stage, simulate, split_bubble

UNKNOWN = Absent(reason="no link was measured")
WHOLE: tuple[ActionKind, ...] = ("forward", "backward")


def pipeline(schedule: ScheduleName, ranks: int, microbatches: int) -> Pipeline:
    return Pipeline(
        schedule=schedule,
        ranks=ranks,
        stages_per_rank=2 if schedule == "zbv" else 1,
        microbatches=microbatches,
        boundary_bytes=4,
    )


def times_of(*stages: tuple[float, float]) -> StageTimes:
    return {
        (stage, kind): seconds for stage, both in enumerate(stages) for kind, seconds in zip(WHOLE, both, strict=True)
    }


def test_equal_stages_and_no_link_leave_schedule_and_unexplained() -> None:
    split = split_bubble(0.3, pipeline("gpipe", 4, 8), times_of(*[(1, 2)] * 4), transfer_s=UNKNOWN)
    assert split.schedule_ratio == pytest.approx(3 / 11)
    assert split.imbalance_ratio == pytest.approx(0)
    assert split.transfer_ratio == UNKNOWN
    assert split.unexplained_ratio == pytest.approx(0.3 - 3 / 11)
    assert split.bottleneck_stage is None


def test_a_slow_stage_is_named_and_its_share_is_the_imbalance() -> None:
    # Two microbatches through stages of 1 + 1 and 3 + 3: with the mean, 2 + 2, the step is (2 + 1) x 4 = 12 and
    # 16 of 24 are work. As they are, it is 1 + 4 x 3 + 1 = 14, of which 16 of 28 are work.
    split = split_bubble(0.5, pipeline("one_f_one_b", 2, 2), times_of((1, 1), (3, 3)), transfer_s=0)
    assert split.schedule_ratio == pytest.approx(1 / 3)
    assert split.imbalance_ratio == pytest.approx(12 / 28 - 1 / 3)
    assert split.transfer_ratio == pytest.approx(0)
    assert split.unexplained_ratio == pytest.approx(0.5 - 12 / 28)
    assert split.bottleneck_stage == 1


def test_the_link_adds_its_round_trips() -> None:
    # A naive pipeline of two ranks: 2 x 3 s of work, and a message there and back of 1 s each.
    split = split_bubble(0.6, pipeline("naive", 2, 1), times_of((1, 2), (1, 2)), transfer_s=1)
    assert split.schedule_ratio == pytest.approx(1 / 2)
    assert split.transfer_ratio == pytest.approx(10 / 16 - 1 / 2)
    assert split.expected_ratio == pytest.approx(10 / 16)
    assert split.unexplained_ratio == pytest.approx(0.6 - 10 / 16)


def test_of_a_naive_pipeline_only_the_sum_counts() -> None:
    split = split_bubble(0.5, pipeline("naive", 2, 1), times_of((1, 3), (5, 2)), transfer_s=0)
    assert split.imbalance_ratio == pytest.approx(0)
    assert split.bottleneck_stage == 1


def test_imbalance_is_negative_where_a_light_last_stage_hides_the_drain() -> None:
    # Rank 0 is never free: F0 0-3, F1 3-6, B0 6-9, B1 9-12, since F0 and B0 of rank 1 fit behind F1. So 18 of 24 are
    # work, and with two mean stages 2 of 3 are.
    split = split_bubble(0.25, pipeline("one_f_one_b", 2, 2), times_of((3, 3), (2, 1)), transfer_s=0)
    assert split.imbalance_ratio == pytest.approx(1 / 4 - 1 / 3)
    assert split.unexplained_ratio == pytest.approx(0)


def of_blocks(counts: tuple[int, ...], *, head_s: float) -> StageTimes:
    """Stages of so many blocks of 1 s forward and 2 s back, the last with a head besides."""
    heads_s = [0.0] * (len(counts) - 1) + [head_s]
    return times_of(*((blocks + head, 2 * (blocks + head)) for blocks, head in zip(counts, heads_s, strict=True)))


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b"])
def test_balancing_by_work_shortens_the_step_that_equal_layers_make_wait_for_the_head(schedule: ScheduleName) -> None:
    # The textbook's case: four blocks for each of four stages, and a head of a large vocabulary, worth six.
    one = pipeline(schedule, 4, 8)
    equal = of_blocks(equal_layers(16, 4), head_s=6)
    balanced = of_blocks(balance([3.0] * 16, 4, after=18.0), head_s=6)
    assert split_bubble(0.5, one, equal, transfer_s=0).bottleneck_stage == 3
    makespans_s = [simulate(actions(one), times).makespan_s for times in (equal, balanced)]
    # 8 microbatches through 4 blocks and the head, filled through three stages of 4; then 1 and the head, and 5 each.
    assert makespans_s == [8 * 30 + 3 * 12, 8 * 21 + 3 * 15]


def test_the_mean_stage_computes_as_much_as_all_stages_in_turn() -> None:
    assert mean_stage(times_of((1, 4), (3, 2))) == times_of((2, 3), (2, 3))


def test_what_a_schedule_cannot_run_is_refused() -> None:
    with pytest.raises(ValueError, match="one_f_one_b on 4 ranks takes 4 or more"):
        split_bubble(0.5, pipeline("one_f_one_b", 4, 2), times_of(*[(1, 2)] * 4), transfer_s=0)


@settings(max_examples=60)
@given(
    schedule=st.sampled_from(("gpipe", "one_f_one_b", "zbv")),
    ranks=st.integers(1, 4),
    seconds=st.lists(st.floats(0.001, 10), min_size=32, max_size=32),
    transfer_s=st.one_of(st.just(UNKNOWN), st.floats(0, 10)),
    measured_ratio=st.floats(0, 1),
)
def test_the_parts_add_up(
    schedule: ScheduleName,
    ranks: int,
    seconds: list[float],
    transfer_s: float | Absent,
    measured_ratio: float,
) -> None:
    kinds: tuple[ActionKind, ...] = ("forward", "backward", "input_backward", "weight_backward")
    one = pipeline(schedule, ranks, 2 * ranks)
    times = {(stage, kind): seconds[4 * stage + at] for stage in range(one.stages) for at, kind in enumerate(kinds)}
    split = split_bubble(measured_ratio, one, times, transfer_s=transfer_s)
    transfer_ratio = 0 if isinstance(split.transfer_ratio, Absent) else split.transfer_ratio
    parts = [split.schedule_ratio, split.imbalance_ratio, transfer_ratio, split.unexplained_ratio]
    assert sum(parts) == pytest.approx(measured_ratio, abs=1e-12)
    assert sum(parts[:3]) == pytest.approx(split.expected_ratio, abs=1e-12)
