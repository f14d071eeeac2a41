"""`observatory stack` without the programs: what docker is told, and what comes back when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.serve.stack import compose

_DOCKER = """#!/bin/sh
echo "$@" >> {calls}
case " $* " in *" {fails} "*) echo "no space left on device" >&2; exit 1;; esac
"""
"""A docker that notes what it is told; a real one wants a daemon, and images from the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """A machine with nothing but this docker."""

    folder: Path

    def install(self, *, fails: str = "never") -> None:
        """Install the docker, which fails at this verb."""
        path = self.folder / "programs" / "docker"
        path.parent.mkdir(exist_ok=True)
        path.write_text(_DOCKER.format(calls=self.folder / "calls", fails=fails))
        path.chmod(0o755)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the stack to its end."""
        environment = {**os.environ, "PATH": str(self.folder / "programs"), "XDG_DATA_HOME": str(self.folder / "home")}
        command = [sys.executable, "-P", "-m", "bench", "stack", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)

    def told(self) -> list[str]:
        """What docker was told to do with the stack."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [line.partition(f"{compose.ENVIRONMENT} ")[2] for line in lines if f"--file {compose.FILE} " in line]


@pytest.fixture
def machine(tmp_path: Path) -> Containers:
    found = Containers(folder=tmp_path)
    found.install()
    return found


def _settings(folder: Path) -> str:
    """A file of ports that nobody has, whatever else runs here."""
    (folder / "stack.toml").write_text(
        "[prometheus]\nport = 61990\n[alertmanager]\nport = 61993\n[grafana]\nport = 61994\n"
    )
    return str(folder / "stack.toml")


def test_containers_are_started_and_taken_away_with_their_volumes(machine: Containers, tmp_path: Path) -> None:
    begun = machine.call("up", "--config", _settings(tmp_path))
    assert begun.returncode == 0, begun.stderr
    rows = [line.split() for line in begun.stdout.splitlines() if " container" in line]
    assert sorted(row[0] for row in rows) == ["alertmanager", "grafana", "prometheus"]
    variables = (tmp_path / "home" / "parallel-observatory" / "stack" / compose.ENVIRONMENT).read_text()
    assert "PROMETHEUS_PORT=61990\n" in variables
    assert machine.call("down").returncode == 0
    assert machine.told() == ["up --detach --wait", "down --remove-orphans --volumes"]
    assert not (tmp_path / "home").exists()


def test_volumes_stay_where_data_is_kept(machine: Containers, tmp_path: Path) -> None:
    machine.call("up", "--config", _settings(tmp_path))
    said = machine.call("down", "--keep-data")
    assert said.returncode == 0
    assert "keeping the containers' volumes for the next `up`" in said.stderr
    assert machine.told()[-1] == "down --remove-orphans"


def test_containers_that_do_not_start_are_taken_away(machine: Containers, tmp_path: Path) -> None:
    machine.install(fails="up")
    said = machine.call("up", "--config", _settings(tmp_path))
    assert said.returncode == 4
    assert "docker compose up failed: no space left on device" in said.stderr
    assert machine.told() == ["up --detach --wait", "down --remove-orphans --volumes"]
    assert not (tmp_path / "home").exists()


def test_a_docker_without_compose_is_said_with_what_is_missing(machine: Containers, tmp_path: Path) -> None:
    machine.install(fails="version")
    said = machine.call("up", "--config", _settings(tmp_path))
    assert said.returncode == 4
    assert "not installed: prometheus and alertmanager" in said.stderr


def test_targets_that_containers_do_not_see_is_refused(machine: Containers, tmp_path: Path) -> None:
    said = machine.call("up", "--targets", str(tmp_path / "fleet"), "--config", _settings(tmp_path))
    assert said.returncode == 2
    assert "containers do not see" in said.stderr
