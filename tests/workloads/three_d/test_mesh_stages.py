"""States and traffic of a rank on three axes, against answers made by hand and against laws of one axis."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.workloads.training.setups import SMALL, small_setup
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import Transfer
from workloads.spec import OptionValue
from workloads.three_d.spec import ThreeDSpec

# One block has 2 norms of 64, and 64 x 64 x (1 + 1/2 + 1/2 + 1) + 3 x 64 x 128 elements of products.
BLOCK, NORMS = 64 * 64 * 3 + 3 * 64 * 128, 2 * 64
TABLE = 64 * 64


def transfers(**options: OptionValue) -> tuple[Transfer, ...]:
    return ThreeDSpec().transfers(small_setup("three_d", ranks=8, options=options))


def of(found: tuple[Transfer, ...], axis: str) -> list[Transfer]:
    return [transfer for transfer in found if transfer.axis == axis]


@pytest.mark.parametrize(("stage", "extra"), [(0, TABLE // 2), (1, 64 + TABLE // 2)])
def test_a_rank_holds_its_part_of_its_stage(stage: int, extra: int) -> None:
    setup = small_setup("three_d", ranks=8)
    elements = 2 * (BLOCK // 2 + NORMS) + extra
    for rank in (2 * stage, 2 * stage + 1, 4 + 2 * stage, 5 + 2 * stage):
        assert ThreeDSpec().states(setup, rank).parameters_bytes == 4 * elements


def test_the_states_of_one_replica_are_those_of_the_model_and_of_norms_once_more() -> None:
    setup = small_setup("three_d", ranks=8)
    held_bytes = sum(ThreeDSpec().states(setup, rank).parameters_bytes for rank in range(4))
    assert held_bytes == 4 * (SMALL.parameters() + 4 * NORMS + 64)


def test_fsdp_divides_what_a_stage_holds_among_its_replicas() -> None:
    for rank in range(8):
        whole, divided = (
            ThreeDSpec().states(small_setup("three_d", ranks=8, options={"data_axis": data_axis}), rank)
            for data_axis in ("ddp", "fsdp")
        )
        assert 2 * divided.parameters_bytes == whole.parameters_bytes
        assert 2 * divided.gradients_bytes == whole.gradients_bytes


def test_replicas_average_what_the_largest_stage_holds() -> None:
    (averaged,) = of(transfers(bucket_mb=25.0), "data")
    elements = 2 * (BLOCK // 2 + NORMS) + 64 + TABLE // 2
    assert averaged == Transfer(collective="all_reduce", axis="data", payload_bytes=4 * elements)


def test_smaller_buckets_are_more_calls_of_the_same_bytes() -> None:
    (large,), (small,) = (of(transfers(bucket_mb=bucket_mb), "data") for bucket_mb in (25.0, 0.02))
    assert small.payload_bytes == large.payload_bytes
    assert small.calls > large.calls == 1


def test_fsdp_gathers_once_a_step_whatever_the_number_of_microbatches() -> None:
    found = [
        of(transfers(data_axis="fsdp", schedule="gpipe", microbatches=microbatches, clip=0.0), "data")
        for microbatches in (1, 4)
    ]
    assert found[0] == found[1]
    assert [transfer.collective for transfer in found[0]] == ["all_gather", "reduce_scatter"]


def test_stages_hand_on_each_microbatch_and_its_gradient() -> None:
    sent, agreed = of(transfers(), "stage")
    assert (sent.collective, sent.calls) == ("send", 4)
    assert sent.payload_bytes == 4 * 4 * SMALL.sequence * SMALL.width
    assert agreed.payload_bytes == 4


@pytest.mark.parametrize("options", [{"tensor_ranks": 1}, {"tensor_ranks": 1, "data_axis": "fsdp"}], ids=str)
def test_an_axis_of_one_rank_has_no_traffic(options: Mapping[str, OptionValue]) -> None:
    assert of(transfers(**options), "tensor") == []
    alone = ThreeDSpec().transfers(small_setup("three_d", ranks=4))
    assert of(alone, "data") == []


def test_layers_of_unequal_stages_are_told_by_the_stage_that_has_most() -> None:
    shape = Shape(layers=3, width=64, heads=4, kv_heads=2, mlp_width=128, vocabulary=64, sequence=16, batch=8)
    setup = small_setup("three_d", ranks=4, shape=shape, options={"balance": "flops", "clip": 0.0})
    blocks = of(ThreeDSpec().transfers(setup), "tensor")
    # The first stage has two blocks: 4 all_reduce a block and microbatch; the last one, and one for its head.
    assert max(transfer.calls for transfer in blocks if transfer.collective == "all_reduce") == 2 * 4 * 4
