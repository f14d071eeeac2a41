"""A machine that does not reach itself is named before anything waits for it: real network namespaces without `lo`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.engines.local import check_loopback


def _run(setup: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words in a network namespace of its own, after the setup; both end with it."""
    if os.geteuid() or not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("a network namespace needs root, unshare and ip")
    script = ["unshare", "--net", "sh", "-ec", f'{setup}\nexec "$@"', "sh", sys.executable, "-P", *words]
    return subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)


CHECK = "from bench.engines.local import check_loopback; check_loopback()"


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ("", "the loopback interface lo is down; bring it up: `ip link set lo up`"),
        ("ip link set lo up; ip address del 127.0.0.1/8 dev lo", "no interface has that address; give it one: `ip add"),
        ("ip address add 127.0.0.1/8 dev lo", "the loopback interface lo is down"),
    ],
)
def test_a_run_says_at_once_why_its_ranks_cannot_reach_each_other(setup: str, said: str, tmp_path: Path) -> None:
    places = ["--runs", str(tmp_path / "runs"), "--store", f"sqlite:///{tmp_path}/store.sqlite", "--port", "0"]
    done = _run(setup, "-m", "bench", "run", "ddp", "--device", "cpu", "--ranks", "2", *places)
    assert done.returncode == 4, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "cannot reach each other" in line]
    assert f"ranks cannot reach each other at 127.0.0.1 on this machine: {said}" in line


def test_nodes_as_if_on_this_machine_are_refused_alike() -> None:
    done = _run("", "-c", "from bench.engines.local import LocalNodes; LocalNodes(2)")
    assert "InfrastructureFailed: ranks cannot reach each other at 127.0.0.1" in done.stderr


def test_a_machine_that_reaches_itself_passes() -> None:
    check_loopback()
    assert _run("ip link set lo up", "-c", CHECK).returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show"], "the data folder {home} is not UTF-8, so no store can be in it; set XDG_DATA_HOME to another"),
        (["run", "single", "--device", "cpu", "--port", "0"], "the folder of runs {home}/runs is not UTF-8; choose"),
    ],
)
def test_a_data_folder_that_is_not_utf_8_is_named(words: list[str], said: str, tmp_path: Path) -> None:
    environment = {**os.environb, b"XDG_DATA_HOME": os.fsencode(tmp_path) + b"/caf\xe9"}
    command = [sys.executable, "-P", "-m", "bench", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert said.format(home=f"{tmp_path}/caf\\xe9/parallel-observatory") in done.stderr
    assert list(tmp_path.iterdir()) == []
