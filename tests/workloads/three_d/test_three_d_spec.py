"""What `three_d` refuses, with the numbers that would work; where its ranks are; what it takes for its laws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.workloads.training.setups import SMALL, small_setup
from workloads.pipeline_parallel.memory import boundary_bytes
from workloads.spec import DataShare, OptionValue
from workloads.three_d.spec import ThreeDSpec


def _refusals(ranks: int = 8, **options: OptionValue) -> list[str]:
    return ThreeDSpec().refusals(small_setup("three_d", ranks=ranks, options=options))


@pytest.mark.parametrize(("ranks", "fitting"), [(6, "4 or 8"), (2, "4")])
def test_ranks_that_replicas_cannot_share_are_refused(ranks: int, fitting: str) -> None:
    (reason,) = _refusals(ranks)
    assert reason == (
        f"pipeline_ranks 2 x tensor_ranks 2 make replicas of 4 ranks, which do not divide {ranks} ranks;"
        f" --ranks {fitting} would fit"
    )


def test_products_that_tensor_ranks_cannot_share_are_refused() -> None:
    (reason,) = _refusals(8, tensor_ranks=4)
    assert reason.startswith("kv_heads 2 cannot be shared equally by tensor_ranks 4; 1 or 2 would fit heads, kv_heads")


def test_positions_that_tensor_ranks_cannot_share_are_refused() -> None:
    setup = small_setup("three_d", ranks=8, shape=replace(SMALL, sequence=15), options={"sequence_parallel": True})
    (reason,) = ThreeDSpec().refusals(setup)
    assert reason.startswith("sequence 15 cannot be shared equally by tensor_ranks 2; 1 would fit")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"microbatches": 1}, "microbatches is 1; one_f_one_b on 2 ranks takes 2 or more"),
        ({"schedule": "interleaved"}, "stages per rank is 1; interleaved takes 2 or more"),
        ({"schedule": "interleaved", "stages": 3}, "layers is 4 and 2 ranks x 3 stages make 6 stages"),
        ({"schedule": "zbv", "stages": 1}, "stages per rank is 1; zbv takes 2"),
        ({"microbatches": 8}, "batch 8 cannot be shared equally by 2 data ranks x microbatches 8; --batch 16"),
        ({"schedule": "zbv", "stages": 2, "data_axis": "fsdp"}, "option data_axis is fsdp with schedule=zbv"),
        (
            {"schedule": "zbv", "stages": 2, "compile": "default"},
            "option compile is default with a zero-bubble schedule",
        ),
        ({"schedule": "zbv", "stages": 2, "checkpoint": "full"}, "option checkpoint is full with a zero-bubble"),
        ({"compile": "default", "checkpoint": "full"}, "option compile is default with checkpoint=full"),
    ],
)
def test_what_cannot_run_is_refused(options: Mapping[str, OptionValue], words: str) -> None:
    (reason,) = _refusals(8, **options)
    assert reason.startswith(words)


def test_weights_that_would_be_gathered_again_and_again_are_refused() -> None:
    options: Mapping[str, OptionValue] = {"schedule": "interleaved", "stages": 4, "data_axis": "fsdp"}
    (reason,) = ThreeDSpec().refusals(small_setup("three_d", ranks=8, shape=replace(SMALL, layers=8), options=options))
    assert reason.startswith("option stages is 4 with data_axis=fsdp")


def test_tensor_ranks_are_neighbours_and_replicas_farthest_apart() -> None:
    setup = small_setup("three_d", ranks=8)
    assert list(ThreeDSpec().mesh(setup).items()) == [("data", 2), ("stage", 2), ("tensor", 2)]
    assert ThreeDSpec().notes(setup)[:1] == [
        "mesh data 2 x stage 2 x tensor 2, tensor innermost;"
        " replica 0: pipeline rank 0 is ranks 0 to 1, pipeline rank 1 is ranks 2 to 3;"
        " replica 1: pipeline rank 0 is ranks 4 to 5, pipeline rank 1 is ranks 6 to 7"
    ]


@pytest.mark.parametrize(
    ("options", "axes"),
    [
        ({"tensor_ranks": 1}, None),
        ({}, "tensor"),
        ({"tensor_ranks": 1, "data_axis": "fsdp"}, "data"),
        ({"data_axis": "fsdp"}, "tensor and data"),
    ],
)
def test_a_reader_is_told_which_waits_are_busy_time(options: Mapping[str, OptionValue], axes: str | None) -> None:
    told = [note for note in ThreeDSpec().notes(small_setup("three_d", ranks=8, options=options)) if "waits" in note]
    assert [note.startswith(f"collectives over the axis {axes} run inside") for note in told] == [True] * bool(axes)


def test_fsdp_of_one_replica_is_refused() -> None:
    (reason,) = _refusals(4, data_axis="fsdp")
    assert reason.startswith("option data_axis is fsdp with one replica of 4 ranks")
    assert "--ranks 8" in reason


def test_of_a_large_mesh_the_rule_is_shown() -> None:
    setup = small_setup("three_d", ranks=32, options={"tensor_ranks": 4})
    assert ThreeDSpec().notes(setup)[:1] == [
        "mesh data 4 x stage 2 x tensor 4, tensor innermost: rank (replica x 2 + pipeline rank) x 4 + tensor rank"
    ]


def test_all_ranks_of_a_replica_read_the_same_sequences() -> None:
    setup = small_setup("three_d", ranks=8)
    assert [ThreeDSpec().data_share(setup, rank) for rank in range(8)] == [
        *[DataShare(rank=0, ranks=2)] * 4,
        *[DataShare(rank=1, ranks=2)] * 4,
    ]


@pytest.mark.parametrize(("is_divided", "share"), [(False, 1), (True, 2)])
def test_stages_hand_on_the_positions_that_a_rank_has(is_divided: bool, share: int) -> None:
    pipeline = ThreeDSpec().pipeline(small_setup("three_d", ranks=8, options={"sequence_parallel": is_divided}))
    assert pipeline is not None
    # 8 sequences over 2 replicas and 4 microbatches.
    assert pipeline.boundary_bytes == boundary_bytes(SMALL, 1) // share
