"""The device mesh of a case; the process group exists already."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from workloads.cards.card import Device
from workloads.parts.timeouts import share_world_timeout


def make_mesh(axes: Mapping[str, int], device: Device) -> DeviceMesh:
    """A mesh over all ranks, whose groups give up when the world's does.

    axes: name and size of each axis, outermost first, as a card gives them.
    """
    mesh = init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))
    share_world_timeout(torch.device(device))
    return mesh
