"""The blocks of all ranks are together the whole mask, once."""

from __future__ import annotations

from collections import Counter

import pytest

from workloads.context_parallel.cost_model import PositionLayout
from workloads.context_parallel.ring_attention import block_with

HELD = 4


def held_positions(layout: PositionLayout, rank: int, ranks: int) -> list[int]:
    """The positions of a rank by the layout's definition."""
    if layout == "plain":
        return list(range(rank * HELD, (rank + 1) * HELD))
    half = HELD // 2
    chunks = [list(range(start, start + half)) for start in range(0, HELD * ranks, half)]
    return chunks[rank] + chunks[2 * ranks - 1 - rank]


def computed(layout: PositionLayout, *, is_causal: bool, ranks: int) -> Counter[tuple[int, int]]:
    """Every pair of positions, as often as some rank computes it."""
    pairs: Counter[tuple[int, int]] = Counter()
    for rank in range(ranks):
        queries = held_positions(layout, rank, ranks)
        for source in range(ranks):
            block = block_with(source, layout, is_causal=is_causal, positions=HELD, rank=rank)
            if block is None:
                continue
            keys = held_positions(layout, source, ranks)[block.keys]
            for place, query in enumerate(queries[block.queries]):
                pairs.update((query, key) for key in (keys[: place + 1] if block.is_causal else keys))
    return pairs


@pytest.mark.parametrize("layout", ["plain", "zigzag"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_causal_ring_computes_each_pair_that_the_mask_leaves_once(ranks: int, layout: PositionLayout) -> None:
    sequence = HELD * ranks
    assert computed(layout, is_causal=True, ranks=ranks) == Counter(
        (query, key) for query in range(sequence) for key in range(query + 1)
    )


@pytest.mark.parametrize("layout", ["plain", "zigzag"])
def test_without_a_mask_a_ring_computes_all_pairs_once(layout: PositionLayout) -> None:
    assert computed(layout, is_causal=False, ranks=3) == Counter(
        (query, key) for query in range(3 * HELD) for key in range(3 * HELD)
    )


def test_a_plain_rank_computes_nothing_with_keys_of_later_ranks() -> None:
    assert block_with(2, "plain", is_causal=True, positions=HELD, rank=1) is None
