"""What is read of the states of a real Slurm's nodes, against whether that Slurm gives a job to each of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from bench.engines.slurm.node_list import MEGABYTE, read_nodes
from bench.engines.slurm.nodes import capacity_of_partition
from tests.slow.clusters.nights import wait
from tests.slow.clusters.slurm import CPUS, MEMORY_MB, Slurm, run_slurm

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(300)]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """Eight nodes in as many states."""
    with run_slurm(8) as slurm:
        monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
        update = ("scontrol", "update")
        slurm.call(*update, "nodename=node0", "comment=hello State=DOWN Partitions=none")
        slurm.call(*update, "nodename=node0", "extra=x\nNodeName=node1 State=DOWN")
        slurm.call(*update, "nodename=node1", "state=drain", "reason=two\nlines State=IDLE")
        slurm.call(*update, "nodename=node2", "state=down", "reason=the power is gone")
        slurm.call(*update, "nodename=node3", "state=fail", "reason=bad fan")
        reservation = ("scontrol", "create", "reservation", "starttime=now", "duration=10", "user=nobody")
        slurm.call(*reservation, "nodes=node4", "flags=maint,ignore_jobs", "reservationname=m")
        slurm.call(*reservation, "nodes=node5", "flags=ignore_jobs", "reservationname=r")
        slurm.call(*update, "nodename=node6", "state=future")
        states = ("sinfo", "--noheader", "--Node", "--partition=night", "--format=%N=%T")
        wait(lambda: {"node4=maint", "node5=reserved"} <= set(slurm.call(*states).split()), lambda: slurm.call(*states))
        yield slurm


def _gets_job(slurm: Slurm, node: str) -> bool:
    """Whether Slurm gives a job to the node at once."""
    words = ["srun", "--immediate=3", "--quiet", f"--nodelist={node}", "true"]
    return subprocess.run(words, env=slurm.environment, capture_output=True, timeout=60).returncode == 0


def test_a_node_is_available_where_slurm_gives_it_a_job(slurm: Slurm) -> None:
    nodes = {node.name: node for node in read_nodes()}
    assert {name for name, node in nodes.items() if node.gets_jobs} == {"node0", "node7"}
    for name in slurm.nodes:
        assert (name in nodes and nodes[name].gets_jobs) == _gets_job(slurm, name), nodes.get(name)
    assert {name for name, node in nodes.items() if node.why_gone} >= {"node2", "node3"}
    assert (nodes["node0"].partitions, nodes["node1"].reason) == (("night", "urgent"), "two lines State=IDLE")
    found = capacity_of_partition("night", nodes=1, constraint=None, gres=None, is_exclusive=True, asks="")
    assert (found.cores, found.memory_bytes, found.implausible) == (CPUS, MEMORY_MB * MEGABYTE, {})
    assert any("node1 is IDLE+DRAIN (two lines State=IDLE)" in note for note in found.notes)
