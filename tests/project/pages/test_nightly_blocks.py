"""The blocks of docs/guides/nightly.md run in a fresh, non-editable installation, step by step.

The machine's own paths and programs are replaced: /etc, /opt and /var/lib lie in a folder of the test, and what would
change the machine (systemctl, apt-get, useradd ...) is noted down. What is ours is real: the wheel, the files that are
copied, `observatory` with the history of a night. Suites are planned in place of run, and prove it with --dry-run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest

from bench.store.history import History
from tests.bench.made.fake_nights import FakeNights

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guides" / "nightly.md").read_text()
STEPS = re.findall(r"^## (\d+)\. .*? \((.*?)\)\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
# Programs that change or ask the machine. promtool and amtool are real where they are installed.
OF_THE_MACHINE = ("apt-get", "curl", "install", "journalctl", "ln", "python3", "sudo", "systemctl", "useradd")
CHECKERS = ("amtool", "promtool")
TAKES_A_NETWORK = "10"  # The push to a Grafana, which tests of pushing have.
LOAD_TORCH = {"3", "4", "11"}


def _blocks(text: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the machine's /etc and /var, the wheel unpacked, and programs that note how they are called."""
    machine = tmp_path_factory.mktemp("machine")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(machine), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, env={**os.environ, "PATH": str(machine)})
    (wheel,) = machine.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(machine / "site")
    programs = machine / "programs"
    for folder in ("etc/systemd/system", "etc/prometheus", "var/lib/parallel-observatory/runs", "programs"):
        (machine / folder).mkdir(parents=True)
    for name in OF_THE_MACHINE + tuple(name for name in CHECKERS if shutil.which(name) is None):
        _write_program(programs / name, f'echo "{name} $*" >> {machine}/calls')
    of_wheel = "import bench, sys; assert bench.__path__[0].startswith(sys.argv.pop(1))"
    start = f"{sys.executable} -P -c '{of_wheel}; from bench.cli.main import main; main()' {machine}/site"
    planned = f'case "$1 $2" in "suite run") set -- "$@" --dry-run;; esac; exec {start} "$@"'
    _write_program(programs / "observatory", planned)
    with History(f"sqlite:///{machine}/var/lib/parallel-observatory/history.sqlite") as history:
        FakeNights(history, first_ns=time.time_ns() - 3600 * 10**9).add(0, {"ddp": 0.1})
    return machine


def _write_program(path: Path, lines: str) -> None:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def _run(block: str, machine: Path) -> subprocess.CompletedProcess[str]:
    for folder in ("/etc/parallel-observatory", "/etc/prometheus", "/etc/systemd", "/opt/", "/var/lib/"):
        block = block.replace(folder, f"{machine}{folder}")
    block = re.sub(r"\| grep .*", "", block)  # Of answers that `curl` does not get here.
    places = {
        "OBSERVATORY_RUNS": str(machine / "var/lib/parallel-observatory/runs"),
        "OBSERVATORY_STORE": f"sqlite:///{machine}/var/lib/parallel-observatory/history.sqlite",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OBSERVATORY_")}
    environment = {**kept, **places, "PYTHONPATH": str(machine / "site"), "CUDA_VISIBLE_DEVICES": ""}
    environment["PATH"] = f"{machine / 'programs'}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", block],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_each_step_says_who_runs_it() -> None:
    assert [number for number, _, _ in STEPS] == re.findall(r"^## (\d+)\. ", PAGE, re.MULTILINE)
    assert {who for _, who, _ in STEPS} == {"root", "observatory", "anyone with a token"}


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.slow if number in LOAD_TORCH else ())
        for number, _, _ in STEPS
        if number not in ("1", "8", TAKES_A_NETWORK)
    ],
)
def test_the_blocks_of_a_step_run(number: str, machine: Path) -> None:
    (text,) = (text for other, _, text in STEPS if other == number)
    blocks = _blocks(text)
    assert blocks
    for block in blocks:
        ended = _run(block, machine)
        assert ended.returncode == 0, f"{block}\n{ended.stdout}\n{ended.stderr}"


def test_rules_with_the_thresholds_and_links_of_the_page_reach_prometheus(machine: Path) -> None:
    (text,) = (text for number, _, text in STEPS if number == "8")
    for block in _blocks(text):
        ended = _run(block, machine)
        assert ended.returncode == 0, ended.stderr
    rules = (machine / "etc/prometheus/observatory-rules.yaml").read_text()
    assert "https://grafana.example.org/" in rules
    assert "runbook_url: https://git.example.org/" in rules


def test_what_is_installed_has_what_the_page_uses() -> None:
    (text,) = (text for number, _, text in STEPS if number == "1")
    (extras,) = re.findall(r"'\.\[([a-z,]+)\]'", text)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"postgres", "traces"} == set(extras.split(",")) <= set(known)
