"""The check of nodes before a suite: reports bad nodes, and leaves them out on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from bench.doctor.fleet import Fleet, NodeFinding, lines_of
from bench.doctor.fleet_check import check_fleet
from bench.engines.cluster import ClusterEngine
from bench.engines.registry import Allocation, Engine
from bench.errors import InfrastructureFailed
from bench.machine.machine import Machine


class Preflight:
    """Opens the engines of a suite, without the nodes that its check dropped. Use it in a `with`.

    runs: the folder of runs. ranks_per_node: see `check_fleet`. tell: called with progress and findings.
    """

    def __init__(
        self, allocation: Allocation, runs: Path, *, ranks_per_node: int | None, tell: Callable[[str], None]
    ) -> None:
        self._allocation, self._runs, self._ranks_per_node, self._tell = allocation, runs, ranks_per_node, tell
        self._checked: ClusterEngine | None = None  # Until the suite takes it.
        self._dropped: frozenset[str] = frozenset()

    def __enter__(self) -> Preflight:
        return self

    def __exit__(self, *error: object) -> None:
        if self._checked is not None:
            self._checked.stop()

    def check(self, before: Mapping[str, Machine], *, is_dropping: bool) -> Fleet | None:
        """Check the nodes; return the result, None if the engine has no agents on nodes.

        before: the machine of each host at its last good check. is_dropping: leave out nodes that are bad, or whose
        agents do not connect.

        Raises:
            InfrastructureFailed: an agent is gone; or a node has a fatal finding and is not to be left out; or all
            nodes are bad.
        """
        engine = self._allocation.open(self._runs)
        if not isinstance(engine, ClusterEngine):
            engine.stop()
            return None
        self._checked = engine
        missing = engine.drop_missing() if is_dropping else {}
        fleet = check_fleet(engine, ranks_per_node=self._ranks_per_node, before=before, tell=self._tell)
        absent = [
            NodeFinding(node=None, text=f"{name} is bad: {reason}", is_fatal=True) for name, reason in missing.items()
        ]
        fleet = replace(fleet, findings=(*fleet.findings, *absent))
        for line in lines_of(fleet):
            self._tell(f"pre-flight: {line}")
        fatal = [finding for finding in fleet.findings if finding.is_fatal]
        if is_dropping:
            names = [*missing, *(fleet.name(number) for number in fleet.bad)]
            if len(fleet.bad) == len(fleet.nodes):
                raise InfrastructureFailed("pre-flight: every node is bad; none is left to measure on")
            self._dropped = frozenset(names)
            engine.drop(self._dropped)
            if names:
                self._tell(f"pre-flight: continuing without {', '.join(names)}")
        elif fatal:
            bad = ", ".join(dict.fromkeys(fleet.name(finding.node) for finding in fatal if finding.node is not None))
            raise InfrastructureFailed(
                f"pre-flight: {bad}: no measurement is possible with these nodes; repair them, or leave them out with"
                " --drop-bad"
            )
        return fleet

    @property
    def dropped(self) -> int:
        """The number of nodes that are left out."""
        return len(self._dropped)

    def open(self) -> Engine:
        """Return the checked engine on the first call; afterwards a new engine on the same nodes.

        Raises:
            InfrastructureFailed: the nodes are no longer available.
        """
        engine: Engine | None = self._checked
        self._checked = None
        return engine or self._allocation.open(self._runs, self._dropped)
