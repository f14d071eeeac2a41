"""The spec of `collectives` counts as nccl-tests does, says beforehand what will be measured, and what cannot be."""

from __future__ import annotations

import pytest

from tests.workloads.probes.small_probes import SmallProbe, small_probe
from workloads.cost_models.communication import CHECK_BYTES, COLLECTIVES, Counts, counts
from workloads.cost_models.terms import Collective
from workloads.probes.spec import CollectivesSpec, chosen_collectives, counted_sizes
from workloads.spec import OptionValue, Precision


def asked(ranks: int = 2, precision: Precision = "fp32", **options: OptionValue) -> SmallProbe:
    return small_probe(CollectivesSpec(), options, ranks=ranks, precision=precision)


@pytest.mark.parametrize(
    ("collective", "give", "take", "held"),
    [
        # 250 elements of 4 bytes; a rank of three has 83, of which 80 are whole lines of 16 bytes.
        ("all_reduce", 250, 250, 250),
        ("broadcast", 250, 250, 250),
        ("reduce", 250, 250, 250),
        ("send", 250, 250, 500),
        ("all_gather", 80, 240, 320),
        ("gather", 80, 240, 320),
        ("reduce_scatter", 240, 80, 320),
        ("scatter", 240, 80, 320),
        ("all_to_all", 240, 240, 480),
    ],
)
def test_counts_are_those_of_nccl_tests(collective: Collective, give: int, take: int, held: int) -> None:
    assert counts(collective, 1003, 3, 4) == Counts(give=give, take=take, buffers=held)


def test_a_line_has_more_elements_where_they_are_smaller() -> None:
    assert counts("all_gather", 1003, 3, 2) == Counts(give=160, take=480, buffers=640)


def test_sizes_grow_by_the_factor_and_end_at_the_last_that_fits() -> None:
    sizes = counted_sizes(asked(min_bytes=100, max_bytes=2000, factor=3), "all_reduce")
    assert [counted.size for counted in sizes] == [25, 75, 225]


def test_the_largest_size_suits_the_link() -> None:
    on_gloo = small_probe(CollectivesSpec(), ranks=8)
    on_nccl = small_probe(CollectivesSpec(), ranks=8, device="cuda", backend="nccl")
    assert [counted_sizes(probe, "all_reduce")[-1].size * 4 for probe in (on_gloo, on_nccl)] == [2**24, 2**30]
    assert CollectivesSpec().measurements(on_nccl) == 9 * 11  # 1 KiB to 1 GiB by 4.
    assert CollectivesSpec().working_bytes(on_nccl, 0) == 2 * 2**30 + CHECK_BYTES
    asked_for = small_probe(CollectivesSpec(), {"max_bytes": 2**33}, ranks=8, device="cuda", backend="nccl")
    assert CollectivesSpec().working_bytes(asked_for, 0) >= 2**33


def test_no_two_sizes_become_one() -> None:
    for ranks in (1, 2, 3, 4, 7, 64):
        sizes = counted_sizes(asked(ranks, min_bytes=16 * ranks, factor=2), "all_to_all")
        assert sizes[0].size > 0
        assert len({counted.size for counted in sizes}) == len(sizes)


def test_each_collective_is_measured_once_a_size() -> None:
    assert CollectivesSpec().measurements(asked()) == 9 * 8  # 1 KiB to 16 MiB by 4.
    assert CollectivesSpec().measurements(asked(collectives="send, reduce,send", min_bytes=16, max_bytes=63)) == 2


def test_all_on_one_rank_are_all_but_send() -> None:
    assert chosen_collectives(asked(1)) == [name for name in COLLECTIVES if name != "send"]
    assert CollectivesSpec().refusals(asked(1)) == []


def test_a_rank_holds_the_buffers_of_the_collective_that_needs_most() -> None:
    assert CollectivesSpec().working_bytes(asked(4, max_bytes=2**20), 0) == 2 * 2**20 + CHECK_BYTES
    assert (
        CollectivesSpec().working_bytes(asked(4, max_bytes=2**20, collectives="all_reduce"), 0) == 2**20 + CHECK_BYTES
    )
    assert (
        CollectivesSpec().working_bytes(asked(4, "bf16", max_bytes=2**20, collectives="gather"), 0)
        == 5 * 2**18 + CHECK_BYTES
    )


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (
            asked(min_bytes=2048, max_bytes=1024),
            "option min_bytes is 2048 and max_bytes 1024; min_bytes must be at most max_bytes",
        ),
        (
            asked(4, min_bytes=63),
            "option min_bytes is 63; all_gather in fp32 on 4 ranks moves nothing below 64 bytes; use min_bytes=64"
            " or more",
        ),
        (
            asked(4, "bf16", min_bytes=1, collectives="send,all_reduce"),
            "option min_bytes is 1; all_reduce in bf16 on 4 ranks moves nothing below 2 bytes; use min_bytes=2 or more",
        ),
        (
            asked(collectives="all_reduec,send"),
            'collective "all_reduec" is unknown; did you mean "all_reduce"? it may be of '
            + ", ".join(COLLECTIVES)
            + ', or "all" alone',
        ),
        (
            asked(collectives=""),
            'collective "" is unknown; it may be of ' + ", ".join(COLLECTIVES) + ', or "all" alone',
        ),
        (asked(1, collectives="send"), "send needs 2 ranks and ranks is 1; use --ranks 2, or leave it out"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_what_can(refused: SmallProbe, reason: str) -> None:
    assert CollectivesSpec().refusals(refused) == [reason]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_what_is_not_refused_moves_something(ranks: int) -> None:
    least = asked(ranks, "bf16", min_bytes=16 * ranks, max_bytes=16 * ranks)
    assert CollectivesSpec().refusals(least) == []
    assert all(counted_sizes(least, collective)[0].size > 0 for collective in chosen_collectives(least))
