"""Messages between the runner and its Ray driver, one JSON line each, and the resources that they request.

The driver is a separate process because Ray takes over its process's signals, streams and threads, and ends it when the
cluster is gone. Does not know the package ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from bench.errors import Misuse, plural


class Connect(msgspec.Struct, frozen=True, kw_only=True, tag="connect"):
    """Connect to a cluster, or start one on this machine. Answered by `Connected`.

    address: the cluster's; None to start a cluster. folder: for the files of a cluster that is started.
    """

    address: str | None
    folder: str | None


class ListNodes(msgspec.Struct, frozen=True, kw_only=True, tag="list"):
    """List the nodes that are alive. Answered by `Listed`."""


class Reserve(msgspec.Struct, frozen=True, kw_only=True, tag="reserve"):
    """Reserve nodes, and wait until they are free; when repeated, wait for replacements of nodes that died.

    Answered by `Reserved`, possibly after a `WaitNotice`. cpus, gpus: per node; None for all of them. resources: per
    node, by Ray's names.
    """

    nodes: int
    cpus: float | None
    gpus: int | None
    resources: dict[str, float]


class StartAgents(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Start an agent on each reserved node. Answered by `Done`.

    words: an agent's command line, to which `--node` and the node's number are added. key: the first line of the
    agent's input. environment: the agents' variables, in addition to those of Ray's workers.
    """

    words: tuple[str, ...]
    key: bytes
    environment: dict[str, str]


class AskAgents(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Ask whether agents have ended. Answered by `Done` while all live, else by `Failed`."""


class StopAgents(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Wait for the agents to end, kill those that do not, then end the actors. Answered by `Done`."""


class Connected(msgspec.Struct, frozen=True, kw_only=True, tag="connected"):
    """The driver is connected. address: this machine's, as the cluster's nodes reach it."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node that is alive. resources: all that it has, by Ray's names, including what is in use.

    implausible: impossible values that Ray reports for the node, by resource; they are not in the resources.
    """

    id: str
    name: str
    resources: Mapping[str, float]
    implausible: Mapping[str, str] = field(default_factory=dict)


class Listed(msgspec.Struct, frozen=True, kw_only=True, tag="listed"):
    """The nodes of the cluster."""

    nodes: tuple[RayNode, ...]


class Reserved(msgspec.Struct, frozen=True, kw_only=True, tag="reserved"):
    """The nodes are reserved. names: in the order of their numbers."""

    names: tuple[str, ...]


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The order was carried out."""


class WaitNotice(msgspec.Struct, frozen=True, kw_only=True, tag="told"):
    """A notice about a wait; an answer follows."""

    text: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The order failed. is_misuse: whether the request was invalid."""

    text: str
    is_misuse: bool = False


RayOrder = Connect | ListNodes | Reserve | StartAgents | AskAgents | StopAgents
RayAnswer = Connected | Listed | Reserved | Done | WaitNotice | Failed


def alive_nodes(listed: Sequence[Mapping[str, object]]) -> tuple[RayNode, ...]:
    """Return the live nodes among those that `ray.nodes()` lists, with unique names.

    A node's name is Ray's own, or the host's if Ray's is only an address. If several nodes share a name, as nodes on
    one machine may, the beginning of the node's ID is added.
    """
    alive = [node for node in listed if node["Alive"]]
    names = [
        str(node["NodeManagerHostname"] if node["NodeName"] in ("", node["NodeManagerAddress"]) else node["NodeName"])
        for node in alive
    ]
    return tuple(
        _node(node, name if names.count(name) == 1 else f"{name} ({str(node['NodeID'])[:8]})")
        for node, name in zip(alive, names, strict=True)
    )


def _node(node: Mapping[str, object], name: str) -> RayNode:
    resources: dict[str, float] = {}
    implausible: dict[str, str] = {}
    for resource, value in msgspec.convert(node["Resources"], dict[str, object]).items():
        least, most = plausible(resource)
        if isinstance(value, int | float) and least <= value <= most:  # False for NaN.
            resources[resource] = float(value)
        else:
            implausible[resource] = str(value)
    return RayNode(id=str(node["NodeID"]), name=name, resources=resources, implausible=implausible)


_RANGES = {"CPU": (0, 65533), "GPU": (0, 1024), "memory": (0, 1 << 50), "object_store_memory": (0, 1 << 50)}
"""Plausible values of a node's resources, as for Slurm; memory in bytes."""


def plausible(resource: str) -> tuple[int, int]:
    """Return the least and the most that a node can have of a resource, by Ray's name; a custom one can have any."""
    return _RANGES.get(resource, (0, 1 << 53))


def bundle(order: Reserve, nodes: Sequence[RayNode]) -> dict[str, float]:
    """Return what is reserved on each node, by Ray's names.

    If the order leaves CPUs or GPUs open, the bundle has as many as each of the largest nodes has, by GPUs and then by
    CPUs: with nothing else on these nodes, measurements are not disturbed.

    Example: on nodes with 8, 8 and 0 GPUs, a bundle for two nodes has 8 GPUs, and a bundle for three nodes has none.

    Raises:
        Misuse: fewer nodes have what the order requests, or it requests nothing.
    """
    requested = {**order.resources, "CPU": order.cpus, "GPU": order.gpus}
    reserved = {name: float(value) for name, value in requested.items() if value}
    able = [node for node in nodes if has(node, reserved)]
    if len(able) < order.nodes:
        among = (
            f", and {len(able)} of them {'has' if len(able) == 1 else 'have'} {in_words(reserved)}" if reserved else ""
        )
        raise Misuse(
            f"--nodes is {order.nodes}, but Ray's cluster has {plural(len(nodes), 'live node')}{among}; use fewer"
        )
    able.sort(key=lambda node: (node.resources.get("GPU", 0.0), node.resources.get("CPU", 0.0)), reverse=True)
    for name, value in (("CPU", order.cpus), ("GPU", order.gpus)):
        if value is None:
            reserved[name] = min(node.resources.get(name, 0.0) for node in able[: order.nodes])
    reserved = {name: value for name, value in reserved.items() if value > 0}
    if not reserved:
        raise Misuse(
            f"nothing would be reserved on {plural(order.nodes, 'node')}, because Ray has no CPUs and GPUs there or the"
            " engine's file requests none; set cpus = 1 in that file"
        )
    return reserved


def has(node: RayNode, resources: Mapping[str, float]) -> bool:
    """Return whether the node has these resources, in use or not."""
    return all(node.resources.get(name, 0.0) >= value for name, value in resources.items())


def in_words(resources: Mapping[str, float]) -> str:
    """Return the resources in words, for example "8 CPU, 2 GPU"."""
    return ", ".join(f"{value:g} {name}" for name, value in resources.items())
