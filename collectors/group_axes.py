"""Which axis of the device mesh each process group belongs to, so that the traffic of an axis is counted apart."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _world

OTHER_AXIS = "other"
"""In place of an axis, where ranks of several took part."""


def axes_of_groups(mesh: DeviceMesh) -> dict[str, str]:
    """The mesh axis of each group that this rank is in now, by the group's name; a group of several axes is left out.

    Beside the mesh's own groups there are those that libraries make for themselves: of all ranks of an axis, or of some
    of them, as where FSDP2 keeps weights divided among a few. Theirs is the axis that has all their ranks.
    """
    names = mesh.mesh_dim_names
    assert names is not None, "cards name their axes"
    own = {name: mesh.get_group(name) for name in names}
    members = {name: set(dist.get_process_group_ranks(group)) for name, group in own.items()}
    axes = {}
    for group in _world.pg_map:
        ranks = set(dist.get_process_group_ranks(group))
        for axis, axis_ranks in members.items():
            if ranks <= axis_ranks:
                axes[str(group.group_name)] = axis
                break
    # An axis of one rank is part of all others.
    return axes | {str(group.group_name): axis for axis, group in own.items()}
