"""The check of nodes before a suite: reports bad nodes, and leaves them out on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bench.engines.cluster import ClusterEngine
from bench.errors import InfrastructureFailed
from bench.machine.doctor.fleet import Fleet, NodeFinding, lines_of
from bench.machine.doctor.fleet_check import check_fleet
from bench.machine.machine import Machine
from bench.session.session import Session


def check_nodes(
    session: Session, before: Mapping[str, Machine], *, ranks_per_node: int | None, is_dropping: bool
) -> Fleet | None:
    """Check the nodes of the session's engine; return the result, None if the engine has no agents on nodes.

    The checked engine stays open for the first block, and no engine of the session uses the nodes that are left out.

    before: the machine of each host at its last good check. ranks_per_node: see `check_fleet`.
    is_dropping: leave out nodes that are bad, or whose agents do not connect.

    Raises:
        InfrastructureFailed: an agent is gone; or a node has a fatal finding and is not left out; or all nodes are bad.
    """
    engine = session.engine()
    if not isinstance(engine, ClusterEngine):
        return None
    missing = engine.drop_missing() if is_dropping else {}
    fleet = check_fleet(engine, ranks_per_node=ranks_per_node, before=before, tell=session.tell)
    absent = [
        NodeFinding(node=None, text=f"{name} is bad: {reason}", is_fatal=True) for name, reason in missing.items()
    ]
    fleet = replace(fleet, findings=(*fleet.findings, *absent))
    for line in lines_of(fleet):
        session.tell(f"pre-flight: {line}")
    fatal = [finding for finding in fleet.findings if finding.is_fatal]
    if is_dropping:
        names = [*missing, *(fleet.name(number) for number in fleet.bad)]
        if len(fleet.bad) == len(fleet.nodes):
            raise InfrastructureFailed(
                f"pre-flight: all nodes are bad ({', '.join(names)}); none is left to measure on"
            )
        session.dropped = frozenset(names)
        engine.drop(session.dropped)
        if names:
            session.tell(f"pre-flight: continuing without {', '.join(names)}")
    elif fatal:
        bad = ", ".join(dict.fromkeys(fleet.name(finding.node) for finding in fatal if finding.node is not None))
        raise InfrastructureFailed(
            f"pre-flight: {bad}: no measurement is possible with these nodes; repair them, or leave them out with"
            " --drop-bad"
        )
    return fleet
