"""Suites on a real Ray, whose nodes are all this machine: what runs where, what is told of faults, what is left."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED, MISUSE
from tests.slow.clusters.nights import CASES, defaults, wait, words_of
from tests.slow.clusters.ray_cluster import CPUS, GPUS, RayCluster, RayNight, processes_of, run_ray
from tests.slow.test_faults import IN_RANKS

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

SUITE = f"""{defaults(trials=1)}{CASES}
[case.ring_attention]
ranks = 4
"""
SHORT = f"{defaults(trials=1)}[case.ddp]\nranks = 2\n"
LONG = f"{defaults(trials=1)}[case.ddp]\nranks = 4\nsteps = 400\n"
HELD = f'{defaults(trials=1, limit_s=250)}[case.ddp]\nranks = 4\ninject = "hang@2:2"\n'
"""A trial that goes on, however fast the machine is."""
SPY = """#!/bin/sh
[ "$1" = -c ] && exec {python} "$@"
read -r key
echo "$key" >{noted}
exec {python} "$@" <<end
$key
end
"""


def _drills(kinds: list[str]) -> str:
    """Cases with these faults of rank 2."""
    return "".join(
        f'[case.{kind}]\nstrategy = "ddp"\nranks = 4\ntrace_steps = 0\nlimit_s = 10\nseed = {seed}\n'
        f'inject = "{kind}@2:2"\n'
        for seed, kind in enumerate(kinds, start=1)
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Four nodes, three of which have the resource "night"."""
    with run_ray(4) as cluster:
        yield cluster
    assert processes_of(cluster.folder) == []


@pytest.mark.parametrize(("nodes", "faults"), [(2, ["kill", "hang"]), (4, list(IN_RANKS))])
def test_a_suite_goes_on_over_its_faults_to_its_end(
    nodes: int, faults: list[str], cluster: RayCluster, short_path: Path
) -> None:
    night = RayNight(short_path, cluster.address, SUITE + _drills(faults))
    code, cases, messages = night.run(f"--nodes={nodes}", *(["--preflight"] if nodes == 2 else []))
    assert code == CASE_FAILED, messages
    # Ranks that wait for one that hangs may give up just before the trial's limit is over.
    assert {
        name for name, case in cases.items() if case["outcome"] not in ("failed", "timed_out")
    } == cases.keys() - faults
    assert {cases[name]["outcome"] for name in cases.keys() - faults} == {"done"}
    assert len(cases) == 5 + len(faults)
    spread = {name: case["summary"]["case"]["nodes"] for name, case in cases.items()}
    assert spread == {**dict.fromkeys(cases, nodes), "single": 1}
    folder = Path(cases["fsdp"]["summary"]["folder"])
    assert len(list(folder.glob("node*.jsonl"))) == nodes
    assert len(list(folder.glob("trial0/rank*.timeline.npz"))) == 4
    causes = [cases[kind]["summary"]["cause"] for kind in faults]
    assert [(cause["kind"], cause["rank"], cause["step"]) for cause in causes] == [
        (IN_RANKS[k][1], 2, 2) for k in faults
    ]
    assert "ray::" not in messages
    assert "(raylet" not in messages
    assert (cluster.groups(), cluster.actors()) == ([], [])
    night.assert_nothing_is_left()


def test_a_suite_is_planned_by_the_nodes_and_nothing_is_started(cluster: RayCluster, short_path: Path) -> None:
    """On a machine without GPUs, where Ray believes that all nodes but one have some."""
    planned = "schema_version = 1\n[case.everywhere]\nstrategy = 'ddp'\n"
    night = RayNight(short_path, cluster.address, planned)
    done = subprocess.run(
        night.command("--nodes=2", "--dry-run"),
        env=night.environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == FINE, done.stderr
    plan = json.loads(done.stdout)
    resolved = plan["cases"][0]["resolved"]
    assert [resolved[name] for name in ("device", "ranks", "nodes")] == ["cuda", 2 * GPUS, 2]
    assert plan["cluster"]["gpus"] == ["GPU"] * GPUS
    assert plan["cluster"]["cores"] == CPUS
    assert plan["cluster"]["asks"] == "Ray would be asked for 2 nodes with 4 CPU, 2 GPU on each"
    assert not night.runs.exists()
    night.assert_nothing_is_left()


def test_an_agent_s_death_is_told_and_others_go_on_in_the_same_nodes(cluster: RayCluster, short_path: Path) -> None:
    """The interpreter of the nodes is one that notes the key, which is then looked for where it must not be."""
    spy, noted = short_path / "python", short_path / "key"
    spy.write_text(SPY.format(python=sys.executable, noted=noted))
    spy.chmod(0o700)
    night = RayNight(short_path, cluster.address, LONG, f'python = "{spy}"\n')
    process = night.start("--nodes=2")
    wait(lambda: night.measured() > 0, night.messages)
    agents = night.agents()
    visible = [agent.environ().get("CUDA_VISIBLE_DEVICES") for agent in agents]
    assert visible == [",".join(map(str, range(GPUS)))] * 2  # Of those that Ray believes in.
    key = noted.read_text().strip()
    assert len(key) >= 32
    shown = [text for one in night.processes() for text in (*one.cmdline(), *one.environ().values())]
    assert not [text for text in shown if key in text]
    kept = [path for path in Path(cluster.folder).rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if key.encode() in path.read_bytes()]
    agents[1].kill()
    code, cases, messages = night.end(process)
    assert code == FINE, messages
    assert "the agent of node" in messages
    assert cases["ddp"]["summary"]["trials_done"] == 1
    night.assert_nothing_is_left(kept=2)


def test_another_node_takes_the_place_of_a_dead_one(cluster: RayCluster, short_path: Path) -> None:
    night = RayNight(short_path, cluster.address, LONG, "gpus = 0\n[resources]\nnight = 1\n")
    lost, (code, cases, messages) = _run_and_lose_a_node(night, cluster, "--nodes=2")
    assert code == FINE, messages
    assert f"the agent of {lost}" in messages
    assert cases["ddp"]["summary"]["trials_done"] == 1
    night.assert_nothing_is_left(kept=2)


def test_a_dead_node_without_another_ends_the_suite_which_goes_on_later(cluster: RayCluster, short_path: Path) -> None:
    night = RayNight(short_path, cluster.address, LONG, "[resources]\nnight = 1\n")
    lost, (code, _, messages) = _run_and_lose_a_node(night, cluster, "--nodes=3")
    assert code == INFRASTRUCTURE, messages
    assert f"Ray's cluster has 2 nodes with 1 night, 4 CPU, 2 GPU left ({lost} died), but 3 are needed" in messages
    assert "Traceback" not in messages
    code, cases, messages = night.run("--nodes=3", "--resume")
    assert code == FINE, messages
    assert cases["ddp"]["summary"]["trials_done"] == 1
    night.assert_nothing_is_left(kept=3)


def _run_and_lose_a_node(
    night: RayNight, cluster: RayCluster, *words: str
) -> tuple[str, tuple[int, dict[str, Any], str]]:
    """Run the suite, and kill the node of the last agent once all measure; return its name, and how the suite ended."""
    process = night.start(*words)
    wait(lambda: night.measured() > 0, night.messages)
    lost = _nodes_of(night, cluster)[-1]
    cluster.kill(lost)
    try:
        return lost, night.end(process)
    finally:
        cluster.add(lost)


def _nodes_of(night: RayNight, cluster: RayCluster) -> list[str]:
    """The names of the nodes whose raylets are the ancestors of the agents, in the agents' order."""
    raylets = {node.all_processes["raylet"][0].process.pid: name for name, node in cluster.nodes.items()}
    return [
        next(raylets[parent.pid] for parent in agent.parents() if parent.pid in raylets) for agent in night.agents()
    ]


def test_a_suite_waits_for_nodes_that_ctrl_c_gives_back(cluster: RayCluster, short_path: Path) -> None:
    first = RayNight(short_path, cluster.address, HELD)
    (short_path / "second").mkdir()
    second = RayNight(short_path / "second", cluster.address, SHORT)
    (short_path / "third").mkdir()
    third = RayNight(short_path / "third", cluster.address, SHORT)
    running = first.start("--nodes=3")
    wait(lambda: first.measured() > 0, first.messages)
    waiting, given_up = second.start("--nodes=2"), third.start("--nodes=2")
    for night in (second, third):
        wait(lambda night=night: "waiting for 2 nodes with 4 CPU, 2 GPU free on each" in night.messages())  # type: ignore[misc]
    given_up.send_signal(signal.SIGINT)
    assert third.end(given_up)[0] == INTERRUPTED, third.messages()
    running.send_signal(signal.SIGINT)
    code, _, messages = first.end(running)
    assert code == INTERRUPTED, messages
    code, cases, messages = second.end(waiting)
    assert code == FINE, messages
    assert cases["ddp"]["outcome"] == "done"
    assert (cluster.groups(), cluster.actors()) == ([], [])
    for night in (first, second, third):
        night.assert_nothing_is_left()


@pytest.mark.parametrize("is_driver_killed", [False, True])
def test_a_killed_runner_leaves_nothing_and_what_is_missing_is_measured_later(
    is_driver_killed: bool, cluster: RayCluster, short_path: Path
) -> None:
    night = RayNight(short_path, cluster.address, HELD if is_driver_killed else LONG)
    process = night.start("--nodes=2")
    wait(lambda: night.measured() > 0, night.messages)
    (driver,) = night.drivers()
    process.kill()
    process.wait()
    if is_driver_killed:
        driver.kill()
    wait(lambda: not cluster.actors() and not cluster.groups(), lambda: f"{cluster.actors()} {cluster.groups()}")
    night.assert_nothing_is_left(kept=2)
    if not is_driver_killed:
        code, cases, messages = night.run("--nodes=2", "--resume")
        assert code == FINE, messages
        assert cases["ddp"]["summary"]["trials_done"] == 1


def test_a_dead_driver_is_told_and_the_suite_ends_as_interrupted(cluster: RayCluster, short_path: Path) -> None:
    night = RayNight(short_path, cluster.address, HELD)
    process = night.start("--nodes=2")
    wait(lambda: night.measured() > 0, night.messages)
    night.drivers()[0].kill()
    code, _, messages = night.end(process)
    assert code == INFRASTRUCTURE, messages
    assert "the connection to Ray's cluster has ended: its driver ended with code -9" in messages
    night.assert_nothing_is_left(kept=2)
    wait(lambda: not cluster.actors() and not cluster.groups())


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.usefixtures("cluster")
def test_without_a_cluster_one_is_started_that_leaves_nothing(is_killed: bool, short_path: Path) -> None:
    night = RayNight(short_path, None, HELD if is_killed else SHORT)
    process = night.start()
    folders: list[Path] = []  # Of the cluster, as its processes name it.

    def has_begun() -> bool:
        words = [word for one in night.processes() for word in words_of(one) if word.startswith("--temp-dir=")]
        folders.extend(Path(word.partition("=")[2]) for word in words)
        return bool(folders)

    wait(has_begun, night.messages)
    if is_killed:
        wait(lambda: night.measured() > 0, night.messages)
        process.kill()
        process.wait()
        night.assert_nothing_is_left(kept=1)
    else:
        code, cases, messages = night.end(process)
        assert code == FINE, messages
        assert cases["ddp"]["outcome"] == "done"
        night.assert_nothing_is_left()
    assert not [folder for folder in folders if folder.exists()]


WRONG = [
    (["--nodes=9"], "", 2, "--nodes is 9, but Ray's cluster has 4 live nodes; use fewer"),
    (["--nodes=4"], "gpus = 2\n", 2, "has 4 live nodes, and 3 of them have 2 GPU; use fewer"),
    ([], "[resources]\nday = 1\n", 2, "and 0 of them have 1 day; use fewer"),
    ([], "gpu = 1\n", 2, "unknown key 'gpu'; did you mean 'gpus'?"),
    (["--nodes=2"], 'python = "/nowhere"\n', 4, "it ended with code 127"),
    (["--nodes=2"], 'setup = "read line || exit 7"\n', 4, "it ended with code 7"),
    (["--nodes=2"], 'runner = "192.0.2.99"\n', 4, "cannot listen for agents: cannot listen at 192.0.2.99: "),
]


@pytest.mark.parametrize(("words", "settings", "code", "said"), WRONG)
def test_what_cannot_be_is_told_in_one_line(
    words: list[str], settings: str, code: int, said: str, cluster: RayCluster, short_path: Path
) -> None:
    night = RayNight(short_path, cluster.address, SHORT, settings)
    found, _, messages = night.run(*words)
    assert found == code, messages
    assert said in messages.splitlines()[-1] if code == MISUSE else said in messages, messages
    assert "Traceback" not in messages
    night.assert_nothing_is_left()
    assert (cluster.groups(), cluster.actors()) == ([], [])


def test_an_address_without_a_cluster_is_told(cluster: RayCluster, short_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    night = RayNight(short_path, address, SHORT)
    code, _, messages = night.run()
    assert code == INFRASTRUCTURE, messages
    assert f"no Ray cluster answers at {address}: Connection refused" in messages
    assert "Traceback" not in messages
    night.assert_nothing_is_left()


def test_another_version_of_ray_is_told(cluster: RayCluster, short_path: Path) -> None:
    night = RayNight(short_path, cluster.address, SHORT)
    with cluster.of_version("2.9.9"):
        code, _, messages = night.run("--nodes=2")
    assert code == INFRASTRUCTURE, messages
    assert f"Ray at {cluster.address}: Version mismatch: The cluster was started with: Ray: 2.9.9" in messages
    assert "Traceback" not in messages
    night.assert_nothing_is_left()
