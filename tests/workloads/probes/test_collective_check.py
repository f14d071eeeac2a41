"""The check passes what is exact, and nothing that was added, moved or left out wrongly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workloads.core.collectives import Buffers, allocate
from workloads.cost_models.communication import counts
from workloads.cost_models.terms import Collective
from workloads.probes.collectives import count_wrong, fill


def made(collective: Collective, rank: int, ranks: int, *, size_bytes: int = 4096) -> Buffers:
    """A rank's buffers, filled."""
    counted = counts(collective, size_bytes, ranks, 2)
    buffers = allocate(collective, counted, rank, dtype=torch.bfloat16, device="cpu")
    fill(collective, buffers, rank, ranks)
    return buffers


def given(collective: Collective, ranks: int, *, size_bytes: int = 4096) -> list[Tensor]:
    """What each rank gives."""
    return [made(collective, rank, ranks, size_bytes=size_bytes).give for rank in range(ranks)]


def wrong(collective: Collective, result: Tensor, rank: int, ranks: int) -> int:
    return count_wrong(collective, Buffers(give=result, take=result), rank, ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4, 64, 65, 300])
def test_sums_are_exact_in_the_coarsest_precision(ranks: int) -> None:
    parts = given("all_reduce", ranks)
    total = torch.stack([part.double() for part in parts]).sum(0)
    assert total.max() <= 256
    assert wrong("all_reduce", total.bfloat16(), 0, ranks) == 0


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_sum_without_a_rank_or_with_one_twice_is_wrong_everywhere(ranks: int) -> None:
    parts = given("all_reduce", ranks)
    total = torch.stack(parts).sum(0)
    for part in parts:
        assert wrong("all_reduce", total - part, 0, ranks) == len(total)
        assert wrong("all_reduce", total + part, 0, ranks) == len(total)


@pytest.mark.parametrize("places", [1, 2, 4, 8, 256, 1024])
def test_chunks_that_changed_places_are_wrong(places: int) -> None:
    result = torch.stack(given("all_reduce", 2)).sum(0)
    assert wrong("all_reduce", result.roll(places), 0, 2) > len(result) / 2
    moved = torch.cat(given("all_gather", 4))
    assert wrong("all_gather", moved, 0, 4) == 0
    assert wrong("all_gather", moved.roll(places), 0, 4) > 0.9 * len(moved)


def test_values_do_not_come_again_after_a_power_of_two() -> None:
    (value,) = given("broadcast", 1, size_bytes=2 * 2**19)
    for places in (2**16, 2**17, 2**18):
        assert (value == value.roll(places)).double().mean() < 0.01


def test_one_wrong_element_is_counted() -> None:
    result = torch.cat(given("all_gather", 2, size_bytes=2**18))
    result[70_000] = float("nan")
    assert wrong("all_gather", result, 1, 2) == 1


def test_what_reduce_leaves_beside_the_root_is_not_looked_at() -> None:
    assert wrong("reduce", torch.full((8,), -1.0), 1, 2) == 0


def test_what_was_there_before_the_call_does_not_count() -> None:
    buffers = made("all_gather", 0, 2)
    buffers.take.copy_(torch.cat(given("all_gather", 2)))
    assert count_wrong("all_gather", buffers, 0, 2) == 0
    fill("all_gather", buffers, 0, 2)
    assert count_wrong("all_gather", buffers, 0, 2) == len(buffers.take)
