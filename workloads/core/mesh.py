"""Device mesh and process groups of a rank: torch's types, group timeouts, streams of high priority.

The default process group (the world) exists already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from workloads.spec import Device, Precision

# torch 2.14 deprecates the private function; torch 2.13 has no other.
_set_timeout = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout

DTYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


# Timeouts of process groups. A group that is made without one has torch's default, which may be half an hour.


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    """Return the time after which the group's collectives on tensors of this device fail."""
    timeout: timedelta = group._get_backend(device).options._timeout
    return timeout


def share_world_timeout(device: torch.device) -> None:
    """Give every group of this rank the timeout of the world.

    torch gives each new group its backend's default; meshes make groups themselves, and libraries keep groups that no
    mesh refers to. So this sets the timeout in every group that torch knows.
    """
    world = dist.group.WORLD
    assert world is not None, "ranks have met"
    timeout = timeout_of(world, device)
    for group in distributed_c10d._world.pg_map:
        _set_timeout(timeout, group)


def make_group(group: dist.ProcessGroup, device: torch.device) -> dist.ProcessGroup:
    """Make another group of the same ranks, with the same timeout; every rank of the world calls it."""
    # By default a new group has torch's timeout, and not that of its parent.
    subgroup = dist.new_group(dist.get_process_group_ranks(group), timeout=timeout_of(group, device))
    assert isinstance(subgroup, dist.ProcessGroup)
    return subgroup


def high_priority_options(timeout: timedelta) -> object:
    """Return NCCL's options for a group whose kernels run before others that wait for the GPU.

    torch must be built with NCCL.
    """
    options: Any = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = timeout
    return options


def make_mesh(
    axes: Mapping[str, int],
    device: Device,
    *,
    high_priority: Sequence[str] = (),
    init: Callable[..., DeviceMesh] = init_device_mesh,
    make_options: Callable[[timedelta], object] = high_priority_options,
) -> DeviceMesh:
    """Make a mesh over all ranks, whose groups have the timeout of the world.

    axes: name and size of each axis, outermost first, as in `StrategySpec.mesh`.
    high_priority: axes whose groups have a communicator of their own, on a stream of high priority; NCCL only.
    make_options: makes the options of such groups from their timeout.
    """
    own_device = torch.device(device)
    override: dict[int | str, Any] | None = None
    if high_priority:
        world = dist.group.WORLD
        assert world is not None, "ranks have met"
        # A group that is given options takes its timeout from them, and their default is half an hour.
        override = {axis: make_options(timeout_of(world, own_device)) for axis in high_priority}
    mesh = init(device, tuple(axes.values()), mesh_dim_names=tuple(axes), backend_override=override)
    share_world_timeout(own_device)
    return mesh
