"""Gradients of replicas become their mean, whole ones and parts, in as many collectives as there are buckets."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from collectors.rank import flight_recorder
from tests.support.ranks import OnRanks
from workloads.core.mesh import make_mesh
from workloads.three_d.strategy import average_gradients

pytestmark = pytest.mark.slow

SIZES = (3, 5, 4)


def averaged(bucket_bytes: int) -> tuple[list[list[float]], int]:
    """The means of gradients that are 1 on rank 0 and 3 on rank 1, and how many collectives they took."""
    weights = [nn.Parameter(torch.zeros(size)) for size in SIZES]
    for weight in weights:
        weight.grad = torch.full_like(weight, 1.0 + 2 * dist.get_rank())
    before = flight_recorder.count(flight_recorder.dump("gloo"))
    group = dist.group.WORLD
    assert group is not None
    average_gradients(weights, group, bucket_bytes=bucket_bytes)
    calls = flight_recorder.count(flight_recorder.dump("gloo")) - before
    return [weight.grad.tolist() for weight in weights if weight.grad is not None], calls


@pytest.mark.parametrize(("bucket_bytes", "calls"), [(48, 1), (32, 2), (1, 3)])
def test_each_gradient_is_the_mean_of_all_ranks(bucket_bytes: int, calls: int, on_ranks: OnRanks) -> None:
    means = [[2.0] * size for size in SIZES]
    assert on_ranks(2, averaged, bucket_bytes) == [(means, calls)] * 2


def averaged_part() -> list[float]:
    mesh = make_mesh({"data": 2, "tensor": 2}, "cpu")
    weight = nn.Parameter(distribute_tensor(torch.zeros(4), mesh["tensor"], [Shard(0)], src_data_rank=None))
    own = torch.arange(4.0) * (1 + 2 * mesh.get_local_rank("data"))
    weight.grad = distribute_tensor(own, mesh["tensor"], [Shard(0)], src_data_rank=None)
    average_gradients([weight], mesh.get_group("data"), bucket_bytes=100)
    assert isinstance(weight.grad, DTensor)
    return weight.grad.to_local().tolist()


def test_of_a_divided_gradient_each_part_is_averaged_by_itself(on_ranks: OnRanks) -> None:
    assert on_ranks(4, averaged_part) == [[0.0, 2.0], [4.0, 6.0]] * 2


def test_a_weight_without_a_gradient_is_refused(on_ranks: OnRanks) -> None:
    with pytest.raises(RuntimeError, match="a weight of \\(3,\\) has no gradient"):
        on_ranks(1, average_none)


def average_none() -> None:
    group = dist.group.WORLD
    assert group is not None
    average_gradients([nn.Parameter(torch.zeros(3))], group, bucket_bytes=1)
