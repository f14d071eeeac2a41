"""Live microbatches, against what the papers state and an order counted by hand."""

from __future__ import annotations

import pytest

from workloads.cost_models.schedules import (
    Action,
    Pipeline,
    ScheduleName,
    actions,
    live_microbatches,
    live_microbatches_of_stages,
)


def order(
    schedule: ScheduleName, ranks: int, stages_per_rank: int, microbatches: int
) -> tuple[tuple[Action, ...], ...]:
    return actions(
        Pipeline(
            schedule=schedule,
            ranks=ranks,
            stages_per_rank=stages_per_rank,
            microbatches=microbatches,
            boundary_bytes=4,
        )
    )


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (4, 8), (4, 32)])
def test_gpipe_holds_all_microbatches(ranks: int, microbatches: int) -> None:
    assert live_microbatches(order("gpipe", ranks, 1, microbatches)) == (microbatches,) * ranks


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (4, 4), (4, 32)])
def test_one_f_one_b_holds_at_most_p_minus_stage_microbatches(ranks: int, microbatches: int) -> None:
    expected = tuple(ranks - stage for stage in range(ranks))
    assert live_microbatches(order("one_f_one_b", ranks, 1, microbatches)) == expected


def test_a_v_holds_as_much_as_one_f_one_b_on_every_rank() -> None:
    # Qi et al. 2023, section 6: p microbatches of a whole rank, which is 2 p of its stages.
    assert live_microbatches(order("zbv", 4, 2, 16)) == (8, 8, 8, 8)


def test_a_microbatch_is_held_until_its_weights_have_had_their_turn() -> None:
    # Rank 1 of two: F0 I0 F1 I1 W0 F2 I2 W1 W2; at F2 it holds 1, whose weights wait, and 2.
    halved = order("interleaved_zero_bubble", 2, 1, 3)[1]
    assert live_microbatches([halved]) == (2,)


def test_microbatches_of_a_ranks_stages_add_up() -> None:
    # Rank 0 of two with two stages warms up by F0.0 F1.0 F0.2 F1.2 and then F2.0, before anything comes back.
    interleaved = order("interleaved", 2, 2, 4)
    assert live_microbatches(interleaved)[0] == 5
    assert live_microbatches_of_stages(interleaved)[0] == 4
    assert list(live_microbatches_of_stages(interleaved)) == [0, 1, 2, 3]
