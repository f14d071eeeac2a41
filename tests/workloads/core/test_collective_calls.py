"""Each call is the collective of its name, on buffers that larger calls use, too."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import OnRanks
from workloads.core.collectives import allocate, make_call
from workloads.cost_models.communication import COLLECTIVES, ROOT, counts
from workloads.cost_models.terms import Collective


def results(collective: Collective) -> list[float]:
    """What a rank of three gets that gives 10, 20 or 30, and of parts a rank beyond the first 1, 2 or 3 more."""
    group = dist.group.WORLD
    assert group is not None
    counted = counts(collective, 3 * 16, 3, 4)
    buffers = allocate(collective, counted, group.rank(), dtype=torch.float32, device="cpu")
    if len(buffers.give):
        places = torch.arange(len(buffers.give)) // 4
        buffers.give.copy_(10 * (group.rank() + 1) + places)
    make_call(collective, buffers, group)()
    return buffers.take[::4].tolist()


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        ("all_reduce", [[60, 63, 66]] * 3),
        ("all_gather", [[10, 20, 30]] * 3),
        ("reduce_scatter", [[60], [63], [66]]),
        ("broadcast", [[10, 11, 12]] * 3),
        ("gather", [[10, 20, 30], [], []]),
        ("scatter", [[10], [11], [12]]),
        ("all_to_all", [[10, 20, 30], [11, 21, 31], [12, 22, 32]]),
        ("send", [[30, 31, 32], [10, 11, 12], [20, 21, 22]]),
    ],
)
def test_a_call_is_the_collective_of_its_name(
    on_ranks: OnRanks, collective: Collective, expected: list[list[float]]
) -> None:
    assert on_ranks(3, results, collective) == expected


def test_reduce_leaves_the_sum_on_the_root(on_ranks: OnRanks) -> None:
    assert on_ranks(3, results, "reduce")[ROOT] == [60, 63, 66]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_smaller_call_uses_the_buffers_of_the_largest(collective: Collective, rank: int) -> None:
    smaller = counts(collective, 1024, 2, 4)
    whole = allocate(collective, counts(collective, 4096, 2, 4), rank, dtype=torch.float32, device="cpu")
    first = whole.first(smaller)
    assert len(first.give) == min(smaller.give, len(whole.give))
    assert len(first.take) == min(smaller.take, len(whole.take))
    assert first.give.data_ptr() == whole.give.data_ptr()
    assert first.take.data_ptr() == whole.take.data_ptr()
    assert (first.take is first.give) == (whole.take is whole.give)
    held = whole.give.nbytes + (0 if whole.take is whole.give else whole.take.nbytes)
    assert held <= 4 * counts(collective, 4096, 2, 4).buffers
