"""Which ranks of a run share a node: the form of placement.json, which an engine writes into the run's folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from collectors.files import open_to_read, replace_file

PLACEMENT = "placement.json"


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a run and its ranks, beginning with first_rank. switch: the switches above it, if the engine knows."""

    number: int
    name: str
    host: str
    switch: str | None
    first_rank: int
    ranks: int


class PlacementFile(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ranks of a run were, in the order of their nodes. has_moved: ranks of earlier trials were elsewhere."""

    engine: str
    nodes: tuple[NodePlace, ...]
    has_moved: bool = False
    schema_version: int = 1

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the machines, in the order of their ranks; a machine may hold several nodes."""
        return tuple(dict.fromkeys(place.host for place in self.nodes))

    def node_of(self, rank: int) -> str | None:
        """Return the name of the node that had the rank in all trials.

        None if there was only one node, or if the rank moved between nodes.
        """
        if len(self.nodes) == 1 or self.has_moved:
            return None
        return next((node.name for node in self.nodes if node.first_rank <= rank < node.first_rank + node.ranks), None)


def write_placement(folder: Path, engine: str, nodes: Sequence[NodePlace]) -> None:
    """Write where the ranks of a run are now, and whether they were elsewhere in earlier trials."""
    before = read_placement(folder)
    has_moved = before is not None and (before.has_moved or before.nodes != tuple(nodes))
    file = PlacementFile(engine=engine, nodes=tuple(nodes), has_moved=has_moved)
    replace_file(folder / PLACEMENT, msgspec.json.format(msgspec.json.encode(file)) + b"\n")


def read_placement(folder: Path) -> PlacementFile | None:
    """Return where the ranks of a run were; None if the file is missing or unreadable."""
    try:
        with open_to_read(folder / PLACEMENT) as file:
            return msgspec.json.decode(file.read(), type=PlacementFile)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def rank_places(folder: Path, most: int) -> Iterator[str]:
    """Yield a line that lists the nodes of a run's ranks, at most `most` of them, if there are several nodes."""
    places = () if (placement := read_placement(folder)) is None else placement.nodes
    if len(places) > 1:
        words = [
            f"{_span(place)} on {place.name}" + (f" (switch {place.switch})" if place.switch else "")
            for place in places[:most]
        ]
        more = f", and more on {len(places)} nodes in all ({PLACEMENT})" if len(places) > most else ""
        yield f"ranks were {', '.join(words)}{more}"


def _span(place: NodePlace) -> str:
    last = place.first_rank + place.ranks - 1
    return str(last) if place.ranks == 1 else f"{place.first_rank}-{last}"
