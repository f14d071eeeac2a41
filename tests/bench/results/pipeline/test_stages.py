"""What timed actions say of a pipeline, from steps that are known by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.results.pipeline import bubble_ratio, join_steps, most_live, pipelines, stage_seconds
from tests.bench.results.pipeline.staged import GPIPE, ONE_F_ONE_B, PARTED, Row, performed, timed_step


def test_the_bubble_is_what_ranks_compute_nothing_in_of_the_pipelines_whole_time() -> None:
    assert bubble_ratio(timed_step(GPIPE).works, (0, 1)) == pytest.approx(1 - 12 / 18)


def test_the_bubble_of_one_pipeline_counts_no_other_ones_ranks() -> None:
    idle: Row = [("forward", 0, 0, 0, 1), ("forward", 0, 1, 99, 100)]
    works = timed_step([GPIPE[0], idle, GPIPE[1]]).works
    assert bubble_ratio(works, (0, 2)) == pytest.approx(1 - 12 / 18)


def test_a_bubble_of_ranks_that_did_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="ranks 5 performed no action"):
        bubble_ratio(timed_step(GPIPE).works, (5,))


def test_ranks_of_one_clock_are_set_against_each_other_by_it() -> None:
    late = performed(GPIPE[1], begun_ns=1_000_000)
    (step,) = join_steps([[performed(GPIPE[0])], [late]])
    assert step.is_one_clock
    assert [work.start_ns for work in step.works if work.rank == 1] == [2_000_000, 3_000_000, 4_000_000, 6_000_000]


@pytest.mark.parametrize("clocks", [("a", "b"), (None, None)])
def test_ranks_of_several_clocks_count_each_from_its_own_beginning(clocks: Sequence[str | None]) -> None:
    (step,) = join_steps(
        [
            [performed(row, begun_ns=begun_ns, clock=clock)]
            for row, begun_ns, clock in zip(GPIPE, (5, 99_000_000), clocks, strict=True)
        ]
    )
    assert not step.is_one_clock
    assert bubble_ratio(step.works, (0, 1)) == pytest.approx(1 - 12 / 18)


def test_a_step_that_a_rank_did_not_log_is_left_out() -> None:
    steps = join_steps(
        [[performed(GPIPE[0], step=8), performed(GPIPE[0], step=9)], [performed(GPIPE[1], step=9)]],
    )
    assert [step.step for step in steps] == [9]


def test_a_stages_time_is_the_median_over_its_microbatches() -> None:
    uneven: Row = [
        ("forward", 0, 0, 0, 1),
        ("forward", 0, 1, 1, 3),
        ("forward", 0, 2, 3, 12),
        ("backward", 0, 0, 12, 16),
    ]
    assert stage_seconds(timed_step([uneven]).works) == {(0, "forward"): 2e-3, (0, "backward"): 4e-3}


def test_gpipe_holds_all_microbatches_in_each_stage() -> None:
    works = timed_step(GPIPE).works
    assert [most_live(works, stage) for stage in (0, 1)] == [2, 2]


def test_one_f_one_b_holds_fewer_in_later_stages() -> None:
    works = timed_step(ONE_F_ONE_B).works
    assert [most_live(works, stage) for stage in (0, 1)] == [2, 1]


def test_a_microbatch_is_held_until_both_halves_of_its_backward_are_done() -> None:
    again: Row = [
        ("forward", 0, 0, 0, 1),
        ("input_backward", 0, 0, 1, 2),
        ("forward", 0, 1, 2, 3),
        ("weight_backward", 0, 0, 3, 4),
    ]
    assert most_live(timed_step([again]).works, 0) == 2


def test_the_stages_of_a_rank_are_told_apart() -> None:
    assert [most_live(timed_step(PARTED).works, stage) for stage in range(4)] == [1, 1, 1, 1]


def test_of_several_pipelines_that_counts_which_holds_most() -> None:
    rows = [GPIPE[0], ONE_F_ONE_B[0], ONE_F_ONE_B[1], GPIPE[1]]
    assert [most_live(timed_step(rows).works, stage) for stage in (0, 1)] == [2, 2]


def test_pipelines_lie_along_the_axis_of_stages() -> None:
    assert pipelines({"stage": 4}) == ((0, 1, 2, 3),)
    assert pipelines({"data": 2, "stage": 2, "tensor": 2}) == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_a_mesh_without_stages_has_no_pipeline() -> None:
    with pytest.raises(ValueError, match="one called stage"):
        pipelines({"data": 2})
