"""The spec of `ulysses`: which heads and sequences it refuses, and what would fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.context_parallel.spec import UlyssesSpec
from workloads.cost_models.shape import Shape
from workloads.spec import OptionValue

HEADS = replace(SMALL, width=48, heads=12, kv_heads=6, sequence=24)


def setup(ranks: int, shape: Shape = SMALL, **options: OptionValue) -> SmallSetup:
    return small_setup("ulysses", ranks=ranks, shape=shape, options=options)


@pytest.mark.parametrize(
    "options", [{}, {"accumulate": 2}, {"checkpoint": "full"}, {"checkpoint": "selective"}, {"compile": "default"}]
)
def test_what_runs_is_not_refused(options: dict[str, OptionValue]) -> None:
    assert UlyssesSpec().refusals(setup(2, SMALL, **options)) == []


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_ranks_that_divide_all_heads_are_not_refused(ranks: int) -> None:
    assert UlyssesSpec().refusals(setup(ranks, HEADS)) == []


def test_ranks_that_divide_no_heads_are_refused_with_those_that_do() -> None:
    (reason,) = UlyssesSpec().refusals(setup(8, HEADS))
    assert reason == (
        "heads 12 and kv_heads 6 cannot be shared equally by 8 ranks; --ranks 1, 2, 3 or 6 would fit these heads, and"
        " ring_attention shards no heads"
    )


def test_more_ranks_than_key_and_value_heads_are_refused() -> None:
    (reason,) = UlyssesSpec().refusals(setup(4))
    assert reason == (
        "kv_heads 2 cannot be shared equally by 4 ranks; --ranks 1 or 2 would fit these heads, and ring_attention"
        " shards no heads"
    )


def test_a_single_head_is_left_to_one_rank() -> None:
    (reason,) = UlyssesSpec().refusals(setup(2, replace(SMALL, kv_heads=1)))
    assert "--ranks 1 would fit" in reason


def test_a_sequence_that_ranks_cannot_share_is_refused_with_the_next_ones() -> None:
    (reason,) = UlyssesSpec().refusals(setup(3, replace(HEADS, sequence=16)))
    assert reason == "sequence 16 cannot be cut into 3 equal chunks; --sequence 15 or 18 would fit"


def test_a_sequence_shorter_than_the_ranks_is_refused_with_one_that_fits() -> None:
    (reason,) = UlyssesSpec().refusals(setup(6, replace(HEADS, sequence=4)))
    assert reason.endswith("--sequence 6 would fit")


def test_the_batch_is_shared_by_parts_alone() -> None:
    assert UlyssesSpec().refusals(setup(2, replace(SMALL, batch=1))) == []
    (reason,) = UlyssesSpec().refusals(setup(2, replace(SMALL, batch=3), accumulate=2))
    assert "--batch 2 or 4 would fit" in reason


def test_gradients_are_averaged_over_the_sequence_behind_backward() -> None:
    *_, average = UlyssesSpec().transfers(setup(2))
    assert (average.collective, average.axis, average.behind) == ("all_reduce", "sequence", "backward")
    assert average.payload_bytes == 4 * SMALL.parameters()


def test_alone_nothing_is_sent() -> None:
    assert UlyssesSpec().transfers(setup(1)) == ()


def test_the_papers_activations_are_divided_by_the_ranks() -> None:
    alone, shared = (UlyssesSpec().paper_activations(setup(ranks)) for ranks in (1, 2))
    assert isinstance(alone, int)
    assert shared == alone // 2
