"""Each process group belongs to the mesh axis that has its ranks; the axes are counted apart."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from collectors.rank import flight_recorder
from collectors.rank.flight_recorder import axes_of_groups
from tests.support.ranks import OnRanks
from workloads.core.mesh import make_mesh

EIGHT: Mapping[str, int] = {"data": 2, "stage": 2, "tensor": 2}


def axes_told(axes: Mapping[str, int]) -> list[str]:
    """What is told of one collective over each axis in turn."""
    mesh = make_mesh(axes, "cpu")
    before = flight_recorder.dump("gloo")
    for axis in axes:
        dist.all_reduce(torch.ones(1), group=mesh.get_group(axis))
    told = axes_of_groups(mesh)
    return [told[entered.group] for entered in flight_recorder.entered_since(before, flight_recorder.dump("gloo"))]


@pytest.mark.parametrize(
    ("ranks", "axes"), [(2, {"data": 2}), (4, {"replicate": 2, "shard": 2}), (4, {"data": 1, "stage": 4, "tensor": 1})]
)
def test_each_axis_is_told_by_its_group(ranks: int, axes: Mapping[str, int], on_ranks: OnRanks) -> None:
    assert on_ranks(ranks, axes_told, axes) == [list(axes)] * ranks


def axes_of_others() -> tuple[dict[str, str | None], str]:
    """The axes of groups that are not the mesh's own, on eight ranks; and that of weights gathered among a few."""
    mesh = make_mesh(EIGHT, "cpu")
    world = dist.group.WORLD
    assert world is not None
    rank = dist.get_rank()
    # Rank is 4 data + 2 stage + tensor.
    pairs = {
        "over tensor": [[first, first + 1] for first in range(0, 8, 2)],
        "over tensor and stage": [[first, first + 3] for first in (0, 4)] + [[1, 2], [5, 6]],
    }
    groups = {"all": world}
    for name, members in pairs.items():
        made = {tuple(ranks): dist.new_group(ranks) for ranks in members}
        groups[name] = next(group for ranks, group in made.items() if rank in ranks)
    told = axes_of_groups(mesh)
    return {name: told.get(group.group_name) for name, group in groups.items()}, told[mesh.get_group("data").group_name]


def test_a_group_is_of_the_axis_that_has_all_its_ranks_or_of_none(on_ranks: OnRanks) -> None:
    told = {"all": None, "over tensor": "tensor", "over tensor and stage": None}
    assert on_ranks(8, axes_of_others) == [(told, "data")] * 8


def axes_of_a_gather_among_few() -> set[str | None]:
    mesh = make_mesh({"shard": 4}, "cpu")
    inner = torch.nn.Linear(8, 8)
    model = torch.nn.Sequential(inner, torch.nn.Linear(8, 8))
    fully_shard(inner, mesh=mesh, reshard_after_forward=2)
    fully_shard(model, mesh=mesh)
    before = flight_recorder.dump("gloo")
    model(torch.ones(2, 8)).sum().backward()
    told = axes_of_groups(mesh)
    entered = flight_recorder.entered_since(before, flight_recorder.dump("gloo"))
    assert len({one.group for one in entered}) == 2
    return {told.get(one.group) for one in entered}


def test_weights_gathered_among_some_ranks_of_an_axis_are_its_traffic(on_ranks: OnRanks) -> None:
    assert on_ranks(4, axes_of_a_gather_among_few) == [{"shard"}] * 4
