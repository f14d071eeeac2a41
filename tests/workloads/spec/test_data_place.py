"""Ranks share out a batch along the data axes of their mesh, and along no other."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from tests.support.ranks import OnRanks
from workloads.spec import DATA_AXES, DataShare, share_in_mesh


def test_a_mesh_without_a_data_axis_has_one_share() -> None:
    assert share_in_mesh({"tensor": 4}, 3) == DataShare(rank=0, ranks=1)


@pytest.mark.parametrize("rank", range(4))
def test_a_single_data_axis_gives_each_rank_its_own(rank: int) -> None:
    assert share_in_mesh({"data": 4}, rank) == DataShare(rank=rank, ranks=4)


def test_two_data_axes_share_out_as_one_that_is_as_long() -> None:
    assert [share_in_mesh({"replicate": 2, "shard": 3}, rank).rank for rank in range(6)] == list(range(6))


def test_ranks_of_one_tensor_axis_share_their_sequences() -> None:
    places = [share_in_mesh({"data": 2, "tensor": 2}, rank) for rank in range(4)]
    assert [place.rank for place in places] == [0, 0, 1, 1]
    assert {place.ranks for place in places} == {2}


def shares_of_mesh(axes: dict[str, int]) -> DataShare:
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    rank, ranks = 0, 1
    for name, size in axes.items():
        if name in DATA_AXES:
            rank, ranks = rank * size + mesh.get_local_rank(name), ranks * size
    return DataShare(rank=rank, ranks=ranks)


@pytest.mark.parametrize("axes", [{"data": 2, "tensor": 2}, {"pipeline": 2, "data": 2}, {"replicate": 2, "shard": 2}])
def test_places_are_those_of_torchs_own_mesh(axes: dict[str, int], on_ranks: OnRanks) -> None:
    ranks = int(torch.tensor(list(axes.values())).prod())
    assert on_ranks(ranks, shares_of_mesh, axes) == [share_in_mesh(axes, rank) for rank in range(ranks)]
