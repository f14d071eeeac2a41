"""The layer that normalises over the batch: over all ranks it is that of one rank, and locally it is not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.ranks import OnRanks
from tests.workloads.training.setups import small_setup
from tests.workloads.training.training_runs import StepRecord, train
from workloads.core.batch_norm import EPSILON, BatchNorm
from workloads.core.trainer import make_model
from workloads.options import Check, Mistake


def whole_batch() -> Tensor:
    return torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(3)) * 2 + 1


def normalised(is_global: bool) -> tuple[Tensor, Tensor]:
    """This rank's share of the batch normalised, and the gradient of a sum of cubes in it."""
    share_bsd = whole_batch().chunk(dist.get_world_size())[dist.get_rank()].requires_grad_()
    out_bsd = BatchNorm(is_global=is_global)(share_bsd)
    out_bsd.pow(3).sum().backward()
    assert share_bsd.grad is not None
    return out_bsd.detach(), share_bsd.grad


def test_one_rank_normalises_as_torch_does(on_ranks: OnRanks) -> None:
    x_bsd = whole_batch().requires_grad_()
    expected_bds = torch.nn.functional.batch_norm(x_bsd.transpose(1, 2), None, None, training=True, eps=EPSILON)
    expected_bds.pow(3).sum().backward()  # type: ignore[no-untyped-call]
    ((out_bsd, gradient_bsd),) = on_ranks(1, normalised, True)
    torch.testing.assert_close(out_bsd, expected_bds.detach().transpose(1, 2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient_bsd, x_bsd.grad, rtol=1e-4, atol=1e-4)


def test_ranks_together_normalise_as_one_rank_does(on_ranks: OnRanks) -> None:
    ((whole_bsd, _),) = on_ranks(1, normalised, True)
    shares = on_ranks(2, normalised, True)
    torch.testing.assert_close(torch.cat([share_bsd for share_bsd, _ in shares]), whole_bsd)


def test_local_statistics_are_of_the_share_alone(on_ranks: OnRanks) -> None:
    for share_bsd, _ in on_ranks(2, normalised, False):
        torch.testing.assert_close(share_bsd.mean(dim=(0, 1)), torch.zeros(5), rtol=0, atol=1e-5)


def checked(strategy: str, ranks: int, *mistakes: Mistake, on_ranks: OnRanks) -> StepRecord:
    check = Check(epoch_steps=2, data_ranks=ranks, has_batch_norm=True, mistakes=mistakes)
    setup = small_setup(strategy, ranks=ranks, options={**check.options(), "clip": 0.0, "bucket_mb": 0.1})
    return on_ranks(ranks, train, setup, 1)[0][0]


def furthest(one: StepRecord, other: StepRecord) -> float:
    """How far gradients are apart at the most, as a share of their norm."""
    gaps = [(one.gradients[name] - truth).norm() / truth.norm() for name, truth in other.gradients.items()]
    return torch.stack(gaps).max().item()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_gradients_through_the_whole_batchs_statistics_are_those_of_one_rank(strategy: str, on_ranks: OnRanks) -> None:
    assert furthest(checked(strategy, 2, on_ranks=on_ranks), checked("single", 1, on_ranks=on_ranks)) < 5e-6


def test_gradients_through_local_statistics_are_not(on_ranks: OnRanks) -> None:
    wrong = checked("ddp", 2, "batch_statistics", on_ranks=on_ranks)
    assert furthest(wrong, checked("single", 1, on_ranks=on_ranks)) > 1e-2


def test_a_model_outside_of_checks_has_no_such_layer() -> None:
    assert not [module for module in make_model(small_setup()).modules() if isinstance(module, BatchNorm)]


def test_the_layer_adds_no_weight() -> None:
    check = Check(epoch_steps=2, data_ranks=1, has_batch_norm=True)
    names = [
        [name for name, _ in make_model(small_setup(options=options)).named_parameters()]
        for options in ({}, check.options())
    ]
    assert names[0] == names[1]
