"""What the specs of divided strategies refuse, and how they lay out their ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.registry import spec_of
from workloads.spec import DataShare, OptionValue, Precision


def refusals(setup: SmallSetup) -> list[str]:
    return spec_of(setup.strategy).refusals(setup)


def on_cuda(setup: SmallSetup) -> SmallSetup:
    return replace(setup, device="cuda", backend="nccl")


@pytest.mark.parametrize(
    ("ranks", "shard_ranks", "remedy"),
    [
        (8, 3, "use 2 or 4"),
        (8, 8, "use 2 or 4"),
        (4, 4, "use 2"),
        (5, 2, "use --ranks 4, or fsdp"),
    ],
)
def test_shard_ranks_make_two_groups_or_more(ranks: int, shard_ranks: int, remedy: str) -> None:
    (reason,) = refusals(small_setup("hsdp", ranks=ranks, options={"shard_ranks": shard_ranks}))
    assert reason == (
        f"option shard_ranks is {shard_ranks}; it must divide {ranks} ranks into two groups or more: {remedy}"
    )


@pytest.mark.parametrize(
    ("name", "options", "ending"),
    [
        ("fsdp", {"reshard": 3}, "it must divide the 8 ranks of a shard group: use 0 or 2 or 4"),
        ("hsdp", {"reshard": 4, "shard_ranks": 2}, "it must divide the 2 ranks of a shard group: use 0"),
        ("fsdp", {"reshard": 1}, "use zero2, which does that"),
        ("zero2", {"prefetch": 1}, "leave it out, or use --backend nccl"),
        ("hsdp", {"compile": "default", "wrap": "layer"}, "use wrap=block"),
        ("zero1", {"compile": "default", "bucket_mb": 0.5}, "use bucket_mb=1 or more, or compile=none"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(name: str, options: Mapping[str, OptionValue], ending: str) -> None:
    (reason,) = refusals(small_setup(name, ranks=8, options=options))
    assert reason.endswith(ending)


@pytest.mark.parametrize("reshard", [0, 2, 4, 8])
def test_resharding_to_a_divisor_is_allowed(reshard: int) -> None:
    assert refusals(small_setup("fsdp", ranks=8, options={"reshard": reshard})) == []


def test_prefetching_is_allowed_where_it_can_hide_something() -> None:
    assert refusals(on_cuda(small_setup("fsdp", ranks=2, options={"prefetch": 2}))) == []


def test_offloaded_fp16_is_refused_where_the_host_has_no_backend() -> None:
    setup = replace(small_setup("fsdp", ranks=2, options={"offload": True}), precision="fp16")
    assert refusals(setup) == []
    (reason,) = refusals(on_cuda(setup))
    assert reason.startswith("option offload is true in fp16 on cuda")


@pytest.mark.parametrize("name", ["zero1", "zero2", "fsdp", "hsdp"])
def test_a_batch_is_shared_by_all_ranks(name: str) -> None:
    setup = small_setup(name, ranks=8, shape=replace(SMALL, batch=12))
    assert refusals(setup) == ["batch 12 cannot be shared equally by 8 data ranks; --batch 8 or 16 would fit"]


def test_neighbours_share_weights_and_every_rank_has_data_of_its_own() -> None:
    setup = small_setup("hsdp", ranks=8, options={"shard_ranks": 4})
    spec = spec_of("hsdp")
    assert spec.mesh(setup) == {"replicate": 2, "shard": 4}
    assert [spec.data_share(setup, rank) for rank in range(8)] == [DataShare(rank=rank, ranks=8) for rank in range(8)]


@pytest.mark.parametrize("name", ["zero2", "fsdp"])
def test_traffic_is_hidden_on_nccl_and_waited_for_on_gloo(name: str) -> None:
    setup = small_setup(name, ranks=2, options={"clip": 0.0})
    spec = spec_of(name)
    assert {transfer.behind for transfer in spec.transfers(setup)} == {None}
    assert {transfer.behind for transfer in spec.transfers(on_cuda(setup))} == {"forward", "backward"}


@pytest.mark.parametrize(("precision", "clip", "numbers"), [("fp32", 0.0, 0), ("fp32", 1.0, 1), ("fp16", 1.0, 2)])
def test_clipping_and_fp16_cost_a_number_each(precision: Precision, clip: float, numbers: int) -> None:
    setup = replace(small_setup("fsdp", ranks=2, options={"clip": clip}), precision=precision)
    transfers = spec_of("fsdp").transfers(setup)
    assert sum(transfer.calls for transfer in transfers if transfer.collective == "all_reduce") == numbers


def test_fewer_ranks_gather_in_backward_what_all_that_share_a_weight_gather_in_forward() -> None:
    """Of 8 ranks four share a weight, and two of them in between."""
    setup = small_setup("hsdp", ranks=8, options={"shard_ranks": 4, "reshard": 2})
    gathers = [one for one in spec_of("hsdp").transfers(setup) if one.collective == "all_gather"]
    assert [(one.axis, one.ranks) for one in gathers] == [("shard", None), ("shard", None), ("shard", 2)]
    assert gathers[1].payload_bytes == gathers[2].payload_bytes


def test_resharding_in_between_changes_nothing_that_is_held_between_steps() -> None:
    whole, some = (small_setup("hsdp", ranks=8, options={"shard_ranks": 4, "reshard": reshard}) for reshard in (0, 2))
    states = spec_of("hsdp").states
    assert [states(some, rank) for rank in range(8)] == [states(whole, rank) for rank in range(8)]


@pytest.mark.parametrize("name", ["zero1", "zero2", "fsdp"])
def test_one_rank_alone_sends_nothing(name: str) -> None:
    assert spec_of(name).transfers(small_setup(name)) == ()


@pytest.mark.parametrize("name", ["fsdp", "zero2", "hsdp"])
def test_reducing_last_is_refused_without_accumulation(name: str) -> None:
    ranks = 4 if name == "hsdp" else 2
    (reason,) = refusals(small_setup(name, ranks=ranks, options={"reduce": "last"}))
    assert reason.startswith("option reduce is last with accumulate=1, where the only microbatch is the last")
    assert refusals(small_setup(name, ranks=ranks, options={"reduce": "last", "accumulate": 2})) == []
