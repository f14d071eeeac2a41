"""Attention on the ring is attention of one process, in output and gradients, with equal work where the layout says."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.ranks import OnRanks
from tests.workloads.context_parallel.test_ring import make_ring
from tests.workloads.core.counting_kernel import RecordedKernel
from tests.workloads.core.test_attention_kernels import by_definition, draw
from workloads.context_parallel.cost_model import PositionLayout, RingTraffic, pairs_with, ring_pairs
from workloads.context_parallel.ring_attention import RingAttention
from workloads.cost_models.shape import Shape

SEQUENCE = 24
EXACT = 1e-12
HALF = 3e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """A rank's positions, with its output and gradients there, and what it did for them."""

    positions: Tensor
    out_bhse: Tensor
    gradients: tuple[Tensor, ...]
    forward_pairs: list[int]
    backward_pairs: list[int]
    sent_bytes: int


def positions_of(layout: PositionLayout, rank: int, ranks: int) -> Tensor:
    """By the layout's definition."""
    if layout == "plain":
        return torch.arange(SEQUENCE).chunk(ranks)[rank]
    chunks = torch.arange(SEQUENCE).chunk(2 * ranks)
    return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]))


def out_gradient(like: Tensor) -> Tensor:
    """Some gradient of the whole output."""
    return torch.linspace(-1, 1, like.numel(), dtype=like.dtype).view_as(like)


def attend(layout: PositionLayout, is_causal: bool, is_overlapped: bool, dtype: torch.dtype, kv_heads: int) -> Attended:
    """This rank's part of the attention."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ring, kernel = make_ring(is_overlapped=is_overlapped), RecordedKernel()
    attention = RingAttention(ring=ring, layout=layout, is_causal=is_causal, kernel=kernel)
    positions = positions_of(layout, rank, ranks)
    whole = draw(SEQUENCE, SEQUENCE, kv_heads=kv_heads)
    own = tuple(tensor[:, :, positions].to(dtype).requires_grad_() for tensor in whole)
    out_bhse = attention(*own)
    gradients = torch.autograd.grad(out_bhse, own, out_gradient(whole[0])[:, :, positions].to(dtype))
    return Attended(
        positions=positions,
        out_bhse=out_bhse.detach(),
        gradients=gradients,
        forward_pairs=kernel.forward_pairs,
        backward_pairs=kernel.backward_pairs,
        sent_bytes=ring.sent_bytes,
    )


def check(ranks: list[Attended], *, is_causal: bool, kv_heads: int, limit: float) -> None:
    """Output and gradients are those of the definition in float64, on all positions."""
    whole = tuple(tensor.requires_grad_() for tensor in draw(SEQUENCE, SEQUENCE, kv_heads=kv_heads))
    out_bhse, _ = by_definition(*whole, is_causal=is_causal)
    gradients = torch.autograd.grad(out_bhse, whole, out_gradient(whole[0]))
    for attended in ranks:
        for ours, truth in zip((attended.out_bhse, *attended.gradients), (out_bhse, *gradients), strict=True):
            there = truth[:, :, attended.positions]
            assert ((ours - there).norm() / there.norm()).item() <= limit


@pytest.mark.parametrize("is_overlapped", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("layout", ["plain", "zigzag"])
def test_a_ring_attends_as_one_process_does(
    layout: PositionLayout, is_causal: bool, is_overlapped: bool, on_ranks: OnRanks
) -> None:
    attended = on_ranks(3, attend, layout, is_causal, is_overlapped, torch.float64, 2)
    check(attended, is_causal=is_causal, kv_heads=2, limit=EXACT)


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_it_does_so_on_any_number_of_ranks_and_grouped_heads(ranks: int, kv_heads: int, on_ranks: OnRanks) -> None:
    attended = on_ranks(ranks, attend, "zigzag", True, True, torch.float64, kv_heads)
    check(attended, is_causal=True, kv_heads=kv_heads, limit=EXACT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_it_stays_within_its_rounding(dtype: torch.dtype, on_ranks: OnRanks) -> None:
    attended = on_ranks(2, attend, "zigzag", True, True, dtype, 2)
    check(attended, is_causal=True, kv_heads=2, limit=HALF)
    assert {tensor.dtype for one in attended for tensor in (one.out_bhse, *one.gradients)} == {dtype}


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("layout", ["plain", "zigzag"])
def test_a_rank_computes_the_pairs_that_the_law_counts(
    layout: PositionLayout, is_causal: bool, on_ranks: OnRanks
) -> None:
    for rank, attended in enumerate(on_ranks(4, attend, layout, is_causal, True, torch.float64, 2)):
        law = {"is_causal": is_causal, "sequence": SEQUENCE, "rank": rank, "ranks": 4}
        by_hop = [pairs_with((rank - hop) % 4, layout, **law) for hop in range(4)]  # type: ignore[arg-type]
        assert attended.forward_pairs == attended.backward_pairs == [count for count in by_hop if count]
        assert sum(attended.forward_pairs) == ring_pairs(layout, **law)  # type: ignore[arg-type]


def test_zigzag_gives_every_rank_the_same_work_where_plain_does_not(on_ranks: OnRanks) -> None:
    zigzag, plain = (
        [sum(rank.forward_pairs) for rank in on_ranks(4, attend, layout, True, True, torch.float64, 2)]
        for layout in ("zigzag", "plain")
    )
    whole = SEQUENCE * (SEQUENCE + 1) // 2
    assert zigzag == [whole // 4] * 4
    assert sum(plain) == whole
    assert plain == sorted(plain)
    assert plain[-1] > 6 * plain[0]


@pytest.mark.parametrize(("dtype", "element_bytes"), [(torch.float32, 4), (torch.bfloat16, 2)])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_rank_sends_the_bytes_that_the_law_counts(
    ranks: int, dtype: torch.dtype, element_bytes: int, on_ranks: OnRanks
) -> None:
    q_bhse, k_bkse, _ = draw(SEQUENCE, SEQUENCE)
    shape = Shape(
        layers=1,
        width=q_bhse.shape[1] * q_bhse.shape[3],
        heads=q_bhse.shape[1],
        kv_heads=k_bkse.shape[1],
        mlp_width=1,
        vocabulary=2,
        sequence=SEQUENCE,
        batch=q_bhse.shape[0],
    )
    law = RingTraffic(
        shape=shape,
        ranks=ranks,
        sequences=shape.batch,
        microbatches=1,
        element_bytes=element_bytes,
        is_recomputed=False,
        is_overlapped=True,
    )
    for attended in on_ranks(ranks, attend, "zigzag", True, True, dtype, 2):
        assert attended.sent_bytes == sum(transfer.payload_bytes for transfer in law.transfers)
