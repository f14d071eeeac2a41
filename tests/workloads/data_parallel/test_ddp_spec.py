"""The spec of `ddp`: which options it refuses together, and what each way of averaging hands to collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.cost_models.terms import Transfer
from workloads.data_parallel.spec import DdpSpec
from workloads.spec import OptionValue, Precision

WEIGHTS_BYTES = 4 * SMALL.parameters()


def setup(options: Mapping[str, OptionValue] | None = None, *, precision: Precision = "fp32") -> SmallSetup:
    return small_setup("ddp", ranks=2, precision=precision, options=options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compress": "fp16"},
        {"compress": "bf16", "accumulate": 2},
        {"compress": "powersgd", "compress_rank": 64},
        {"compress": "powersgd", "overlap": False},
        {"compress": "topk", "density": 1.0, "checkpoint": "full"},
        {"compress": "topk", "static_graph": True},
        {"compress": "topk", "find_unused_parameters": True},
    ],
)
def test_what_runs_is_not_refused(options: dict[str, OptionValue]) -> None:
    assert DdpSpec().refusals(setup(options)) == []


@pytest.mark.parametrize("density", [0.0, 1.5])
def test_a_density_that_is_no_share_is_refused(density: float) -> None:
    (reason,) = DdpSpec().refusals(setup({"compress": "topk", "density": density}))
    assert reason == f"option density is {density}; it must be above 0 and at most 1"


def test_a_rank_that_no_matrix_can_use_is_refused_with_those_that_one_can() -> None:
    (reason,) = DdpSpec().refusals(setup({"compress": "powersgd", "compress_rank": 65}))
    assert "this shape's matrices have at most rank 64" in reason
    assert reason.endswith("use 1 to 64")


@pytest.mark.parametrize(
    ("options", "only"),
    [
        ({"compress_rank": 4}, "powersgd"),
        ({"compress_rank": 4, "compress": "topk"}, "powersgd"),
        ({"density": 0.5}, "topk"),
        ({"density": 0.5, "compress": "fp16"}, "topk"),
    ],
)
def test_an_option_that_the_scheme_does_not_read_is_refused(options: dict[str, OptionValue], only: str) -> None:
    (reason,) = DdpSpec().refusals(setup(options))
    assert f"with compress={options.get('compress', 'none')}; only {only} reads it" in reason


@pytest.mark.parametrize("compress", ["powersgd", "topk"])
def test_schemes_that_remember_are_refused_in_fp16(compress: str) -> None:
    (reason,) = DdpSpec().refusals(setup({"compress": compress}, precision="fp16"))
    assert f"option compress is {compress} in fp16" in reason
    assert DdpSpec().refusals(setup({"compress": compress}, precision="bf16")) == []


def test_rounding_is_not_refused_in_fp16() -> None:
    assert DdpSpec().refusals(setup({"compress": "fp16"}, precision="fp16")) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"find_unused_parameters": True, "static_graph": True}, "which finds unused weights in the first step"),
        ({"static_graph": True, "accumulate": 2}, "static_graph is true with accumulate=2"),
        ({"static_graph": True, "overlap": False}, "static_graph is true with overlap=false"),
        ({"find_unused_parameters": True, "overlap": False}, "find_unused_parameters is true with overlap=false"),
    ],
)
def test_what_distributed_data_parallel_cannot_do_is_refused(options: dict[str, OptionValue], words: str) -> None:
    (reason,) = DdpSpec().refusals(setup(options))
    assert words in reason


def test_small_buckets_are_refused_where_blocks_are_compiled() -> None:
    (reason,) = DdpSpec().refusals(setup({"compile": "default", "bucket_mb": 0.5}))
    assert reason == (
        "option bucket_mb is 0.5 with compile=default; torch.compile needs buckets of at least 1 MB: use bucket_mb=1"
        " or more, or compile=none"
    )


def test_two_communicators_at_once_are_refused_on_nccl_only() -> None:
    options: dict[str, OptionValue] = {"compress": "bf16", "find_unused_parameters": True}
    (reason,) = DdpSpec().refusals(replace(setup(options), backend="nccl"))
    assert "two communicators at once" in reason
    assert DdpSpec().refusals(setup(options)) == []


def test_a_weight_whose_indices_int32_cannot_hold_is_refused_for_topk_only() -> None:
    vast = replace(SMALL, vocabulary=2**25)
    (reason,) = DdpSpec().refusals(replace(setup({"compress": "topk"}), shape=vast))
    assert f"a weight of {2**31} elements" in reason
    assert DdpSpec().refusals(replace(setup({"compress": "powersgd"}), shape=vast)) == []


@pytest.mark.parametrize(("compress", "share"), [("none", 1), ("fp16", 2), ("bf16", 2)])
def test_elements_of_half_the_bytes_make_half_the_payload(compress: str, share: int) -> None:
    (transfer,) = DdpSpec().transfers(setup({"compress": compress, "bucket_mb": 25.0}))
    assert transfer == Transfer(
        collective="all_reduce", axis="data", payload_bytes=WEIGHTS_BYTES // share, behind="backward"
    )


def test_topk_gathers_what_all_ranks_send() -> None:
    (transfer,) = DdpSpec().transfers(setup({"compress": "topk", "density": 1.0}))
    assert transfer.collective == "all_gather"
    assert transfer.payload_bytes == 2 * 2 * WEIGHTS_BYTES


@pytest.mark.parametrize("compress", ["none", "fp16", "powersgd", "topk"])
def test_each_bucket_is_a_call_of_each_collective_behind_backward(compress: str) -> None:
    transfers = DdpSpec().transfers(setup({"compress": compress, "bucket_mb": WEIGHTS_BYTES / 2**20 / 4}))
    assert {(transfer.calls, transfer.behind) for transfer in transfers} == {(4, "backward")}
    assert len(transfers) == (2 if compress == "powersgd" else 1)


@pytest.mark.parametrize("compress", ["none", "fp16", "powersgd", "topk"])
def test_without_overlap_there_is_one_call_that_hides_behind_nothing(compress: str) -> None:
    transfers = DdpSpec().transfers(setup({"compress": compress, "bucket_mb": 0.1, "overlap": False}))
    assert {(transfer.calls, transfer.behind) for transfer in transfers} == {(1, None)}


def test_the_search_for_unused_weights_sends_a_number_for_each_weight() -> None:
    _, search = DdpSpec().transfers(setup({"find_unused_parameters": True}))
    assert search == Transfer(collective="all_reduce", axis="data", payload_bytes=4 * 39)


def test_alone_nothing_is_sent() -> None:
    assert DdpSpec().transfers(small_setup("ddp", options={"compress": "topk"})) == ()
