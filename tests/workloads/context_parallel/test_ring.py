"""Tensors travel the ring in order, and each rank counts what it sends."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import OnRanks
from workloads.context_parallel.ring_attention import Ring

ELEMENTS = 200_000


def make_ring(*, is_overlapped: bool = True) -> Ring:
    group = dist.group.WORLD
    assert group is not None
    return Ring(group, is_overlapped=is_overlapped)


def visits(is_overlapped: bool) -> tuple[list[float], int]:
    """The ranks whose tensors came by, and the bytes that were sent."""
    ring = make_ring(is_overlapped=is_overlapped)
    own = torch.full((ELEMENTS,), float(ring.rank))
    seen = [tensor.tolist()[-1] for tensor in ring.circulate(own)]
    return seen, ring.sent_bytes


@pytest.mark.slow
@pytest.mark.parametrize("is_overlapped", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_rank_sees_all_tensors_nearest_first(ranks: int, is_overlapped: bool, on_ranks: OnRanks) -> None:
    for rank, (seen, _) in enumerate(on_ranks(ranks, visits, is_overlapped)):
        assert seen == [(rank - hop) % ranks for hop in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_tensor_is_sent_once_less_than_there_are_ranks(ranks: int, on_ranks: OnRanks) -> None:
    for _, sent_bytes in on_ranks(ranks, visits, True):
        assert sent_bytes == (ranks - 1) * 4 * ELEMENTS


def two_at_once() -> list[float]:
    """What comes of two tensors that are under way at the same time."""
    ring = make_ring()
    first = ring.pass_on(torch.full((ELEMENTS,), 10.0 + ring.rank))
    second = ring.pass_on(torch.full((ELEMENTS,), 20.0 + ring.rank))
    return [passing.wait().tolist()[-1] for passing in (second, first)]


def test_tensors_that_travel_together_keep_their_order(on_ranks: OnRanks) -> None:
    assert on_ranks(2, two_at_once) == [[21.0, 11.0], [20.0, 10.0]]


def pass_without_waiting() -> bool:
    """Whether all is there before anybody waited for it."""
    ring = make_ring(is_overlapped=False)
    own = torch.full((20 * ELEMENTS,), 1.0 + ring.rank)
    return bool(ring.pass_on(own).received.eq(2.0 - ring.rank).all())


def test_without_overlap_a_tensor_is_there_at_once(on_ranks: OnRanks) -> None:
    assert on_ranks(2, pass_without_waiting) == [True, True]
