"""What DeepSpeed's ranks hold and send, against answers made by hand, the paper's account, and ddp's own law."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from workloads.cost_models.communication import wire_bytes
from workloads.cost_models.memory import ZeroStage, paper_states
from workloads.cost_models.shape import PRESETS, Shape
from workloads.cost_models.terms import Transfer, replicated_states
from workloads.deepspeed.cost_model import EngineModel, engine_states, engine_transfers

EVEN = Shape(layers=3, width=64, heads=4, kv_heads=2, mlp_width=128, vocabulary=64, sequence=16, batch=8)
TINY = Shape(layers=1, width=2, heads=1, kv_heads=1, mlp_width=1, vocabulary=3, sequence=2, batch=2)
"""Elements of its tensors: 6, then a block of 2, 4, 4, 4, 4, 2, 2, 2, 2, then 2 and 6."""


def totals(transfers: tuple[Transfer, ...]) -> Counter[str]:
    payload_bytes: Counter[str] = Counter()
    for transfer in transfers:
        payload_bytes[transfer.collective] += transfer.payload_bytes
    return payload_bytes


def calls(transfers: tuple[Transfer, ...], collective: str) -> list[int]:
    return [transfer.calls for transfer in transfers if transfer.collective == collective]


def test_the_hand_made_shape_has_40_weights() -> None:
    assert TINY.parameters() == 40


def test_stage_0_holds_what_ddp_holds() -> None:
    assert engine_states(EngineModel(shape=EVEN, ranks=4, stage=0)) == replicated_states(EVEN)


@pytest.mark.parametrize("stage", [1, 2])
def test_all_weights_end_to_end_are_filled_up_to_two_elements_a_rank(stage: ZeroStage) -> None:
    # 40 weights on 3 ranks: the next multiple of 6 is 42, of which each has 14.
    states = engine_states(EngineModel(shape=TINY, ranks=3, stage=stage))
    assert states.parameters_bytes == 4 * 42
    assert states.gradients_bytes == 4 * 14
    # A master and two moments of each, and a count of steps.
    assert states.optimizer_bytes == 3 * 4 * 14 + 4


def test_stage_3_fills_up_each_weight_by_itself() -> None:
    # On 4 ranks a part of 6 has 2, and one of 4 or of 2 has 1: 2 + 9 x 1 + 1 + 2 = 14.
    states = engine_states(EngineModel(shape=TINY, ranks=4, stage=3))
    assert states.parameters_bytes == 4 * 14
    assert states.gradients_bytes == 2 * 4 * 14
    assert states.optimizer_bytes == 3 * 4 * 14 + 4


def test_weights_below_the_threshold_are_held_whole_beside_their_parts() -> None:
    # The three norms and the three products of the MLP have 2 elements, which are gathered with their padding to 4.
    none, some = (engine_states(EngineModel(shape=TINY, ranks=4, stage=3, threshold=limit)) for limit in (1, 2))
    assert some.parameters_bytes - none.parameters_bytes == 4 * 6 * 4
    assert some.optimizer_bytes == none.optimizer_bytes


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 8])
def test_masters_of_weights_in_fp32_are_what_the_account_of_four_bytes_has(stage: ZeroStage, ranks: int) -> None:
    expected = paper_states(EVEN.parameters(), stage=stage, data_ranks=ranks, bytes_each=(4, 4, 12))
    states = engine_states(EngineModel(shape=EVEN, ranks=ranks, stage=stage))
    assert states.parameters_bytes == expected.parameters_bytes
    assert states.optimizer_bytes - 4 == expected.optimizer_bytes
    # Stage 1 has let go of the others' parts when it updates; stage 3 adds up in one place, and reads a copy.
    divided_bytes = 4 * EVEN.parameters() // ranks
    assert states.gradients_bytes == (2 if stage == 3 else 1) * divided_bytes


def test_a_rank_with_more_than_a_sub_group_updates_several_tensors() -> None:
    few, many = (engine_states(EngineModel(shape=PRESETS["8b"], ranks=ranks, stage=3)) for ranks in (16, 2))
    assert few.optimizer_bytes % 12 == 4
    # Half of 8 billion weights, from 1 billion on in another tensor.
    assert many.optimizer_bytes % 12 == 4 * 4 % 12


@pytest.mark.parametrize("ranks", [2, 4])
def test_stages_1_and_2_send_half_as_much_again_as_ddp(ranks: int) -> None:
    """Gradients are averaged on all ranks, where the paper's only need reach the rank that updates."""
    ddp = Transfer(collective="all_reduce", axis="data", payload_bytes=4 * EVEN.parameters())
    for stage in (1, 2):
        transfers = engine_transfers(EngineModel(shape=EVEN, ranks=ranks, stage=stage))
        sent = sum(wire_bytes(transfer, ranks, "nccl") for transfer in transfers if transfer.payload_bytes > 8)
        assert 2 * sent == 3 * wire_bytes(ddp, ranks, "nccl")


@pytest.mark.parametrize(("stage", "passes"), [(0, 1), (1, 1), (2, 4), (3, 4)])
def test_from_stage_2_on_each_microbatch_reduces_gradients(stage: ZeroStage, passes: int) -> None:
    once, often = (
        totals(engine_transfers(EngineModel(shape=EVEN, ranks=2, stage=stage, microbatches=microbatches)))
        for microbatches in (1, 4)
    )
    reduced = "reduce_scatter" if stage == 3 else "all_reduce"
    numbers_bytes = 0 if stage == 3 else 4
    assert often[reduced] - numbers_bytes == passes * (once[reduced] - numbers_bytes)


def test_buckets_are_filled_from_the_last_weight_on() -> None:
    # 6 2 | 2 2 2 2 | 4 4 | 4 4 | 2 6
    transfers = engine_transfers(EngineModel(shape=TINY, ranks=2, stage=2, bucket=8))
    assert calls(transfers, "all_reduce") == [5, 1]


def test_a_weight_larger_than_a_bucket_goes_alone() -> None:
    transfers = engine_transfers(EngineModel(shape=TINY, ranks=2, stage=2, bucket=1))
    assert calls(transfers, "all_reduce") == [12, 1]


@pytest.mark.parametrize(("reuse_distance", "prefetch", "times"), [(0, 0, 2), (10**9, 0, 1), (0, 10**6, 1)])
def test_weights_are_gathered_again_where_nothing_keeps_them(reuse_distance: int, prefetch: int, times: int) -> None:
    engine = EngineModel(shape=EVEN, ranks=2, stage=3, reuse_distance=reuse_distance, prefetch=prefetch)
    assert totals(engine_transfers(engine))["all_gather"] == times * 4 * EVEN.parameters()


def test_forward_that_is_run_again_gathers_all_of_a_block_but_its_last_product() -> None:
    plain = EngineModel(shape=EVEN, ranks=2, stage=3, reuse_distance=0, prefetch=0)
    once, again = (engine_transfers(each) for each in (plain, replace(plain, is_recomputed=True)))
    norms, products = 2 * 64, 2 * 64 * 64 + 2 * 64 * 32 + 2 * 64 * 128
    assert totals(again)["all_gather"] - totals(once)["all_gather"] == 4 * 3 * (norms + products)
    assert sum(calls(again, "all_gather")) - sum(calls(once, "all_gather")) == 3 * 8


def test_weights_that_stay_whole_are_gathered_once_a_step_whatever_the_microbatches() -> None:
    whole = EngineModel(shape=EVEN, ranks=2, stage=3, threshold=10**6, microbatches=4)
    transfers = engine_transfers(whole)
    assert totals(transfers)["all_gather"] == 4 * EVEN.parameters()
    assert calls(transfers, "all_gather") == [EVEN.parameter_tensors()]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_rank_sends_nothing(stage: ZeroStage) -> None:
    assert engine_transfers(EngineModel(shape=EVEN, ranks=1, stage=stage)) == ()


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_traffic_is_hidden_where_the_backend_can_hide_it(is_overlapped: bool) -> None:
    engine = EngineModel(shape=EVEN, ranks=2, stage=3, reuse_distance=0, prefetch=0)
    transfers = engine_transfers(replace(engine, is_overlapped=is_overlapped))
    hidden = {transfer.behind for transfer in transfers if transfer.payload_bytes > 8}
    assert hidden == ({"forward", "backward"} if is_overlapped else {None})
