"""What a check adds to a training: a layer that over all ranks is that of one rank, short epochs, and faults."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from bench.rank.convergence import EPSILON, BatchNorm, add_batch_norm, check_batches, trained_case
from tests.bench.made.examples import make_case
from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready
from workloads.core.learning_rate import rate_factor
from workloads.core.trainer import make_model
from workloads.options import Check, Mistake
from workloads.spec import DataShare


def full_batch() -> Tensor:
    return torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(3)) * 2 + 1


def normalised(is_global: bool) -> tuple[Tensor, Tensor]:
    """This rank's share of the batch normalised, and the gradient of a sum of cubes in it."""
    share_bsd = full_batch().chunk(dist.get_world_size())[dist.get_rank()].requires_grad_()
    out_bsd = BatchNorm(is_global=is_global)(share_bsd)
    out_bsd.pow(3).sum().backward()
    assert share_bsd.grad is not None
    return out_bsd.detach(), share_bsd.grad


def test_one_rank_normalises_as_torch_does(on_ranks: OnRanks) -> None:
    x_bsd = full_batch().requires_grad_()
    expected_bds = torch.nn.functional.batch_norm(x_bsd.transpose(1, 2), None, None, training=True, eps=EPSILON)
    expected_bds.pow(3).sum().backward()  # type: ignore[no-untyped-call]
    ((out_bsd, gradient_bsd),) = on_ranks(1, normalised, True)
    torch.testing.assert_close(out_bsd, expected_bds.detach().transpose(1, 2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient_bsd, x_bsd.grad, rtol=1e-4, atol=1e-4)


def test_ranks_together_normalise_as_one_rank_does(on_ranks: OnRanks) -> None:
    ((full_bsd, _),) = on_ranks(1, normalised, True)
    shares = on_ranks(2, normalised, True)
    torch.testing.assert_close(torch.cat([share_bsd for share_bsd, _ in shares]), full_bsd)


def test_local_statistics_are_of_the_share_alone(on_ranks: OnRanks) -> None:
    for share_bsd, _ in on_ranks(2, normalised, False):
        torch.testing.assert_close(share_bsd.mean(dim=(0, 1)), torch.zeros(5), rtol=0, atol=1e-5)


Gradients = dict[str, Tensor]


def train_checked(setup: SmallSetup, check: Check) -> Gradients:
    """The gradients of one step."""
    ready = make_ready(setup)
    add_batch_norm(ready.workload.model, check)
    ready.step()
    return {name: gradient.clone() for name, gradient in ready.workload.full_gradients().items()}


def checked(strategy: str, ranks: int, *mistakes: Mistake, on_ranks: OnRanks) -> Gradients:
    check = Check(epoch_steps=2, data_ranks=ranks, has_batch_norm=True, mistakes=mistakes)
    setup = small_setup(strategy, ranks=ranks, options={**check.options(), "clip": 0.0, "bucket_mb": 0.1})
    return on_ranks(ranks, train_checked, setup, check)[0]


def furthest(one: Gradients, other: Gradients) -> float:
    """How far gradients are apart at the most, as a share of their norm."""
    gaps = [(one[name] - truth).norm() / truth.norm() for name, truth in other.items()]
    return torch.stack(gaps).max().item()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_gradients_through_the_full_batchs_statistics_are_those_of_one_rank(strategy: str, on_ranks: OnRanks) -> None:
    assert furthest(checked(strategy, 2, on_ranks=on_ranks), checked("single", 1, on_ranks=on_ranks)) < 5e-6


def test_gradients_through_local_statistics_are_not(on_ranks: OnRanks) -> None:
    wrong = checked("ddp", 2, "batch_statistics", on_ranks=on_ranks)
    assert furthest(wrong, checked("single", 1, on_ranks=on_ranks)) > 1e-2


@pytest.mark.parametrize("has_batch_norm", [True, False])
def test_the_layer_is_there_where_the_check_has_it_and_adds_no_weight(has_batch_norm: bool) -> None:
    model = make_model(small_setup())
    names = [name for name, _ in model.named_parameters()]
    alone: tuple[Mistake, ...] = ("batch_statistics",)  # Which meets no other rank.
    add_batch_norm(model, Check(epoch_steps=2, data_ranks=1, has_batch_norm=has_batch_norm, mistakes=alone))
    tokens_bs = torch.arange(8).view(2, 4)
    model(tokens_bs)
    layers = [module for module in model.modules() if isinstance(module, BatchNorm)]
    assert [layer.statistics_2d is not None for layer in layers] == [True] * has_batch_norm
    assert [name for name, _ in model.named_parameters()] == names


def rows(steps: int, mistakes: Sequence[Mistake] = ()) -> list[list[list[int]]]:
    """The sequences of each step, on the first of two data ranks."""
    check = Check(epoch_steps=2, data_ranks=2, has_batch_norm=False, mistakes=tuple(mistakes))
    with closing(check_batches(small_setup(), DataShare(rank=0, ranks=2), check)) as batches:
        return [next(batches).tolist() for _ in range(steps)]


def test_an_epoch_of_a_check_ends_after_its_steps_and_the_next_has_another_order() -> None:
    first, second = rows(4)[:2], rows(4)[2:]
    assert first != second


def test_the_faulty_sampler_repeats_the_first_epoch_and_changes_nothing_in_it() -> None:
    wrong = rows(6, ["sampler_epoch"])
    assert wrong[:2] == rows(2)
    assert wrong[2:4] == wrong[:2]
    assert wrong[4:6] == wrong[:2]


def test_the_faulty_rate_is_not_scaled_by_the_rule() -> None:
    case = make_case()
    case = replace(case, options={**case.options, "lr_rule": "linear", "lr_warm_up": 2})
    faulty = trained_case(case, ["learning_rate"])
    assert [rate_factor(faulty, data_ranks=3, step=step) for step in range(4)] == [1.0] * 4
    assert trained_case(case, ["sampler_epoch"]) is case
