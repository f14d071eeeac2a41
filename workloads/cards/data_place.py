"""Which share of each batch a rank trains on, told from the device mesh; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DATA_AXES = ("data", "replicate", "shard")
"""Mesh axes whose ranks train on different sequences; ranks that differ on any other axis share theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlace:
    """A rank's share: the rank-th of ranks equal ones."""

    rank: int
    ranks: int


def place_in_mesh(axes: Mapping[str, int], rank: int) -> DataPlace:
    """The share of a rank in a mesh over all ranks, whose last axis runs fastest.

    axes: name and size of each axis, outermost first.
    """
    place, stride = DataPlace(rank=0, ranks=1), 1
    for name, size in reversed(list(axes.items())):
        if name in DATA_AXES:
            position = rank // stride % size
            place = DataPlace(rank=place.rank + position * place.ranks, ranks=place.ranks * size)
        stride *= size
    return place
