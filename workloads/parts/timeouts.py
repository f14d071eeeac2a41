"""How long the collectives of a group may take; what is made without a word of it may take half an hour."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout, _world


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
