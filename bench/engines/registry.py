"""The registry of engines, one line each, and what all have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import Protocol

from bench.case import Case
from bench.engines.cluster import Capacity, Request
from bench.engines.kubernetes.engine import PodAllocation
from bench.engines.local import LocalAllocation
from bench.engines.ray.engine import RayAllocation
from bench.engines.ray.engine import read_capacity as read_capacity_of_ray
from bench.engines.slurm.allocation import SlurmAllocation
from bench.engines.slurm.allocation import read_capacity as read_capacity_of_slurm
from bench.machine.machine import Machine
from bench.rank.messages import Progress, TrialEnded, TrialOrder


class Engine(Protocol):
    """Starts agents and passes orders to them. Use it in a `with`: at its end none of its processes is left.

    collect: brings what nodes have of a run into its folder, when its trials are over; returns a line on each file
    that did not come whole.
    """

    name: str

    def __enter__(self) -> Engine: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def machine(self) -> Machine: ...
    def stop(self) -> None: ...
    def run(self, order: TrialOrder, progress: Callable[[Progress], None]) -> TrialEnded: ...
    def collect(self, run: str) -> tuple[str, ...]: ...


class Allocation(Protocol):
    """The nodes on which engines are opened, one after another. Use it in a `with`: at its end it is given back.

    open: opens an engine, with the folder of runs, and without the nodes of these names; raises InfrastructureFailed
    where the others are no longer there.
    """

    def __enter__(self) -> Allocation: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def open(self, runs: Path, dropped: Collection[str] = ()) -> Engine: ...


ENGINES: dict[str, Callable[[Request], Allocation]] = {
    "local": LocalAllocation,
    "ray": RayAllocation,
    "slurm": SlurmAllocation,
    "kubernetes": PodAllocation,
}
"""What engines run on, by the engine's name."""
CAPACITIES: dict[str, Callable[[Request], Capacity | None]] = {
    "ray": read_capacity_of_ray,
    "slurm": read_capacity_of_slurm,
}
"""What tells of an engine's nodes before they are ours; None, as for other engines, where this machine is all of them,
or nobody tells: cases are then planned by this machine."""


def nodes_to_ask(engine: str, nodes: int, cases: Iterable[Case]) -> int:
    """Return how many nodes are asked for: of a cluster no more than one of the cases uses."""
    return max((case.nodes for case in cases), default=nodes) if engine in CAPACITIES else nodes
