"""The bytes of state that a rank holds, of tensors whose storages are known."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import SGD, AdamW, Optimizer

from collectors.metrics.rank import STATE_BYTES
from collectors.rank.memory import state_bytes, states_of
from tests.support.ranks import OnRanks

WEIGHT_BYTES = 4 * 30 * 20


def by_part(model: nn.Module, optimizer: Optimizer) -> dict[str, int]:
    samples = state_bytes(states_of(model, optimizer))
    assert {sample.metric for sample in samples} <= {STATE_BYTES.name}
    return {sample.labels["part"]: int(sample.value) for sample in samples}


def stepped(model: nn.Module, optimizer: Optimizer) -> dict[str, int]:
    """The parts after one step whose gradients are all one."""
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    return by_part(model, optimizer)


def linear() -> nn.Linear:
    return nn.Linear(30, 20, bias=False)


def test_adam_keeps_two_moments_and_a_count_of_steps() -> None:
    model = linear()
    assert stepped(model, AdamW(model.parameters())) == {
        "parameters": WEIGHT_BYTES,
        "gradients": WEIGHT_BYTES,
        "optimizer": 2 * WEIGHT_BYTES + 4,
    }


def test_a_part_of_which_nothing_is_held_is_left_out() -> None:
    model = linear()
    optimizer = SGD(model.parameters())
    assert by_part(model, optimizer) == {"parameters": WEIGHT_BYTES}
    assert stepped(model, optimizer) == {"parameters": WEIGHT_BYTES, "gradients": WEIGHT_BYTES}
    optimizer.zero_grad()
    assert by_part(model, optimizer) == {"parameters": WEIGHT_BYTES}


def test_a_storage_that_several_tensors_share_counts_once() -> None:
    model = nn.Sequential(linear(), linear())
    flat = torch.zeros(2 * 30 * 20)
    for weight, part in zip(model.parameters(), flat.chunk(2), strict=True):
        weight.grad = part.view_as(weight)
    assert by_part(model, SGD(model.parameters()))["gradients"] == 2 * WEIGHT_BYTES


def test_a_view_counts_with_all_that_it_keeps_alive() -> None:
    model = linear()
    weight = model.weight
    weight.grad = torch.zeros(1000, 20, 30)[7]
    assert by_part(model, SGD(model.parameters()))["gradients"] == 1000 * WEIGHT_BYTES


def test_a_weight_with_two_names_counts_once() -> None:
    model = nn.Sequential(linear(), linear())
    model[1].weight = model[0].weight
    assert by_part(model, SGD(model.parameters())) == {"parameters": WEIGHT_BYTES}


def sharded() -> dict[str, int]:
    model = linear()
    mesh = init_device_mesh("cpu", (2,))
    model.weight = nn.Parameter(distribute_tensor(model.weight, mesh, [Shard(0)]))
    return stepped(model, AdamW(model.parameters(), foreach=False))


def test_of_a_distributed_tensor_the_local_part_counts(on_ranks: OnRanks) -> None:
    half = WEIGHT_BYTES // 2
    for held in on_ranks(2, sharded):
        assert held == {"parameters": half, "gradients": half, "optimizer": 2 * half + 4}


@pytest.mark.gpu
def test_state_on_the_device_counts() -> None:
    model = linear().cuda()
    assert stepped(model, AdamW(model.parameters(), fused=True))["optimizer"] == 2 * WEIGHT_BYTES + 4
