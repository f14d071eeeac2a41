"""What an engine's file says of the nodes' exporters and their folder of targets: told to each agent, or refused."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from bench.engines.cluster import Meeting, NodeRequest
from bench.engines.ray.engine import RayAllocation, RayPlacement
from bench.engines.ray.orders import Done, StartAgents
from bench.engines.registry import ENGINES
from bench.engines.slurm.allocation import SlurmAllocation, SlurmPlacement
from bench.errors import Misuse

LISTED = 'exporter = "0.0.0.0:9464"\ntargets = "/shared/targets"\n'
WORDS = ["--exporter", "0.0.0.0:9464", "--targets", "/shared/targets"]


class RecordedDriver:
    """Takes orders as done, and keeps them."""

    def __init__(self) -> None:
        self.orders: list[Any] = []

    def ask(self, order: Any, kind: type[Done], within_s: float) -> Done:
        """Keep the order."""
        self.orders.append(order)
        return kind()


class FakeRayAllocation:
    """What a placement takes from an allocation that is entered."""

    def __init__(self, allocation: RayAllocation) -> None:
        self.settings, self.exporter = allocation.settings, allocation.exporter
        self.runner, self.driver = "127.0.0.1", RecordedDriver()


@pytest.fixture
def meeting(tmp_path: Path) -> Meeting:
    (tmp_path / "key").write_bytes(b"key\n")
    return Meeting(host="127.0.0.1", port=1, key_file=tmp_path / "key")


def _file(folder: Path, text: str) -> Path:
    (folder / "engine.toml").write_text(text)
    return folder / "engine.toml"


def _of_slurm(folder: Path, text: str, meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of an agent that a step would start; `srun` is a command that keeps its own."""
    (folder / "srun").write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{folder}/words\ncat >/dev/null\n")
    (folder / "srun").chmod(0o755)
    (folder / "scontrol").write_text("#!/bin/sh\necho JobId=7 NumNodes=2\n")
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    allocation = SlurmAllocation(NodeRequest(nodes=2, file=_file(folder, f'address = "127.0.0.1"\n{text}')))
    allocation.job = "7"
    placement = SlurmPlacement(allocation, ["a", "b"])
    placement.start(meeting)
    placement.stop()
    return shlex.split((folder / "words").read_text().splitlines()[-1])


def _of_ray(folder: Path, text: str, meeting: Meeting) -> list[str]:
    """The words of an agent that an actor would start."""
    allocation: Any = FakeRayAllocation(RayAllocation(NodeRequest(file=_file(folder, text))))
    RayPlacement(allocation, ("a",)).start(meeting)
    (order,) = allocation.driver.orders
    assert isinstance(order, StartAgents)
    return shlex.split(order.words[2].splitlines()[-1])


@pytest.mark.parametrize(("text", "words"), [(LISTED, WORDS), (LISTED.partition("\n")[0], WORDS[:2]), ("", [])])
def test_each_agent_is_told_of_its_exporter_and_the_list(
    text: str, words: list[str], meeting: Meeting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for agent in (_of_slurm(tmp_path, text, meeting, monkeypatch), _of_ray(tmp_path, text, meeting)):
        place = agent.index("--connect") + 2
        assert agent[place : agent.index("--send-files")] == words


@pytest.mark.parametrize("engine", ["slurm", "ray"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('targets = "/shared/targets"', "without an exporter it lists no node; add exporter ="),
        ('exporter = "9464"', 'exporter: "9464" is not HOST:PORT; for example 0.0.0.0:9464'),
        (LISTED.replace("/shared/", ""), 'targets is "targets"; give the absolute path of a folder'),
        (LISTED.replace("/targets", "/nodes.json"), 'is "/shared/nodes.json"; give the absolute path of a folder'),
        (LISTED.replace("0.0.0.0", "127.0.0.1"), 'exporter is "127.0.0.1:9464", where only its own node reaches it'),
        (LISTED.replace("0.0.0.0", "[::1]"), 'exporter is "[::1]:9464", where only its own node reaches it'),
        (LISTED.replace("0.0.0.0", "localhost"), "where only its own node reaches it"),
    ],
)
def test_an_exporter_that_nobody_would_find_is_refused(
    engine: str, text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(Misuse) as refused:
        ENGINES[engine](NodeRequest(file=_file(tmp_path, text)))
    assert str(refused.value).startswith(f"{tmp_path}/engine.toml: ")
    assert said in str(refused.value)
