"""The engine of Ray where no Ray is needed: its settings, what is reserved on which nodes, and what is refused."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import msgspec
import pytest

from bench.engines.cluster import Meeting, NodeRequest
from bench.engines.ray.driver import NodeActor
from bench.engines.ray.engine import RayAllocation, RayPlacement, RaySettings, capacity_of, cluster_address
from bench.engines.ray.orders import (
    Connect,
    Done,
    Listed,
    RayAnswer,
    RayNode,
    RayOrder,
    Reserve,
    StartAgents,
    alive_nodes,
    bundle,
)
from bench.engines.registry import CAPACITIES
from bench.engines.settings_file import read_settings
from bench.errors import InfrastructureFailed, Misuse
from bench.session.case_args import read_node


def _node(name: str, **resources: float) -> RayNode:
    return RayNode(id=name, name=name, resources=resources)


HEAD, SMALL = _node("head", CPU=4), _node("small", CPU=8, GPU=2, ssd=1)
LARGE, LAST = _node("large", CPU=64, GPU=8, ssd=1), _node("last", CPU=16, GPU=8)
CLUSTER = (HEAD, SMALL, LARGE, LAST)


def _order(nodes: int, *, cpus: float | None = None, gpus: int | None = None, **resources: float) -> Reserve:
    return Reserve(nodes=nodes, cpus=cpus, gpus=gpus, resources=resources)


@pytest.mark.parametrize(
    ("order", "reserved"),
    [
        (_order(1), {"CPU": 64, "GPU": 8}),
        (_order(2), {"CPU": 16, "GPU": 8}),
        (_order(3), {"CPU": 8, "GPU": 2}),
        (_order(4), {"CPU": 4}),
        (_order(2, ssd=1), {"ssd": 1, "CPU": 8, "GPU": 2}),
        (_order(2, cpus=10), {"CPU": 10, "GPU": 8}),
        (_order(2, cpus=0.5, gpus=0), {"CPU": 0.5}),
        (_order(1, cpus=0, gpus=0, ssd=1), {"ssd": 1}),
    ],
)
def test_all_that_so_many_nodes_have_is_reserved_unless_it_is_said(order: Reserve, reserved: dict[str, float]) -> None:
    assert bundle(order, CLUSTER) == reserved


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (_order(5), "--nodes is 5, but Ray's cluster has 4 live nodes; use fewer"),
        (_order(3, gpus=4), "--nodes is 3, but Ray's cluster has 4 live nodes, and 2 of them have 4 GPU; use"),
        (_order(2, cpus=32, ssd=1), "and 1 of them has 1 ssd, 32 CPU; use fewer"),
        (_order(1, cpus=0, gpus=0), "nothing would be reserved on 1 node"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(order: Reserve, said: str) -> None:
    with pytest.raises(Misuse) as refused:
        bundle(order, CLUSTER)
    assert said in str(refused.value)


def _gpu_node(name: str, kind: str, **resources: float) -> RayNode:
    return RayNode(id=name, name=name, resources={**resources, f"accelerator_type:{kind}": 1.0})


A100, H100 = _gpu_node("a", "A100", CPU=64, GPU=8), _gpu_node("h", "H100", CPU=96, GPU=8)


@pytest.mark.parametrize(
    ("order", "nodes", "cores", "gpus"),
    [
        (_order(2), CLUSTER, 16, ("GPU",) * 8),
        (_order(4), CLUSTER, 4, ()),
        (_order(2, cpus=1, gpus=2), CLUSTER, 8, ("GPU", "GPU")),
        (_order(1, gpus=0), CLUSTER, 64, ()),
        (_order(1), (A100, HEAD), 64, ("A100",) * 8),
        (_order(1, cpus=8, gpus=1), (A100, H100), 64, ("GPU",)),
        (_order(1, cpus=0, gpus=0, ssd=1), (_node("head", ssd=1),), None, ()),
    ],
)
def test_cases_are_planned_by_the_least_of_the_nodes_that_ray_may_give(
    order: Reserve, nodes: tuple[RayNode, ...], cores: int | None, gpus: tuple[str, ...]
) -> None:
    """Of cores all that a node has, which reserve nothing from ranks; of GPUs those that are reserved."""
    found = capacity_of(order, nodes)
    assert (found.cores, found.gpus, found.memory_bytes) == (cores, gpus, None)
    assert found.whose == "a node of Ray's cluster"


def test_what_ray_would_be_asked_for_is_told_and_what_it_has_not_is_refused_before() -> None:
    assert capacity_of(_order(2), CLUSTER).asks == "Ray would be asked for 2 nodes with 16 CPU, 8 GPU on each"
    with pytest.raises(Misuse, match=r"--nodes is 5, but Ray's cluster has 4 live nodes; use fewer"):
        capacity_of(_order(5), CLUSTER)


def test_a_ray_that_would_be_started_here_is_planned_by_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert CAPACITIES["ray"](NodeRequest()) is None
    assert read_node(engine="ray").cluster is None


def test_nodes_come_from_the_driver_as_it_lists_them() -> None:
    listed = Listed(nodes=(A100, HEAD))
    assert msgspec.json.decode(msgspec.json.encode(listed), type=RayAnswer) == listed


def test_nodes_that_are_alive_have_names_that_differ() -> None:
    def listed(number: str, name: str, *, is_alive: bool = True) -> dict[str, object]:
        here = {"NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "host", "Resources": {"CPU": 2.0}}
        return {"NodeID": number * 12, "NodeName": name, "Alive": is_alive, **here}

    nodes = alive_nodes(
        [listed("a", "one"), listed("b", "two", is_alive=False), listed("c", "10.0.0.1"), listed("d", "")]
    )
    assert [node.name for node in nodes] == ["one", "host (cccccccc)", "host (dddddddd)"]


@pytest.mark.parametrize(
    ("resource", "value"),
    [("CPU", 2.0**32 - 1), ("CPU", -1.0), ("GPU", 1025.0), ("memory", 1e300), ("GPU", math.nan), ("ssd", math.inf)],
)
def test_what_ray_says_that_cannot_be_is_left_out_counted_and_said_once(resource: str, value: float) -> None:
    here = {"NodeName": "", "NodeManagerAddress": "10.0.0.1", "Alive": True}
    listed = [
        {"NodeID": name, "NodeManagerHostname": name, "Resources": {"CPU": 4.0, "GPU": 1.0, resource: value}, **here}
        for name in ("a", "b")
    ]
    nodes = alive_nodes(listed)
    assert all(resource not in node.resources for node in nodes)
    found = capacity_of(_order(1), nodes)
    assert (found.source, found.implausible) == ("ray", {resource: 2})
    (note,) = found.notes
    assert note.startswith(f"Ray: {resource} {value} of node a (plausible: 0 to ")
    assert note.endswith(f") is left out, and 1 more of {resource}")


@pytest.mark.parametrize(
    ("given", "variable", "address"),
    [
        (None, None, None),
        (None, "10.0.0.1:6379", "10.0.0.1:6379"),
        ("node0:6379", "10.0.0.1:6379", "node0:6379"),
        ("auto", None, "auto"),
        ("local", "10.0.0.1:6379", None),
    ],
)
def test_the_cluster_is_the_file_s_or_the_user_s_or_one_that_is_started(
    given: str | None, variable: str | None, address: str | None
) -> None:
    user = {} if variable is None else {"RAY_ADDRESS": variable}
    assert cluster_address(RaySettings(address=given), user) == address


@pytest.mark.parametrize("address", ["ray://node0:10001", "http://127.0.0.1:8265", "node0", "node0:port", ":1", "a:0"])
def test_an_address_of_another_kind_is_refused(address: str) -> None:
    with pytest.raises(Misuse, match="use the address of the cluster itself"):
        cluster_address(RaySettings(), {"RAY_ADDRESS": address})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu = 2", "unknown key 'gpu'; did you mean 'gpus'?"),
        ("gpus = -1", "gpus is -1; it may be a whole number of at least 0"),
        ("gpus = 0.5", "gpus is 0.5; it may be a whole number"),
        ('cpus = "8"', 'cpus is "8"; it may be a number of at least 0'),
        ("[resources]\nnight = -1", "resources.night is -1; it may be a number of at least 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "ray.toml").write_text(text)
    with pytest.raises(Misuse) as refused:
        read_settings(tmp_path / "ray.toml", RaySettings)
    assert said in str(refused.value)


def test_a_cluster_that_would_be_started_here_is_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(Misuse, match="--nodes is 2, but without a cluster's address Ray starts on this machine"):
        RayAllocation(NodeRequest(nodes=2))


def test_without_the_package_it_is_said_how_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # As where it is not installed.
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with (
        pytest.raises(
            InfrastructureFailed, match=r"needs the package ray, .*pip install 'parallel-observatory\[ray\]'"
        ),
        RayAllocation(NodeRequest()),
    ):
        pass


def test_orders_come_to_the_driver_as_they_are_given() -> None:
    start = StartAgents(words=("sh",), key=b"\x00\xffkey\n", environment={"A": "b"})
    for order in (Connect(address=None, folder="/tmp/ray"), _order(2, night=1), start):
        assert msgspec.json.decode(msgspec.json.encode(order), type=RayOrder) == order


def test_an_actor_s_agent_gets_the_key_and_nothing_of_ray_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RAY_JOB_ID": "1", "OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "2,3"}.items():
        monkeypatch.setenv(name, value)
    actor = NodeActor()
    assert actor.ended() is None
    program = (
        "import os, sys\n"
        "names = [name for name in os.environ if name.startswith(('RAY_', 'OMP_'))]\n"
        "print(sys.stdin.readline(), names, os.environ['CUDA_VISIBLE_DEVICES'], os.environ['OURS'])\n"
        "sys.exit(3)"
    )
    actor.start([sys.executable, "-c", program], b"secret", {"OURS": "1"})
    assert actor.stop(60) == "it ended with code 3; its last line: secret [] 2,3 1"


class FakeDriver:
    """Keeps the order to start agents."""

    def __init__(self) -> None:
        self.orders: list[StartAgents] = []

    def ask(self, order: StartAgents, kind: type[Done], within_s: float) -> Done:
        self.orders.append(order)
        return kind()


class FakeAllocation:
    """What a placement asks of an allocation."""

    runner, exporter = "127.0.0.1", ()

    def __init__(self, settings: RaySettings) -> None:
        self.settings, self.driver = settings, FakeDriver()


def test_a_setup_that_fails_is_told_with_what_it_printed(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("the key")
    allocation = FakeAllocation(RaySettings(setup="echo no such module\n(exit 3)\n"))
    placement = RayPlacement(allocation, ("n0",))  # type: ignore[arg-type]
    placement.start(Meeting(host="h", port=1, key_file=tmp_path / "key"))
    (order,) = allocation.driver.orders
    actor = NodeActor()
    actor.start([*order.words, "--node", "0"], order.key, order.environment)
    assert actor.stop(60) == "it ended with code 1; its last line: setup failed with code 3: no such module"


def test_an_actor_ends_an_agent_that_does_not_end_by_itself() -> None:
    actor = NodeActor()
    actor.start([sys.executable, "-c", "import time\ntime.sleep(1000)"], b"", {})
    assert actor.stop(0.0) == "it ended with code -9"
