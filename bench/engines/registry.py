"""The registry of engines, and the protocols that they implement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from bench.case import Case
from bench.engines.cluster import Capacity, NodeRequest
from bench.engines.kubernetes.engine import PodAllocation
from bench.engines.local import LocalAllocation
from bench.engines.ray.engine import RayAllocation
from bench.engines.ray.engine import read_capacity as read_capacity_of_ray
from bench.engines.slurm.allocation import SlurmAllocation
from bench.engines.slurm.allocation import read_capacity as read_capacity_of_slurm
from bench.engines.wire.trees import RankTree
from bench.machine.machine import Machine
from bench.rank.messages import TrialEnded, TrialOrder, TrialProgress


class Engine(Protocol):
    """Starts agents and passes orders to them. Use it in a `with`: at its end none of its processes is left.

    collect: copies a run's files from the nodes into its folder after its trials; returns a line for each file that did
    not arrive completely.
    """

    name: str

    def __enter__(self) -> Engine: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def machine(self) -> Machine: ...
    def stop(self) -> None: ...
    def run(self, order: TrialOrder, progress: Callable[[TrialProgress], None]) -> TrialEnded: ...
    def collect(self, run: str) -> tuple[str, ...]: ...


class Allocation(Protocol):
    """The nodes on which engines are opened, one after another. Use it in a `with`: at its end it is released.

    open: opens an engine with this folder of runs and without the dropped nodes; raises InfrastructureFailed if
    the other nodes are no longer available. open_trees: opens an engine for each source tree, in order, all on the same
    nodes; each engine's agents and ranks run from its tree.
    """

    def __enter__(self) -> Allocation: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def open(self, runs: Path, dropped: Collection[str] = ()) -> Engine: ...
    def open_trees(self, runs: Path, trees: Sequence[RankTree], dropped: Collection[str] = ()) -> Sequence[Engine]: ...


ENGINES: dict[str, Callable[[NodeRequest], Allocation]] = {
    "local": LocalAllocation,
    "ray": RayAllocation,
    "slurm": SlurmAllocation,
    "kubernetes": PodAllocation,
}
"""The allocation of each engine, by the engine's name."""
CAPACITIES: dict[str, Callable[[NodeRequest], Capacity | None]] = {
    "ray": read_capacity_of_ray,
    "slurm": read_capacity_of_slurm,
}
"""Functions that report an engine's nodes before allocation. If they return None, or for other engines, cases are
planned for this machine."""


def nodes_to_ask(engine: str, nodes: int, cases: Iterable[Case]) -> int:
    """Return the number of nodes to request: from a cluster, no more than the largest case uses."""
    return max((case.nodes for case in cases), default=nodes) if engine in CAPACITIES else nodes
