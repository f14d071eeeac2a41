"""A mesh has the axes of the card over all ranks, and groups that wait as long as the world does."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.ranks import LIMIT_S, OnRanks
from workloads.parts.mesh import make_mesh
from workloads.parts.timeouts import timeout_of


def place_in_mesh(axes: Mapping[str, int]) -> list[list[int]]:
    """The ranks that share each axis with this one."""
    mesh = make_mesh(axes, "cpu")
    return [dist.get_process_group_ranks(mesh.get_group(axis)) for axis in axes]


def test_the_last_axis_is_of_neighbours(on_ranks: OnRanks) -> None:
    assert on_ranks(4, place_in_mesh, {"replicate": 2, "shard": 2}) == [
        [[0, 2], [0, 1]],
        [[1, 3], [0, 1]],
        [[0, 2], [2, 3]],
        [[1, 3], [2, 3]],
    ]


def timeouts(axes: Mapping[str, int]) -> list[timedelta]:
    return [timeout_of(group, torch.device("cpu")) for group in make_mesh(axes, "cpu").get_all_groups()]


@pytest.mark.parametrize("axes", [{"data": 4}, {"replicate": 2, "shard": 2}], ids=str)
def test_the_group_of_each_axis_has_the_timeout_of_the_world(axes: Mapping[str, int], on_ranks: OnRanks) -> None:
    assert on_ranks(4, timeouts, axes) == [[timedelta(seconds=LIMIT_S)] * len(axes)] * 4
