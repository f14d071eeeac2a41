"""Ranks that hold some positions each train as one process does that holds all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import StepRecord, no_phase, train
from workloads.context_parallel.cost_model import PositionLayout
from workloads.context_parallel.strategy import SequenceTrainer, positions
from workloads.core.data import Batches
from workloads.core.mesh import make_mesh
from workloads.registry import spec_of
from workloads.spec import LIMITS, Precision

LAYOUTS: tuple[PositionLayout, ...] = ("plain", "zigzag")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_position_is_held_by_one_rank(layout: PositionLayout, ranks: int) -> None:
    held = [positions(layout, sequence=12, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert {part.numel() for part in held} == {12 // ranks}
    assert sorted(torch.cat(held).tolist()) == list(range(12))


def test_plain_positions_are_neighbours() -> None:
    assert positions("plain", sequence=12, rank=1, ranks=3).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(("rank", "held"), [(0, [0, 1, 10, 11]), (1, [2, 3, 8, 9]), (2, [4, 5, 6, 7])])
def test_zigzag_positions_are_as_far_from_the_front_as_from_the_end(rank: int, held: list[int]) -> None:
    assert positions("zigzag", sequence=12, rank=rank, ranks=3).tolist() == held


class FakeGatheringAttention:
    """Attention to the keys and values of all ranks, gathered on each; a query sees those up to its own position."""

    def __init__(self, layout: PositionLayout, sequence: int) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        held = [positions(layout, sequence=sequence, rank=source, ranks=ranks) for source in range(ranks)]
        self.sees_st = torch.cat(held) <= held[rank].unsqueeze(-1)

    def __call__(self, q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor) -> Tensor:
        """See `Attend`."""
        k_bkte, v_bkte = (_Gather.apply(own) for own in (k_bkse, v_bkse))  # type: ignore[no-untyped-call]
        return F.scaled_dot_product_attention(q_bhse, k_bkte, v_bkte, attn_mask=self.sees_st, enable_gqa=True)


class _Gather(torch.autograd.Function):
    """All ranks' positions, rank by rank; each rank gets back what all ranks have of the gradients of its own."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        own = own.contiguous()
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        return torch.cat(parts, dim=2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        whole = gradient.float()
        dist.all_reduce(whole)
        return whole.chunk(dist.get_world_size(), dim=2)[dist.get_rank()].to(gradient.dtype)


def train_on_own_positions(setup: SmallSetup, layout: PositionLayout) -> StepRecord:
    """One step on the batch that `single` takes first."""
    trainer = SequenceTrainer(
        setup,
        make_mesh({"sequence": setup.ranks}, "cpu"),
        no_phase,
        attend=FakeGatheringAttention(layout, setup.shape.sequence),
        layout=layout,
    )
    loss = trainer.step(next(Batches(setup, data_rank=0, data_ranks=1)))
    assert loss is not None
    return StepRecord(loss=loss.item(), gradients=trainer.full_gradients())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_mean_over_ranks_is_the_loss_and_gradient_of_all_positions(
    layout: PositionLayout, precision: Precision, on_ranks: OnRanks
) -> None:
    ((whole,),) = on_ranks(1, train, small_setup(precision=precision, options={"clip": 0.0}), 1)
    setup = small_setup("ulysses", ranks=2, precision=precision, options={"clip": 0.0, "accumulate": 2})
    records = on_ranks(2, train_on_own_positions, setup, layout)
    losses = [record.loss for record in records if record.loss is not None]
    assert sum(losses) / 2 == pytest.approx(whole.loss, rel=LIMITS[precision])
    for record in records:
        for name, truth in whole.gradients.items():
            assert (record.gradients[name] - truth).norm() <= LIMITS[precision] * truth.norm()


def test_ranks_of_a_sequence_read_the_same_batches() -> None:
    setup = small_setup("ulysses", ranks=2)
    spec = spec_of("ulysses")
    assert spec.data_share(setup, 0) == spec.data_share(setup, 1)
    assert spec.data_ranks(setup) == 1
    assert spec.training_ranks(setup) == 2
