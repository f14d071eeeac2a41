"""Which ranks of a run share a node: the form of placement.json, which an engine writes into the run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from collectors.regular_files import read_regular

PLACEMENT = "placement.json"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a run, and its ranks, from the first one on. switch: the switches above it, where the engine knows."""

    number: int
    name: str
    host: str
    switch: str | None
    first_rank: int
    ranks: int


class PlacementFile(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ranks of a run were, in the order of their nodes. has_moved: earlier trials had ranks elsewhere."""

    engine: str
    nodes: tuple[Place, ...]
    has_moved: bool = False
    schema_version: int = 1

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the machines, in the order of their ranks; several nodes may be on one."""
        return tuple(dict.fromkeys(place.host for place in self.nodes))

    def node_of(self, rank: int) -> str | None:
        """Return the name of the node that had the rank in all trials; None where there was but one node, or several
        had it in turn."""
        if len(self.nodes) == 1 or self.has_moved:
            return None
        return next((one.name for one in self.nodes if one.first_rank <= rank < one.first_rank + one.ranks), None)


def write_placement(folder: Path, engine: str, nodes: Sequence[Place]) -> None:
    """Write where the ranks of a run are now, and whether trials before had them elsewhere."""
    before = read_placement(folder)
    has_moved = before is not None and (before.has_moved or before.nodes != tuple(nodes))
    file = PlacementFile(engine=engine, nodes=tuple(nodes), has_moved=has_moved)
    (folder / PLACEMENT).write_bytes(msgspec.json.format(msgspec.json.encode(file)) + b"\n")


def read_placement(folder: Path) -> PlacementFile | None:
    """Return where the ranks of a run were; None where nobody wrote it, or not so that it can be read."""
    try:
        return msgspec.json.decode(read_regular(folder / PLACEMENT), type=PlacementFile)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
