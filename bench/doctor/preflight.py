"""The check of nodes before a suite: who is bad is told, and left out where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from bench.doctor.fleet import Finding, Fleet, lines_of
from bench.doctor.fleet_check import check_fleet
from bench.engines.cluster import ClusterEngine
from bench.engines.registry import Allocation, Engine
from bench.errors import InfrastructureFailed
from bench.machine.machine import Machine


class Preflight:
    """Opens the engines of a suite, without the nodes that its check found to be bad. Use it in a `with`.

    runs: the folder of runs. ranks_per_node: see `check_fleet`. tell: is told what is done and found.
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
        """Check the nodes; return what was found, None where the engine has no agents on nodes.

        before: the machine of each host at its last good check. is_dropping: leave out nodes that are bad, or whose
        agents do not come.

        Raises:
            InfrastructureFailed: an agent is gone; or a node is bad, nothing can be measured with it, and it is not to
            be left out; or all are bad.
        """
        engine = self._allocation.open(self._runs)
        if not isinstance(engine, ClusterEngine):
            engine.stop()
            return None
        self._checked = engine
        missing = engine.drop_missing() if is_dropping else {}
        fleet = check_fleet(engine, ranks_per_node=self._ranks_per_node, before=before, tell=self._tell)
        absent = [
            Finding(node=None, text=f"{name} is bad: {reason}", is_fatal=True) for name, reason in missing.items()
        ]
        fleet = replace(fleet, findings=(*fleet.findings, *absent))
        for line in lines_of(fleet):
            self._tell(f"pre-flight: {line}")
        fatal = [found for found in fleet.findings if found.is_fatal]
        if is_dropping:
            names = [*missing, *(fleet.name(number) for number in fleet.bad)]
            if len(fleet.bad) == len(fleet.nodes):
                raise InfrastructureFailed(f"pre-flight: all {len(names)} node(s) are bad, and none is left")
            self._dropped = frozenset(names)
            engine.drop(self._dropped)
            if names:
                self._tell(f"pre-flight: goes on without {', '.join(names)}")
        elif fatal:
            bad = ", ".join(dict.fromkeys(fleet.name(found.node) for found in fatal if found.node is not None))
            raise InfrastructureFailed(
                f"pre-flight: {bad}: nothing can be measured with such nodes; mend them, or leave them out with"
                " --drop-bad"
            )
        return fleet

    @property
    def dropped(self) -> int:
        """How many nodes are left out."""
        return len(self._dropped)

    def open(self) -> Engine:
        """Return the engine that was checked, when it is first asked for; then a new one of the same nodes.

        Raises:
            InfrastructureFailed: the nodes are no longer there.
        """
        engine: Engine | None = self._checked
        self._checked = None
        return engine or self._allocation.open(self._runs, self._dropped)
