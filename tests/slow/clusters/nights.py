"""A home of a user beside a cluster on this machine: a suite, the engine's file, how suite runs begin and end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.bench.made.fake_suites import TINY_SHAPE

WAIT_S = 100.0


def defaults(*, trials: int, limit_s: int = 60) -> str:
    """The head of a suite of tiny cases on the CPU."""
    return f"""
schema_version = 1
[defaults]
device = "cpu"
trials = {trials}
steps = 3
warm_up = 1
trace_steps = 1
{TINY_SHAPE}batch = 4
block = "all"
limit_s = {limit_s}
"""


CASES = """
[case.single]
ranks = 1
[case.ddp]
ranks = 4
[case.fsdp]
ranks = 4
[case.collectives]
ranks = 4
steps = 2
options = { max_bytes = 65536 }
"""


class Night:
    """A user's home, with a suite and the engine's file. outside: the environment that it begins with, by default ours.

    nodes: where agents keep what they have not sent. environment: of its commands.
    """

    def __init__(
        self, folder: Path, engine: str, suite: str, settings: str, outside: Mapping[str, str] = os.environ
    ) -> None:
        self.folder, self.engine = folder, engine
        self.nodes = folder / "nodes"
        self.nodes.mkdir()
        (folder / "suite.toml").write_text(suite)
        self.write_settings(settings)
        self.environment = {**outside, "XDG_DATA_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": ""}
        self.environment |= {"TMPDIR": str(self.nodes), "OF_NIGHT": str(folder)}

    @property
    def engine_file(self) -> Path:
        """The engine's settings."""
        return self.folder / f"{self.engine}.toml"

    @property
    def runs(self) -> Path:
        """The folder of runs."""
        return self.folder / "home/parallel-observatory/runs"

    def write_settings(self, settings: str) -> None:
        """Give the engine other settings."""
        self.engine_file.write_text(settings)

    def command(self, *words: str, suite: str | None = None) -> list[str]:
        """The command line that runs a suite, by default the night's own, without a check unless one is asked for."""
        which = suite or f"{self.folder}/suite.toml"
        options = ["--port=0", f"--engine={self.engine}", "--format=json", f"--engine-file={self.engine_file}"]
        options += [] if {"--preflight", "--drop-bad"} & set(words) else ["--no-preflight"]
        return [sys.executable, "-P", "-m", "bench", "suite", "run", which, *options, *words]

    def start(self, *words: str, suite: str | None = None, **variables: str) -> subprocess.Popen[str]:
        """Start the suite."""
        with (self.folder / "out").open("w") as out, (self.folder / "err").open("w") as errors:
            return subprocess.Popen(
                self.command(*words, suite=suite),
                env=self.environment | variables,
                stdout=out,
                stderr=errors,
                text=True,
            )

    def run(self, *words: str, **variables: str) -> tuple[int, dict[str, Any], str]:
        """Run the suite; return its exit code, its cases by name and its messages."""
        return self.end(self.start(*words, **variables))

    def end(self, process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
        """Wait for the suite's end."""
        process.wait(timeout=250)
        out = (self.folder / "out").read_text()
        cases = json.loads(out)["cases"] if out.strip() else []
        return process.returncode, {case["case"]: case for case in cases}, self.messages()

    def messages(self) -> str:
        """What it has said so far."""
        return (self.folder / "err").read_text()

    def measured(self) -> int:
        """How many steps its ranks have logged here so far."""
        return sum(log.read_bytes().count(b'"measured"') for log in self.runs.glob("*/rank*.jsonl"))

    def kept(self) -> int:
        """How many agents have left their folder of runs, as something of it was not sent."""
        return len(list(self.nodes.glob("observatory-node-*")))

    def processes(self) -> list[psutil.Process]:
        """All that it started, and what that started."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("OF_NIGHT") == str(self.folder):
                    found.append(process)
        return found

    def agents(self) -> list[psutil.Process]:
        """Its agents, by their node's number."""
        found = [one for one in self.processes() if "bench.engines.node.agent" in words_of(one)]
        return sorted(found, key=lambda agent: words_of(agent)[-1])


def words_of(process: psutil.Process) -> list[str]:
    """The command line of a process; nothing where it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def wait(is_so: Callable[[], bool], what: Callable[[], str] = str) -> None:
    """Wait until it is so. what: says what was the matter where it never is."""
    until_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < until_s, what()
        time.sleep(0.1)
