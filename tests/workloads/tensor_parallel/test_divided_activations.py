"""What a rank with a part of each product keeps for backward, by hand."""

from __future__ import annotations

import pytest

from workloads.cost_models.memory import Checkpoint, Microbatch, Precision
from workloads.cost_models.shape import Shape
from workloads.tensor_parallel.cost_model import ShardedMicrobatch, shard_microbatch

SHAPE = Shape(layers=3, width=8, heads=4, kv_heads=2, mlp_width=12, vocabulary=10, sequence=6, batch=2)
POSITIONS = 2 * 6


def part(
    *,
    ranks: int = 2,
    precision: Precision = "fp32",
    checkpoint: Checkpoint = "none",
    is_stream_sharded: bool = False,
    is_loss_sharded: bool = False,
) -> ShardedMicrobatch:
    whole = Microbatch(shape=SHAPE, sequences=2, precision=precision, checkpoint=checkpoint)
    return shard_microbatch(whole, ranks=ranks, is_stream_sharded=is_stream_sharded, is_loss_sharded=is_loss_sharded)


def test_a_block_by_hand() -> None:
    """Elements: the stream twice; for each norm a scale, its output before and after the weight; then the rank's part:
    one half of 4 heads of 2, of keys and values for 2, attention's output twice with its log-sum-exp, four times 6."""
    norms = 2 * (1 + 8 + 8)
    heads = 4 + 2 * 2 + 4 + 4 + 2
    assert part().block_bytes == 4 * POSITIONS * (2 * 8 + norms + heads + 4 * 6)


def test_of_a_divided_stream_all_but_what_products_read_is_a_ranks_own() -> None:
    norms = 2 * (1 / 2 + 8 / 2 + 8)
    heads = 4 + 2 * 2 + 4 + 4 + 2
    assert part(is_stream_sharded=True).block_bytes == 4 * POSITIONS * (2 * 8 / 2 + norms + heads + 4 * 6)


def test_in_half_precision_all_products_read_one_copy_and_weights_are_copied_in_part() -> None:
    half = part(precision="bf16")
    assert half.norm_bytes(readers=3) == half.norm_bytes(readers=1) == POSITIONS * (4 + 4 * 8 + 2 * 8)
    assert half.block_casts_bytes == 2 * SHAPE.block_parameters() // 2
    assert part().block_casts_bytes == 0


@pytest.mark.parametrize("checkpoint", ["none", "full", "selective"])
def test_one_rank_keeps_what_a_whole_model_does(checkpoint: Checkpoint) -> None:
    whole = Microbatch(shape=SHAPE, sequences=2, precision="fp32", checkpoint=checkpoint)
    alone = part(ranks=1, checkpoint=checkpoint)
    assert alone.stored_block_bytes == whole.stored_block_bytes
    assert alone.head_bytes == whole.head_bytes


def test_checkpointed_blocks_keep_their_input_or_their_products() -> None:
    assert part(checkpoint="full").stored_block_bytes == 4 * POSITIONS * 8
    assert part(checkpoint="full", is_stream_sharded=True).stored_block_bytes == 4 * POSITIONS * 8 // 2
    # Beside the input: queries, both products by rows, keys and values, gate and up; attention's output and its sums.
    products = 4 + 2 * 8 + 2 * 2 + 2 * 6 + 4 + 2
    assert part(checkpoint="selective").stored_block_bytes == 4 * POSITIONS * (8 + products)


def test_logits_are_whole_unless_the_loss_is_divided() -> None:
    assert part().logits_bytes == part().probabilities_bytes == 4 * POSITIONS * 10
    assert part(is_loss_sharded=True).logits_bytes == part(is_loss_sharded=True).probabilities_bytes
    assert part(is_loss_sharded=True).logits_bytes == 4 * POSITIONS * 5
