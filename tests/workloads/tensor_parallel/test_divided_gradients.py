"""Gradients in parts and whole ones are clipped, added up and unscaled as those of one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.optim import SGD

from tests.support.ranks import OnRanks
from workloads.core.mesh import make_mesh
from workloads.core.sharded_gradients import AgreeingScaler, add_up, clip_gradients, parameter_groups

RANKS = 2
SCALE = 4.0


def make_weights(whole_value: float = 5.0) -> list[nn.Parameter]:
    """One that the ranks divide, whose gradient is 1, 2, 3, 4, and one that each has whole."""
    mesh = make_mesh({"tensor": RANKS}, "cpu")
    divided = nn.Parameter(DTensor.from_local(torch.zeros(2), mesh, [Shard(0)]))
    part = torch.tensor([1.0, 2.0]) + 2 * dist.get_rank()
    divided.grad = DTensor.from_local(part, mesh, [Shard(0)])
    whole = nn.Parameter(torch.zeros(1))
    whole.grad = torch.tensor([whole_value])
    return [divided, whole]


def gradients_of(weights: list[nn.Parameter]) -> Tensor:
    grads = [weight.grad for weight in weights if weight.grad is not None]
    return torch.cat([grad.full_tensor() if isinstance(grad, DTensor) else grad for grad in grads])


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def clipped(largest_norm: float) -> Tensor:
    weights = make_weights()
    clip_gradients(weights, largest_norm, groups=[world()], tensor_ranks=RANKS)
    return gradients_of(weights)


@pytest.mark.parametrize("largest_norm", [1.0, 100.0])
def test_the_norm_is_that_of_the_whole_gradient(largest_norm: float, on_ranks: OnRanks) -> None:
    weight = nn.Parameter(torch.zeros(5))
    weight.grad = torch.arange(1.0, 6.0)
    nn.utils.clip_grad_norm_(weight, largest_norm)
    for found in on_ranks(RANKS, clipped, largest_norm):
        torch.testing.assert_close(found, weight.grad)


def added_up() -> Tensor:
    weights = [nn.Parameter(torch.zeros(size)) for size in (2, 3)]
    for weight in weights:
        weight.grad = torch.full_like(weight, 1.0 + dist.get_rank())
    add_up(weights, world())
    return gradients_of(weights)


def test_parts_of_a_sum_become_the_sum(on_ranks: OnRanks) -> None:
    assert [found.tolist() for found in on_ranks(RANKS, added_up)] == [[3.0] * 5] * RANKS


def test_a_weight_without_gradient_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"a weight of \(3,\) has no gradient"):
        add_up([nn.Parameter(torch.zeros(3))], None)  # type: ignore[arg-type]  # It does not come to the group.


def groups_of_kinds() -> list[set[type]]:
    return [{type(weight.data) for weight in group["params"]} for group in parameter_groups(make_weights())]


def test_an_optimizer_gets_parts_and_wholes_apart(on_ranks: OnRanks) -> None:
    assert on_ranks(RANKS, groups_of_kinds) == [[{DTensor}, {Tensor}]] * RANKS


def unscale(overflowing_rank: int | None) -> tuple[Tensor, bool, float]:
    """The gradients without their scale, whether the update was made, and the next scale."""
    weights = make_weights(float("inf") if overflowing_rank == dist.get_rank() else 5.0)
    optimizer = SGD(parameter_groups(weights), lr=1.0)
    scaler = AgreeingScaler("cpu", groups=[world()], enabled=True)
    scaler.scale(torch.zeros(()))  # It makes its scale with the first loss.
    scaler.update(SCALE)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return gradients_of(weights), bool(weights[1].item()), scaler.get_scale()


def test_parts_and_wholes_are_unscaled(on_ranks: OnRanks) -> None:
    for gradients, is_updated, scale in on_ranks(RANKS, unscale, None):
        assert gradients.tolist() == [number / SCALE for number in range(1, 6)]
        assert is_updated
        assert scale == SCALE


def test_all_ranks_skip_an_update_in_which_one_overflows(on_ranks: OnRanks) -> None:
    for _, is_updated, scale in on_ranks(RANKS, unscale, 1):
        assert not is_updated
        assert scale == SCALE / 2
