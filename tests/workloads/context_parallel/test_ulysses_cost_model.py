"""What Ulysses sends, by hand and by the paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workloads.context_parallel.cost_model import HeadTraffic, RingTraffic, ulysses_pairs
from workloads.cost_models.communication import wire_bytes
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import Transfer

SHAPE = Shape(layers=3, width=8, heads=4, kv_heads=2, mlp_width=1, vocabulary=2, sequence=12, batch=2)


def traffic(
    shape: Shape = SHAPE, *, ranks: int = 2, microbatches: int = 1, element_bytes: int = 4, is_recomputed: bool = False
) -> HeadTraffic:
    return HeadTraffic(
        shape=shape,
        ranks=ranks,
        sequences=1,
        microbatches=microbatches,
        element_bytes=element_bytes,
        is_recomputed=is_recomputed,
    )


def total_bytes(traffic: HeadTraffic) -> int:
    return sum(transfer.payload_bytes for transfer in traffic.transfers)


def test_a_step_by_hand() -> None:
    """6 positions of 8 heads of 2 elements go out, and of 4 heads come back; in 3 layers, forward and backward."""
    assert traffic().transfers == (
        Transfer(collective="all_to_all", axis="sequence", payload_bytes=6 * 6 * 8 * 2 * 4, calls=6),
        Transfer(collective="all_to_all", axis="sequence", payload_bytes=6 * 6 * 4 * 2 * 4, calls=6),
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_forward_sends_what_the_paper_says_where_heads_are_not_grouped(ranks: int) -> None:
    """4 N d / P elements per layer; a step's other half is backward's."""
    paper_forward_elements = 4 * SHAPE.layers * SHAPE.sequence * SHAPE.width // ranks
    assert total_bytes(traffic(replace(SHAPE, kv_heads=4), ranks=ranks, element_bytes=1)) == 2 * paper_forward_elements


def test_a_rank_sends_as_much_where_ranks_grow_with_the_sequence() -> None:
    """The paper's claim."""
    assert total_bytes(traffic(replace(SHAPE, sequence=48), ranks=4)) == total_bytes(
        traffic(replace(SHAPE, sequence=24), ranks=2)
    )


@pytest.mark.parametrize(("kv_heads", "ranks"), [(6, 2), (3, 3)])
def test_a_ring_sends_as_much_forward_on_one_rank_more_than_queries_share_a_key(kv_heads: int, ranks: int) -> None:
    shape = replace(SHAPE, width=12, heads=6, kv_heads=kv_heads)
    exchanges = traffic(shape, ranks=ranks).transfers  # Half of them are backward's.
    wire = sum(wire_bytes(exchange, ranks, "nccl") for exchange in exchanges) // 2
    ring = RingTraffic(
        shape=shape,
        ranks=ranks,
        sequences=1,
        microbatches=1,
        element_bytes=4,
        is_recomputed=False,
        is_overlapped=True,
    )
    assert ring.transfers[0].payload_bytes == wire


def test_each_microbatch_sends_its_own_positions() -> None:
    assert total_bytes(traffic(microbatches=4)) == 4 * total_bytes(traffic())


def test_halves_are_half_the_bytes() -> None:
    assert 2 * total_bytes(traffic(element_bytes=2)) == total_bytes(traffic())


def test_what_is_computed_again_is_sent_a_third_time() -> None:
    assert 2 * total_bytes(traffic(is_recomputed=True)) == 3 * total_bytes(traffic())
    assert {transfer.calls for transfer in traffic(is_recomputed=True).transfers} == {9}


def test_alone_nothing_is_sent() -> None:
    assert traffic(ranks=1).transfers == ()


def test_ranks_share_the_causal_pairs_of_a_sequence() -> None:
    assert ulysses_pairs(sequence=4, ranks=1) == 1 + 2 + 3 + 4
    assert 4 * ulysses_pairs(sequence=4, ranks=4) == ulysses_pairs(sequence=4, ranks=1)
