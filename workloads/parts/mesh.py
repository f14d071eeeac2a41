"""The device mesh of a case; the process group exists already."""

from __future__ import annotations

from collections.abc import Mapping

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from workloads.cards.card import Device


def make_mesh(axes: Mapping[str, int], device: Device) -> DeviceMesh:
    """A mesh over all ranks.

    axes: name and size of each axis, outermost first, as a card gives them.
    """
    return init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))
