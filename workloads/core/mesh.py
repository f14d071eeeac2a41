"""The device mesh of a case; the process group exists already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout, _world

from workloads.spec import Device, Precision

# torch's type for each precision.

DTYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


# How long the collectives of a group may take; what is made without a word of it may take half an hour.


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    """After which its collectives on tensors of this device fail."""
    timeout: timedelta = group._get_backend(device).options._timeout
    return timeout


def share_world_timeout(device: torch.device) -> None:
    """Give every group that this rank is in the timeout of the world.

    torch gives each group the default of its kind, meshes make theirs without asking, and libraries keep some where no
    mesh leads to them: so all are taken that torch knows of.
    """
    world = dist.group.WORLD
    assert world is not None, "ranks have met"
    timeout = timeout_of(world, device)
    for group in _world.pg_map:
        _set_pg_timeout(timeout, group)


def make_group(group: dist.ProcessGroup, device: torch.device) -> dist.ProcessGroup:
    """Another group of the same ranks, with the same timeout; every rank of the world calls it."""
    # Left to itself, a new group has the library's timeout of half an hour, and not that of its parent.
    made = dist.new_group(dist.get_process_group_ranks(group), timeout=timeout_of(group, device))
    assert isinstance(made, dist.ProcessGroup)
    return made


class InitMesh(Protocol):
    """torch's `init_device_mesh`, as 2.11 to 2.13 have it."""

    def __call__(
        self,
        device_type: str,
        mesh_shape: tuple[int, ...],
        *,
        mesh_dim_names: tuple[str, ...] | None = None,
        backend_override: dict[int | str, Any] | None = None,
    ) -> DeviceMesh:
        """backend_override: of an axis, by its number or name, how its groups are made."""


def make_mesh(
    axes: Mapping[str, int],
    device: Device,
    *,
    high_priority: Sequence[str] = (),
    init: InitMesh = init_device_mesh,
    make_options: Callable[[timedelta], object] | None = None,
) -> DeviceMesh:
    """A mesh over all ranks, whose groups give up when the world's does.

    axes: name and size of each axis, outermost first, as a card gives them.
    high_priority: axes whose groups have a communicator of their own, on a stream of high priority; on NCCL alone.
    make_options: of such groups, from their timeout.
    """
    here, make = torch.device(device), make_options or high_priority_options
    override: dict[int | str, Any] | None = None
    if high_priority:
        world = dist.group.WORLD
        assert world is not None, "ranks have met"
        # torch takes the timeout of a group that is handed options from these, which begin with half an hour.
        override = {axis: make(timeout_of(world, here)) for axis in high_priority}
    mesh = init(device, tuple(axes.values()), mesh_dim_names=tuple(axes), backend_override=override)
    share_world_timeout(here)
    return mesh


def high_priority_options(timeout: timedelta) -> object:
    """NCCL's options of a group whose kernels go before others that wait for the GPU; torch must be built with NCCL."""
    options: Any = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = timeout
    return options
