"""What tensor-parallel ranks hold and send, by hand and by the papers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from workloads.cost_models.memory import Checkpoint
from workloads.cost_models.memory import paper_activation_bytes as whole_activation_bytes
from workloads.cost_models.shape import PRESETS, Shape
from workloads.cost_models.terms import Transfer, replicated_states
from workloads.tensor_parallel.cost_model import (
    TensorTraffic,
    paper_activation_bytes,
    sharded_elements,
    tensor_parallel_states,
)

SHAPE = Shape(layers=3, width=8, heads=4, kv_heads=2, mlp_width=12, vocabulary=10, sequence=6, batch=2)
STREAM = 2 * 6 * 8
"""Elements of the residual stream of two sequences."""


def traffic(
    *,
    ranks: int = 2,
    microbatches: int = 1,
    product_bytes: int = 4,
    is_stream_sharded: bool = False,
    is_loss_sharded: bool = False,
    is_recomputed: bool = False,
    numbers: int = 0,
    has_all_to_all: bool = False,
) -> TensorTraffic:
    return TensorTraffic(
        shape=SHAPE,
        ranks=ranks,
        sequences=2,
        microbatches=microbatches,
        product_bytes=product_bytes,
        is_stream_sharded=is_stream_sharded,
        is_loss_sharded=is_loss_sharded,
        is_recomputed=is_recomputed,
        numbers=numbers,
        has_all_to_all=has_all_to_all,
    )


def calls(transfers: Iterable[Transfer]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for transfer in transfers:
        counted[transfer.collective] += transfer.calls
    return counted


def test_a_block_takes_two_all_reduces_forward_and_two_backward() -> None:
    """Shoeybi et al. 2019, figure 4."""
    (blocks,) = traffic().blocks(layers=1)
    assert blocks == Transfer(collective="all_reduce", axis="tensor", payload_bytes=4 * STREAM * 4, calls=4)


def test_a_divided_stream_takes_as_many_all_gathers_and_reduce_scatters() -> None:
    """Korthikanti et al. 2022, figure 5: four of each, whose rings send together what four all_reduces do."""
    assert calls(traffic(is_stream_sharded=True).blocks(layers=1)) == {"all_gather": 4, "reduce_scatter": 4}
    assert {transfer.payload_bytes for transfer in traffic(is_stream_sharded=True).blocks(layers=1)} == {4 * STREAM * 4}


def test_a_block_that_runs_again_brings_attention_together_again_and_leaves_the_mlp() -> None:
    assert calls(traffic(is_recomputed=True).blocks(layers=1)) == {"all_reduce": 5}
    again = traffic(is_recomputed=True, is_stream_sharded=True)
    assert calls(again.blocks(layers=1)) == {"all_gather": 6, "reduce_scatter": 5}


def test_products_in_half_precision_send_half() -> None:
    (full,), (half,) = traffic().blocks(layers=3), traffic(product_bytes=2).blocks(layers=3)
    assert full.payload_bytes == 2 * half.payload_bytes


def test_the_columns_of_the_embedding_come_together_in_full_precision() -> None:
    (columns,) = traffic(product_bytes=2).embedding()
    assert columns == Transfer(collective="all_gather", axis="tensor", payload_bytes=STREAM * 4)


def test_columns_are_exchanged_for_positions_and_back() -> None:
    """Each rank gives its half of the columns."""
    (exchange,) = traffic(is_stream_sharded=True, has_all_to_all=True).embedding()
    assert exchange == Transfer(collective="all_to_all", axis="tensor", payload_bytes=2 * STREAM * 4 // 2, calls=2)
    (gather,) = traffic(is_stream_sharded=True).embedding()
    assert gather == Transfer(collective="all_gather", axis="tensor", payload_bytes=2 * STREAM * 4, calls=2)


def test_the_head_brings_logits_together_or_three_numbers_a_token() -> None:
    gradient, logits = traffic().head()
    assert gradient == Transfer(collective="all_reduce", axis="tensor", payload_bytes=STREAM * 4)
    assert logits == Transfer(collective="all_gather", axis="tensor", payload_bytes=2 * 6 * 10 * 4)
    _, loss = traffic(is_loss_sharded=True, product_bytes=2).head()
    assert loss == Transfer(collective="all_reduce", axis="tensor", payload_bytes=3 * 2 * 6 * 4, calls=3)


def test_what_has_seen_a_ranks_positions_only_is_added_up_once_a_step() -> None:
    norms, numbers = traffic(is_stream_sharded=True, microbatches=4, numbers=2).update()
    assert norms == Transfer(collective="all_reduce", axis="tensor", payload_bytes=7 * 8 * 4)
    assert numbers == Transfer(collective="all_reduce", axis="tensor", payload_bytes=2 * 4, calls=2)
    assert list(traffic().update()) == []


def test_each_microbatch_pays_anew() -> None:
    once, twice = calls(traffic().transfers), calls(traffic(microbatches=2).transfers)
    assert twice == Counter({name: 2 * count for name, count in once.items()})


def test_one_rank_alone_sends_nothing() -> None:
    assert traffic(ranks=1, numbers=2).transfers == ()


def test_each_rank_holds_its_share_of_all_but_norms() -> None:
    norms = 7 * 8
    assert sharded_elements(SHAPE, 2) == norms + (SHAPE.parameters() - norms) // 2


def test_the_states_of_one_rank_alone_are_those_of_the_whole_model() -> None:
    assert tensor_parallel_states(SHAPE, 1) == replicated_states(SHAPE)


@pytest.mark.parametrize("checkpoint", ["none", "selective"])
def test_the_papers_activations_of_one_rank_are_those_of_the_whole_model(checkpoint: Checkpoint) -> None:
    for is_stream_sharded in (False, True):
        alone = paper_activation_bytes(SHAPE, 2, checkpoint, ranks=1, is_stream_sharded=is_stream_sharded)
        assert alone == whole_activation_bytes(SHAPE, 2, checkpoint)


def test_the_papers_activations_of_gpt_3() -> None:
    """Korthikanti et al. 2022, table 2, with s = 2048, b = 1, h = 12288, a = 96, t = 8."""
    gpt_3 = Shape(layers=1, width=12288, heads=96, kv_heads=96, mlp_width=1, vocabulary=2, sequence=2048, batch=1)
    stream, scores = 2048 * 12288, 5 * 96 * 2048**2
    by_paper = {
        ("none", False): 10 * stream + 24 * stream // 8 + scores // 8,
        ("none", True): 34 * stream // 8 + scores // 8,
        ("selective", False): 10 * stream + 24 * stream // 8,
        ("selective", True): 34 * stream // 8,
        ("full", False): 2 * stream,
        ("full", True): 2 * stream // 8,
    }
    for (checkpoint, is_divided), expected in by_paper.items():
        assert (
            paper_activation_bytes(gpt_3, 1, checkpoint, ranks=8, is_stream_sharded=is_divided)  # type: ignore[arg-type]
            == expected
        )


def test_the_papers_activations_are_rounded_up_to_the_byte() -> None:
    shape = PRESETS["tiny"]
    assert paper_activation_bytes(shape, 1, "selective", ranks=3, is_stream_sharded=True) * 3 >= whole_activation_bytes(
        shape, 1, "selective"
    )
