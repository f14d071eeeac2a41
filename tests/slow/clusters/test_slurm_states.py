"""What is read of the states of a real Slurm's nodes, against whether that Slurm gives a job to each of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.engines.slurm.node_list import MEGABYTE, read_nodes
from bench.engines.slurm.nodes import GpuWords, capacity_of_job, capacity_of_partition
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
    found = capacity_of_partition("night", nodes=1, constraint=None, gpus=GpuWords(), is_exclusive=True, asks="")
    assert (found.cores, found.memory_bytes, found.implausible) == (CPUS, MEMORY_MB * MEGABYTE, {})
    assert any("node1 is IDLE+DRAIN (two lines State=IDLE)" in note for note in found.notes)


def test_a_job_has_what_slurm_gave_it_on_a_node(slurm: Slurm) -> None:
    """Slurm before 24.05 counts no CPUs in JSON: then the text is read."""
    words = ("salloc", "--no-shell", "--nodes=1", "--nodelist=node7", "--cpus-per-task=1", "--comment=NumNodes=9 Mem=1")
    said = subprocess.run(words, env=slurm.environment, capture_output=True, text=True, timeout=60, check=True).stderr
    job = re.search(r"Granted job allocation (\d+)", said)
    assert job is not None, said
    try:
        found = capacity_of_job(job[1], nodes=1, asks="")
        described = slurm.call("scontrol", "--details", "--oneliner", "show", "job", job[1])
    finally:
        slurm.call("scancel", job[1])
    (given,) = re.findall(r" CPU_IDs=(\S+) Mem=(\d+) ", described)
    first, _, last = given[0].partition("-")
    assert (found.cores, found.implausible) == (int(last or first) - int(first) + 1, {})
    assert found.memory_bytes == (int(given[1]) or MEMORY_MB) * MEGABYTE


def test_the_nodes_of_a_job_are_read_by_as_many_calls_as_one_node_is(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with another share of each node has a part for each, which Slurm describes on its own."""
    calls = tmp_path / "calls"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$*" >>{calls}\nexec {shutil.which("scontrol")} "$@"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    calls_by_nodes = []
    for words in (("--nodelist=node7", "--ntasks=1"), ("--nodelist=node0,node7", "--ntasks=3", "--distribution=block")):
        salloc = ("salloc", "--no-shell", f"--nodes={len(words[0].split(','))}", *words)
        said = subprocess.run(salloc, env=slurm.environment, capture_output=True, text=True, timeout=60, check=True)
        job = re.search(r"Granted job allocation (\d+)", said.stderr)
        assert job is not None, said.stderr
        calls.unlink(missing_ok=True)
        try:
            found = capacity_of_job(job[1], nodes=1, asks="")
            calls_by_nodes.append(calls.read_text().splitlines())
            described = slurm.call("scontrol", "--details", "--oneliner", "show", "job", job[1])
        finally:
            slurm.call("scancel", job[1])
        assert (found.cores, found.implausible) == (1, {})
    assert len(re.findall(r" CPU_IDs=", described)) == 2
    assert len(calls_by_nodes[0]) == len(calls_by_nodes[1])
