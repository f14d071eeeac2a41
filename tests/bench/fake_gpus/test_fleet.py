"""Nodes of fake GPUs, each read by a process of its own, are held against each other: the odd driver is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.engines.agent_link import NodeCheck
from bench.machine.doctor.fleet import Fleet, FleetNode, NodeFinding, judge
from bench.machine.machine import Machine
from bench.machine.node_now import NodeNow
from tests.support.nvml.library import fake_node
from tests.support.nvml.scenes import H100, Scene, node_of

READ = (
    "import sys, msgspec; from bench.machine import machine;"
    " sys.stdout.buffer.write(msgspec.json.encode(machine.read()))"
)


def _machine(library: Path, folder: Path, scene: Scene) -> Machine:
    folder.mkdir()
    node = fake_node(folder, library, scene)
    done = subprocess.run(
        [sys.executable, "-P", "-c", READ], env=node.environment(), capture_output=True, timeout=120, check=True
    )
    return msgspec.json.decode(done.stdout, type=Machine)


@pytest.mark.slow
def test_of_a_fleet_with_two_driver_versions_the_odd_node_is_named(nvml_library: Path, tmp_path: Path) -> None:
    new, old = node_of(H100, H100), {**node_of(H100, H100), "SystemGetDriverVersion": "570.86.10"}
    machines = [
        _machine(nvml_library, tmp_path / name, scene) for name, scene in (("n0", new), ("n1", old), ("n2", new))
    ]
    nodes = tuple(
        FleetNode(
            number=number,
            name=f"n{number}",
            machine=machine,
            check=NodeCheck(now=NodeNow(memory_bytes=1 << 30, disk_bytes=1 << 40), offset_s=0.0, offset_error_s=0.01),
        )
        for number, machine in enumerate(machines)
    )
    assert [
        finding for finding in judge(Fleet(engine="slurm", time_ns=1, nodes=nodes)) if "driver" in finding.text
    ] == [NodeFinding(node=1, text="its driver is 570.86.10, but 580.95.05 on 2 other nodes")]
