"""Each example in README, in the pages that show some, and in the help of a command works."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from bench.cli import main
from bench.store.history import History
from tests.bench.made.fake_nights import FakeNights
from tests.bench.made.small_traces import write_kineto
from tests.support.servers import free_port, program

ROOT = Path(__file__).parents[2]
# Smaller than what people run, so that it ends in seconds.
SMALLER = ["--layers=2", "--width=16", "--heads=2", "--kv-heads=1", "--mlp-width=32", "--sequence=8", "--steps=3"]
SMALLER_PROBES = {
    "collectives": ["--option=max_bytes=4096"],
    "all_reduce": ["--option=max_bytes=4096"],
    "matmul": ["--option=max_size=256"],
    "copies": ["--option=size_bytes=4096"],
    "pairs": ["--option=size_bytes=4096"],
}


PAGES = ("README.md", "docs/measured/examples.md", "docs/monitoring/watching.md")


GPU_SECTION = re.compile(r"^## On a GPU node$.*?(?=^## )", re.MULTILINE | re.DOTALL)
"""Its lines need GPUs; test_demo.py reads their words."""


def _in_pages() -> list[str]:
    return [
        example
        for page in PAGES
        for example in re.findall(
            r"^    (observatory .*)$", GPU_SECTION.sub("", (ROOT / page).read_text()), re.MULTILINE
        )
    ]


def _in_help() -> list[str]:
    context = click.Context(main.observatory)
    commands = [main.observatory, *(main.observatory.get_command(context, name) for name in main.COMMANDS)]
    return [
        line.strip()
        for command in commands
        if command is not None and command.help is not None
        for line in command.help.splitlines()
        if line.strip().startswith("observatory ")
    ]


def test_pages_and_every_help_have_examples() -> None:
    assert len(_in_pages()) >= 4
    assert len(_in_help()) >= len(main.COMMANDS) + 1


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's home, in which nothing was measured yet."""
    home = tmp_path_factory.mktemp("home")
    (home / "parallel-observatory" / "runs").mkdir(parents=True)
    return home


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the traces that examples name."""
    folder = tmp_path_factory.mktemp("traces")
    for name, rank in (("rank0", 0), ("rank1", 1), ("before", 0), ("after", 0)):
        write_kineto(folder / f"{name}.json.gz", rank)
    return folder


@pytest.fixture(scope="module")
def home_with_a_night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's home with a history of one night of the suite `nightly`, an hour ago."""
    home = tmp_path_factory.mktemp("home")
    (home / "parallel-observatory").mkdir()
    with History(f"sqlite:///{home / 'parallel-observatory' / 'history.sqlite'}") as history:
        FakeNights(history, first_ns=time.time_ns() - 3600 * 10**9).add(0, {"ddp": 0.1})
    return home


def _start_and_end(command: list[str], environment: dict[str, str]) -> None:
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if line.startswith("serving "))
        server.terminate()
        assert server.wait(timeout=60) == 0, line


def _up_and_down(command: list[str], environment: dict[str, str], folder: Path) -> None:
    """Start a stack on ports of its own, and take it away."""
    for name, package in (("prometheus", "prometheus"), ("prometheus-alertmanager", "prometheus-alertmanager")):
        program(name, package)
    servers = ("alertmanager", "grafana", "agent", "demo")
    ports = "".join(f"[{name}]\nport = {free_port()}\n" for name in servers)
    (folder / "stack.toml").write_text(f"{ports}[prometheus]\nscrape_seconds = 1\nport = {free_port()}\n")
    up = [*command, "--config", str(folder / "stack.toml"), "--folder", str(folder / "stack")]
    down = [*command[: command.index("up")], "down", "--folder", str(folder / "stack")]
    begun = subprocess.run(up, capture_output=True, text=True, timeout=120, env=environment)
    ended = subprocess.run(down, capture_output=True, text=True, timeout=120, env=environment)
    assert (begun.returncode, ended.returncode) == (0, 0), begun.stderr + ended.stderr


def _examples() -> list[object]:
    """All of them; those that start ranks take seconds each."""
    return [
        pytest.param(example, marks=pytest.mark.slow if _starts_ranks(example) else ())
        for example in sorted({*_in_pages(), *_in_help()})
    ]


def _starts_ranks(example: str) -> bool:
    """Of `doctor`, which starts them, too, that one is left which prints all that it finds."""
    return example in ("observatory doctor", "observatory doctor --nodes 2") or (
        example.startswith(
            ("observatory run ", "observatory suite run ", "observatory compare --a", "observatory watch ")
        )
        and "--dry-run" not in example
    )


@pytest.mark.parametrize("example", _examples())
def test_an_example_ends_as_it_should(
    example: str, home: Path, home_with_a_night: Path, traces: Path, tmp_path: Path
) -> None:
    words = shlex.split(example.split("#")[0])[1:]
    if words[0] == "run":
        words += ["--steps=3", *SMALLER_PROBES[words[1]]] if words[1] in SMALLER_PROBES else SMALLER
    if words[:2] == ["compare", "--ab"]:
        words += SMALLER
    if words[0] == "diagnose":
        words[1] = "run0000-ddp"  # The night's only run.
    data = home_with_a_night if words[0] in ("check", "diagnose") else home
    environment = {**os.environ, "XDG_DATA_HOME": str(data), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-P", "-m", "bench", *words]
    if words[0] == "serve":
        _start_and_end([*command, "--port=0"], environment)
        return
    if words[:2] == ["stack", "up"]:
        _up_and_down(command, environment, tmp_path)
        return
    folder = traces if words[0] == "analyse" else None
    if words[0] == "watch":  # On two ranks, and with torchrun from where this Python is.
        folder = tmp_path
        (tmp_path / "train.py").write_text("import torch\n")
        command = ["2" if word == "8" else word for word in command]
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=folder)
    expected = 3 if "--inject" in words else 0
    assert ended.returncode == expected, ended.stderr
