"""What a divided model holds and sends, against answers made by hand, published counts, and ddp's own law."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from workloads.cost_models.communication import wire_bytes
from workloads.cost_models.shape import PRESETS, Shape
from workloads.cost_models.terms import Transfer, elements, model_weights, replicated_states
from workloads.fsdp.cost_model import (
    Sharding,
    own_elements,
    padded_elements,
    sharded_states,
    sharded_transfers,
    unreduced_bytes,
)

EVEN = Shape(layers=3, width=64, heads=4, kv_heads=2, mlp_width=128, vocabulary=64, sequence=16, batch=8)
UNEVEN = Shape(layers=2, width=18, heads=3, kv_heads=1, mlp_width=26, vocabulary=29, sequence=8, batch=8)


def totals(transfers: tuple[Transfer, ...]) -> Counter[str]:
    payload_bytes: Counter[str] = Counter()
    for transfer in transfers:
        payload_bytes[transfer.collective] += transfer.payload_bytes
    return payload_bytes


def calls(transfers: tuple[Transfer, ...]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for transfer in transfers:
        counted[transfer.collective] += transfer.calls
    return counted


def test_rows_are_divided_and_the_last_parts_filled_up() -> None:
    # 5 rows of 3 on 4 ranks: 2, 2, 1 and none; each part has room for 2.
    assert [own_elements([(5, 3)], rank=rank, ranks=4) for rank in range(4)] == [6, 6, 3, 0]
    assert padded_elements([(5, 3)], 4) == 6


def test_a_vector_is_divided_like_a_matrix_of_one_column() -> None:
    assert [own_elements([(5,)], rank=rank, ranks=2) for rank in range(2)] == [3, 2]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 64])
def test_all_parts_together_are_the_model(ranks: int) -> None:
    weights = model_weights(UNEVEN)
    own = [own_elements(weights, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert sum(own) == elements(weights)
    assert max(own) <= padded_elements(weights, ranks)


@pytest.mark.parametrize("wrap", ["block", "layer"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_divides_evenly_is_divided_by_the_ranks(wrap: str, ranks: int) -> None:
    whole = replicated_states(EVEN)
    states = sharded_states(Sharding(shape=EVEN, ranks=ranks, wrap=wrap), rank=0)  # type: ignore[arg-type]
    assert states.parameters_bytes == whole.parameters_bytes // ranks
    assert states.gradients_bytes == whole.gradients_bytes // ranks
    # The count of steps of each weight is on every rank.
    counts_bytes = 4 * EVEN.parameter_tensors()
    assert states.optimizer_bytes - counts_bytes == (whole.optimizer_bytes - counts_bytes) // ranks


def test_replicas_hold_the_same_parts() -> None:
    hybrid = Sharding(shape=UNEVEN, ranks=4, replicas=2)
    assert [sharded_states(hybrid, rank) for rank in range(4)] == [sharded_states(hybrid, rank) for rank in range(4, 8)]
    assert sharded_states(hybrid, 3) != sharded_states(hybrid, 0)


def test_a_gradient_that_is_copied_to_the_host_leaves_its_padding_behind() -> None:
    sharding = Sharding(shape=UNEVEN, ranks=4)
    here, away = (sharded_states(each, 3) for each in (sharding, replace(sharding, is_copied_away=True)))
    assert away.gradients_bytes == 4 * own_elements(model_weights(UNEVEN), rank=3, ranks=4) < here.gradients_bytes
    assert away.parameters_bytes == here.parameters_bytes


def test_32_blocks_are_gathered_65_times_and_reduced_33_times() -> None:
    # Counted by torch's CommDebugMode on a model of 32 layers, each a unit, in a root that is not resharded.
    counted = calls(sharded_transfers(Sharding(shape=PRESETS["8b"], ranks=1024)))
    assert counted == {"all_gather": 65, "reduce_scatter": 33}


@pytest.mark.parametrize("microbatches", [1, 4])
def test_weights_that_stay_gathered_are_gathered_once_a_step(microbatches: int) -> None:
    sharding = Sharding(shape=EVEN, ranks=2, is_resharded=False, microbatches=microbatches)
    assert totals(sharded_transfers(sharding))["all_gather"] == 4 * EVEN.parameters()


@pytest.mark.parametrize(("is_reduced_last", "reductions"), [(False, 4), (True, 1)])
def test_each_pass_gathers_weights_that_are_divided_again_and_reduces_gradients_that_are_not_kept_whole(
    is_reduced_last: bool, reductions: int
) -> None:
    once, often = (
        totals(
            sharded_transfers(Sharding(shape=EVEN, ranks=2, microbatches=microbatches, is_reduced_last=is_reduced_last))
        )
        for microbatches in (1, 4)
    )
    assert often["all_gather"] == 4 * once["all_gather"]
    assert often["reduce_scatter"] == reductions * once["reduce_scatter"] == reductions * 4 * EVEN.parameters()


def test_gradients_that_are_reduced_last_are_whole_until_then() -> None:
    last = Sharding(shape=PRESETS["70b"], ranks=64, microbatches=2, is_reduced_last=True)
    assert unreduced_bytes(last) == 4 * PRESETS["70b"].parameters() == pytest.approx(282e9, rel=0.01)
    assert unreduced_bytes(replace(last, is_reduced_last=False)) == 0
    assert unreduced_bytes(replace(last, microbatches=1)) == 0


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_gathering_once_sends_what_ddp_sends_and_resharding_at_most_half_as_much_again(ranks: int) -> None:
    """Source: Rajbhandari et al. 2020, ZeRO, section 7.2."""
    ddp = Transfer(collective="all_reduce", axis="shard", payload_bytes=4 * EVEN.parameters())
    kept, resharded = (
        sum(
            wire_bytes(transfer, ranks, "nccl")
            for transfer in sharded_transfers(Sharding(shape=EVEN, ranks=ranks, is_resharded=is_resharded))
        )
        for is_resharded in (False, True)
    )
    ddp_bytes = wire_bytes(ddp, ranks, "nccl")
    assert kept == ddp_bytes
    # Only what is in no block is gathered once in any case.
    outside = Fraction(2 * EVEN.vocabulary * EVEN.width + EVEN.width, EVEN.parameters())
    assert resharded == ddp_bytes * (1 + (1 - outside) / 2)


def test_halves_of_blocks_send_the_same_bytes_in_more_calls_but_for_the_norms() -> None:
    blocks = sharded_transfers(Sharding(shape=EVEN, ranks=2))
    halves = sharded_transfers(Sharding(shape=EVEN, ranks=2, wrap="layer"))
    assert totals(halves)["reduce_scatter"] == totals(blocks)["reduce_scatter"]
    # A block's two norms move to the outer unit, which is not gathered again.
    assert totals(blocks)["all_gather"] - totals(halves)["all_gather"] == 4 * 2 * EVEN.layers * EVEN.width
    assert calls(halves) == {"all_gather": 4 * EVEN.layers + 1, "reduce_scatter": 2 * EVEN.layers + 1}


def test_weights_divided_among_fewer_ranks_are_gathered_again_by_those_with_the_same_bytes() -> None:
    all_ranks = Sharding(shape=EVEN, ranks=4, replicas=2)
    fewer = replace(all_ranks, resharded_ranks=2)
    assert totals(sharded_transfers(fewer)) == totals(sharded_transfers(all_ranks))
    (again,) = (transfer for transfer in sharded_transfers(fewer) if transfer.ranks is not None)
    assert (again.ranks, again.calls) == (2, EVEN.layers)


def test_replicas_average_the_parts_that_they_share() -> None:
    sent = totals(sharded_transfers(Sharding(shape=EVEN, ranks=4, replicas=2)))
    assert sent["all_reduce"] == sent["reduce_scatter"] // 4 == EVEN.parameters()


def test_gradients_in_bf16_take_half_the_bytes_and_weights_do_not() -> None:
    sharding = Sharding(shape=EVEN, ranks=2)
    full, half = (totals(sharded_transfers(each)) for each in (sharding, replace(sharding, reduced_bytes=2)))
    assert half["reduce_scatter"] == full["reduce_scatter"] // 2
    assert half["all_gather"] == full["all_gather"]


def test_each_number_that_ranks_agree_on_is_an_all_reduce_of_four_bytes() -> None:
    numbers = sharded_transfers(Sharding(shape=EVEN, ranks=2, numbers=2))[-1]
    assert numbers == Transfer(collective="all_reduce", axis="shard", payload_bytes=8, calls=2)


def test_one_rank_sends_nothing() -> None:
    assert sharded_transfers(Sharding(shape=EVEN, ranks=1, numbers=2)) == ()


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_traffic_is_hidden_where_the_backend_can_hide_it(is_overlapped: bool) -> None:
    transfers = sharded_transfers(Sharding(shape=EVEN, ranks=2, replicas=2, is_overlapped=is_overlapped))
    assert {transfer.behind for transfer in transfers} == ({"forward", "backward"} if is_overlapped else {None})
