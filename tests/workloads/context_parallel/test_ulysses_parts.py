"""Attention on exchanged heads is attention of one process, in output and gradients, bit for bit on each head."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from collectors.rank import flight_recorder
from tests.support.ranks import OnRanks
from tests.workloads.core.test_attention_kernels import by_definition
from workloads.context_parallel.cost_model import ulysses_pairs
from workloads.context_parallel.strategy import HEADS, POSITIONS, Ulysses, exchange, positions
from workloads.core.transformer import attend

SEQUENCE = 24
EXACT = 1e-12
HALF = 3e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """Output and gradients at a rank's positions, and how many collectives they took."""

    out_bhse: Tensor
    gradients: tuple[Tensor, ...]
    calls: int


def draw(heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values at all positions, in float64."""
    random = torch.Generator().manual_seed(1)
    q_bhse = torch.randn(2, heads, SEQUENCE, 8, dtype=torch.float64, generator=random)
    k_bkse, v_bkse = torch.randn(2, 2, kv_heads, SEQUENCE, 8, dtype=torch.float64, generator=random)
    return q_bhse, k_bkse, v_bkse


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def out_gradient(like: Tensor) -> Tensor:
    """Some gradient of the whole output."""
    return torch.linspace(-1, 1, like.numel(), dtype=like.dtype).view_as(like)


def held_by(rank: int, ranks: int) -> Tensor:
    return positions("plain", sequence=SEQUENCE, rank=rank, ranks=ranks)


def attend_here(dtype: torch.dtype, heads: int, kv_heads: int) -> Attended:
    """This rank's part of the attention."""
    before = flight_recorder.dump("gloo")
    held = held_by(dist.get_rank(), dist.get_world_size())
    whole = draw(heads, kv_heads)
    own = tuple(tensor[:, :, held].to(dtype).requires_grad_() for tensor in whole)
    out_bhse = Ulysses(group=world())(*own)
    gradients = torch.autograd.grad(out_bhse, own, out_gradient(whole[0])[:, :, held].to(dtype))
    calls = len(flight_recorder.entered_since(before, flight_recorder.dump("gloo")))
    return Attended(out_bhse=out_bhse.detach(), gradients=gradients, calls=calls)


def check(ranks: list[Attended], *, heads: int, kv_heads: int, limit: float) -> None:
    """Output and gradients are those of the definition in float64, on all positions."""
    whole = tuple(tensor.requires_grad_() for tensor in draw(heads, kv_heads))
    out_bhse, _ = by_definition(*whole, is_causal=True)
    truths = (out_bhse, *torch.autograd.grad(out_bhse, whole, out_gradient(whole[0])))
    for rank, attended in enumerate(ranks):
        for ours, truth in zip((attended.out_bhse, *attended.gradients), truths, strict=True):
            there = truth[:, :, held_by(rank, len(ranks))]
            assert ours.shape == there.shape
            assert ((ours - there).norm() / there.norm()).item() <= limit


@pytest.mark.parametrize(("ranks", "heads", "kv_heads"), [(1, 4, 2), (2, 4, 2), (2, 8, 8), (3, 6, 3), (4, 8, 4)])
def test_ranks_attend_as_one_process_does(ranks: int, heads: int, kv_heads: int, on_ranks: OnRanks) -> None:
    attended = on_ranks(ranks, attend_here, torch.float64, heads, kv_heads)
    check(attended, heads=heads, kv_heads=kv_heads, limit=EXACT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_they_stay_within_its_rounding(dtype: torch.dtype, on_ranks: OnRanks) -> None:
    attended = on_ranks(2, attend_here, dtype, 4, 2)
    check(attended, heads=4, kv_heads=2, limit=HALF)
    assert {tensor.dtype for one in attended for tensor in (one.out_bhse, *one.gradients)} == {dtype}


@pytest.mark.parametrize(("ranks", "calls"), [(1, 0), (2, 4)])
def test_a_rank_exchanges_twice_each_way_and_alone_never(ranks: int, calls: int, on_ranks: OnRanks) -> None:
    assert {attended.calls for attended in on_ranks(ranks, attend_here, torch.float32, 4, 2)} == {calls}


class RecordedAttend:
    """Attends, and counts the causal pairs of all heads."""

    def __init__(self) -> None:
        self.pairs = 0

    def __call__(self, q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor) -> Tensor:
        """See `Attend`."""
        _, heads, queries, _ = q_bhse.shape
        assert k_bkse.shape[2] == queries
        self.pairs += heads * queries * (queries + 1) // 2
        return attend(q_bhse, k_bkse, v_bkse)


def computed_pairs(heads: int) -> int:
    recorded = RecordedAttend()
    held = held_by(dist.get_rank(), dist.get_world_size())
    Ulysses(group=world(), attend=recorded)(*(whole[:, :, held] for whole in draw(heads, heads)))
    return recorded.pairs


def test_a_rank_computes_the_pairs_that_the_law_counts(on_ranks: OnRanks) -> None:
    assert on_ranks(2, computed_pairs, 4) == [4 * ulysses_pairs(sequence=SEQUENCE, ranks=2)] * 2


def exchanged() -> tuple[list[float], bool]:
    """What this rank has after an exchange of 100 x rank + 10 x head + position, and whether the way back undoes it."""
    own = 100 * dist.get_rank() + torch.tensor([[[0.0, 1.0], [10.0, 11.0]]])
    there = exchange(own, world(), split=HEADS, join=POSITIONS)
    back = exchange(there, world(), split=POSITIONS, join=HEADS)
    return there.flatten().tolist(), torch.equal(back, own)


def test_an_exchange_gives_a_rank_its_heads_of_all_ranks_in_their_order(on_ranks: OnRanks) -> None:
    assert on_ranks(2, exchanged) == [([0.0, 1.0, 100.0, 101.0], True), ([10.0, 11.0, 110.0, 111.0], True)]
