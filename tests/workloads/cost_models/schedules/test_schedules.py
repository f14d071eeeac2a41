"""Orders and refusals of schedules, against what torch's own do, and against orders drawn by hand."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from tests.workloads.cost_models.torch_schedules import torch_actions, torch_refuses
from workloads.cost_models.schedules import Action, ActionKind, Pipeline, ScheduleName, actions, why_not

NAMES = get_args(ScheduleName)
WHOLE: tuple[ScheduleName, ...] = ("naive", "gpipe", "one_f_one_b", "interleaved")
"""Those that do not part backward."""
LETTERS = {"forward": "F", "backward": "B", "input_backward": "I", "weight_backward": "W"}
STAGES_PER_RANK: dict[str, tuple[int, ...]] = {
    "interleaved": (2, 3),
    "interleaved_zero_bubble": (1, 2, 3),
    "zbv": (1, 2, 3),
}


def pipeline(schedule: ScheduleName, ranks: int, stages_per_rank: int, microbatches: int) -> Pipeline:
    return Pipeline(
        schedule=schedule,
        ranks=ranks,
        stages_per_rank=stages_per_rank,
        microbatches=microbatches,
        boundary_bytes=4,
    )


def pipelines(schedule: ScheduleName) -> list[Pipeline]:
    per_rank = STAGES_PER_RANK.get(schedule, (1,))
    microbatches = (1,) if schedule == "naive" else (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15)
    return [pipeline(schedule, *sizes) for sizes in product((2, 3, 4, 5), per_rank, microbatches)]


def refusal(one: Pipeline) -> str | None:
    return why_not(one.schedule, one.ranks, one.stages_per_rank, one.microbatches)


def written(order: tuple[Action, ...]) -> str:
    """Kind, microbatch, and the stage where it is not the rank's only one."""
    is_alone = len({action.stage for action in order}) == 1
    return " ".join(f"{LETTERS[one.kind]}{one.microbatch}{'' if is_alone else '.' + str(one.stage)}" for one in order)


@pytest.mark.parametrize("schedule", NAMES)
def test_each_rank_does_what_torch_does_in_its_order(schedule: ScheduleName) -> None:
    able = [one for one in pipelines(schedule) if refusal(one) is None]
    assert able
    for one in able:
        order = actions(one)
        assert list(order) == [torch_actions(one, rank) for rank in range(one.ranks)], one


@pytest.mark.parametrize("schedule", NAMES)
def test_what_torch_refuses_is_refused_and_nothing_else(schedule: ScheduleName) -> None:
    assert {one for one in pipelines(schedule) if refusal(one)} == {
        one for one in pipelines(schedule) if torch_refuses(one)
    }


@pytest.mark.parametrize(
    ("schedule", "kinds"),
    [(name, ("backward", "forward")) for name in WHOLE]
    + [(name, ("forward", "input_backward", "weight_backward")) for name in NAMES if name not in WHOLE],
)
def test_each_stage_passes_each_microbatch_forward_and_back_once(
    schedule: ScheduleName, kinds: tuple[ActionKind, ...]
) -> None:
    for one in pipelines(schedule):
        if refusal(one) is not None:
            continue
        order = actions(one)
        performed = [(action.kind, action.stage, action.microbatch) for rank in order for action in rank]
        assert sorted(performed) == list(product(kinds, range(one.stages), range(one.microbatches)))
        assert all(one.rank_of(action.stage) == rank for rank, own in enumerate(order) for action in own)


def test_gpipe_fills_and_drains() -> None:
    assert {written(rank) for rank in actions(pipeline("gpipe", 2, 1, 3))} == {"F0 F1 F2 B0 B1 B2"}


def test_one_f_one_b_warms_up_by_a_forward_for_each_rank_that_follows() -> None:
    assert [written(rank) for rank in actions(pipeline("one_f_one_b", 3, 1, 4))] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_interleaved_turns_to_its_next_stage_after_as_many_microbatches_as_ranks() -> None:
    assert [written(rank) for rank in actions(pipeline("interleaved", 2, 2, 4))] == [
        "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0",
        "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1",
    ]


def test_later_ranks_put_off_more_weights() -> None:
    assert [written(rank) for rank in actions(pipeline("interleaved_zero_bubble", 2, 1, 3))] == [
        "F0 F1 I0 W0 F2 I1 W1 I2 W2",
        "F0 I0 F1 I1 W0 F2 I2 W1 W2",
    ]


def test_a_v_goes_down_and_comes_up_on_the_same_ranks() -> None:
    assert [written(rank) for rank in actions(pipeline("zbv", 2, 2, 3))] == [
        "F0.0 F1.0 F2.0 F0.3 I0.3 W0.3 F1.3 I1.3 W1.3 I0.0 W0.0 F2.3 I2.3 W2.3 I1.0 W1.0 I2.0 W2.0",
        "F0.1 F0.2 F1.1 F1.2 I0.2 W0.2 F2.1 I0.1 W0.1 F2.2 I1.2 W1.2 I1.1 I2.2 I2.1 W1.1 W2.2 W2.1",
    ]


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (("naive", 4, 1, 8), "microbatches is 8; naive takes 1, the whole batch (gpipe takes more)"),
        (("gpipe", 4, 2, 8), "stages per rank is 2; gpipe takes 1 (interleaved takes more)"),
        (("one_f_one_b", 4, 1, 3), "microbatches is 3; one_f_one_b on 4 ranks takes 4 or more"),
        (
            ("interleaved", 4, 2, 13),
            "microbatches is 13; interleaved on 4 ranks runs them in 3 rounds of one size, so use 12 or 15, or any"
            " multiple of 4",
        ),
        (
            ("interleaved", 4, 1, 8),
            "stages per rank is 1; interleaved takes 2 or more (with 1 it is one_f_one_b, with a longer warm-up)",
        ),
        (("zbv", 4, 3, 8), "stages per rank is 3; zbv takes 2, the two arms of its V"),
        (
            ("gpipe", 4, 1, 0),
            "ranks, stages per rank and microbatches are 4, 1 and 0; each must be 1 or more",
        ),
    ],
)
def test_a_refusal_says_what_would_work(sizes: tuple[ScheduleName, int, int, int], reason: str) -> None:
    assert why_not(*sizes) == reason


def test_numbers_that_a_refusal_offers_work() -> None:
    assert [why_not("interleaved", 4, 2, microbatches) for microbatches in (12, 15, 16)] == [None, None, None]


def test_actions_of_what_is_refused_are_refused() -> None:
    with pytest.raises(ValueError, match="microbatches is 3; one_f_one_b on 4 ranks takes 4 or more"):
        actions(pipeline("one_f_one_b", 4, 1, 3))
