"""A mesh has the axes of the spec over all ranks, and groups that wait as long as the world does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.support.ranks import LIMIT_S, OnRanks
from workloads.core.mesh import high_priority_options, make_mesh, timeout_of


def share_in_mesh(axes: Mapping[str, int]) -> list[list[int]]:
    """The ranks that share each axis with this one."""
    mesh = make_mesh(axes, "cpu")
    return [dist.get_process_group_ranks(mesh.get_group(axis)) for axis in axes]


def test_the_last_axis_is_of_neighbours(on_ranks: OnRanks) -> None:
    assert on_ranks(4, share_in_mesh, {"replicate": 2, "shard": 2}) == [
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


def asked_of_torch(axes: Mapping[str, int], high_priority: Sequence[str]) -> list[dict[str, object]]:
    """What `init_device_mesh` was handed, by a fake of it that makes the mesh without the options of NCCL."""
    asked: list[dict[str, object]] = []

    def fake_init(
        device_type: str,
        mesh_shape: tuple[int, ...],
        *,
        mesh_dim_names: tuple[str, ...] | None = None,
        backend_override: dict[int | str, Any] | None = None,
    ) -> DeviceMesh:
        asked.append({"names": mesh_dim_names, "override": backend_override})
        return init_device_mesh(device_type, mesh_shape, mesh_dim_names=mesh_dim_names)

    def fake_options(timeout: timedelta) -> object:
        return "high priority", timeout

    make_mesh(axes, "cpu", high_priority=high_priority, init=fake_init, make_options=fake_options)
    return asked


def test_the_groups_of_an_axis_of_high_priority_are_made_with_options_that_wait_as_the_world(
    on_ranks: OnRanks,
) -> None:
    options = ("high priority", timedelta(seconds=LIMIT_S))
    asked = on_ranks(4, asked_of_torch, {"data": 2, "stage": 2}, ["stage"])
    assert asked == [[{"names": ("data", "stage"), "override": {"stage": options}}]] * 4


def test_a_mesh_without_such_an_axis_is_made_as_ever(on_ranks: OnRanks) -> None:
    assert on_ranks(2, asked_of_torch, {"data": 2}, []) == [[{"names": ("data",), "override": None}]] * 2


@pytest.mark.skipif(not dist.is_nccl_available(), reason="torch is built without NCCL")
def test_options_of_high_priority_are_nccls() -> None:
    options: Any = high_priority_options(timedelta(seconds=7))
    assert (options.is_high_priority_stream, options._timeout) == (True, timedelta(seconds=7))
