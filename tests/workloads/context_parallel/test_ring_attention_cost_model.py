"""What a rank of the ring computes is what its positions see; what it sends is what travels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workloads.context_parallel.cost_model import PositionLayout, RingTraffic, pairs_with, ring_pairs
from workloads.cost_models.shape import Shape

SHAPE = Shape(layers=3, width=32, heads=4, kv_heads=2, mlp_width=8, vocabulary=8, sequence=24, batch=8)
TRAFFIC = RingTraffic(
    shape=SHAPE, ranks=4, sequences=2, microbatches=2, element_bytes=2, is_recomputed=False, is_overlapped=True
)
# Two sequences of six positions, two heads of eight elements, keys and values.
ELEMENTS = 2 * 6 * 2 * 8 * 2


def held(layout: PositionLayout, sequence: int, rank: int, ranks: int) -> set[int]:
    """The positions of a rank by the layout's definition."""
    size = sequence // ranks
    if layout == "plain":
        return set(range(rank * size, (rank + 1) * size))
    half, end = size // 2, sequence - rank * size // 2
    return {*range(rank * half, (rank + 1) * half), *range(end - half, end)}


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("layout", ["plain", "zigzag"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_pairs_are_those_that_the_positions_make(ranks: int, layout: PositionLayout, is_causal: bool) -> None:
    for rank in range(ranks):
        for source in range(ranks):
            counted = sum(
                key <= query or not is_causal
                for query in held(layout, 24, rank, ranks)
                for key in held(layout, 24, source, ranks)
            )
            assert pairs_with(source, layout, is_causal=is_causal, sequence=24, rank=rank, ranks=ranks) == counted


@pytest.mark.parametrize("layout", ["plain", "zigzag"])
def test_the_pairs_of_all_ranks_are_those_of_the_mask(layout: PositionLayout) -> None:
    assert sum(ring_pairs(layout, is_causal=True, sequence=24, rank=rank, ranks=4) for rank in range(4)) == 24 * 25 // 2


def test_zigzag_is_equal_on_all_ranks() -> None:
    assert {ring_pairs("zigzag", is_causal=True, sequence=24, rank=rank, ranks=4) for rank in range(4)} == {75}


def test_the_last_plain_rank_computes_nearly_twice_its_share() -> None:
    plain = [ring_pairs("plain", is_causal=True, sequence=4096, rank=rank, ranks=8) for rank in range(8)]
    assert plain[-1] / (sum(plain) / 8) == pytest.approx(15 / 8, rel=1e-3)


def test_keys_and_values_visit_three_ranks_and_their_gradients_come_home() -> None:
    forward, again, gradients, home = TRAFFIC.transfers
    calls = 3 * SHAPE.layers * 2
    assert (forward.calls, forward.payload_bytes, forward.behind) == (calls, calls * ELEMENTS * 2, "forward")
    assert (again.calls, again.payload_bytes, again.behind) == (calls, calls * ELEMENTS * 2, "backward")
    assert (gradients.calls, gradients.payload_bytes) == (calls, calls * ELEMENTS * 4)
    assert (home.calls, home.payload_bytes, home.behind) == (calls // 3, calls // 3 * ELEMENTS * 4, None)


def test_what_is_computed_again_is_sent_again() -> None:
    once, twice = (replace(TRAFFIC, is_recomputed=again).transfers for again in (False, True))
    assert twice == (*once[:2], once[1], *once[2:])


def test_without_overlap_nothing_hides() -> None:
    assert {transfer.behind for transfer in replace(TRAFFIC, is_overlapped=False).transfers} == {None}


def test_alone_nothing_is_sent() -> None:
    assert replace(TRAFFIC, ranks=1).transfers == ()
