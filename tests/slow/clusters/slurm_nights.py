"""A home of a user beside a Slurm on this machine: its suite, the file of the engine, how suite runs begin and end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.bench.made.fake_suites import TINY_SHAPE
from tests.slow.clusters.slurm import Slurm

SETTINGS = f'address = "127.0.0.1"\ntime = "20"\npython = "{sys.executable}"\n'
SUITE = (
    """
schema_version = 1
[defaults]
device = "cpu"
trials = 2
steps = 3
warm_up = 1
trace_steps = 1
"""
    + TINY_SHAPE
    + """batch = 4
block = "all"
limit_s = 60
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
[case.killed]
strategy = "ddp"
ranks = 4
trials = 1
inject = "kill@3:2"
expect = { outcome = "failed", cause = "killed", rank = 3 }
[case.hung]
strategy = "ddp"
ranks = 4
trials = 1
seed = 1
limit_s = 25
inject = "hang@2:2"
expect = { outcome = "failed", cause = "hung", rank = 2 }
"""
)
LONG = SUITE.partition("[case.single]")[0] + "[case.ddp]\nranks = 4\nsteps = 250\n"


def heeding_ctrl_c() -> None:
    """A shell starts what runs in its background with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Night:
    """A user's home, with a suite and the engine's file, beside the cluster."""

    def __init__(self, folder: Path, slurm: Slurm, suite: str) -> None:
        self.folder, self.slurm = folder, slurm
        (folder / "suite.toml").write_text(suite)
        (folder / "slurm.toml").write_text(SETTINGS)
        self.environment = {**slurm.environment, "XDG_DATA_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": ""}
        (folder / "nodes").mkdir()
        self.environment["TMPDIR"] = str(folder / "nodes")

    def command(self, *words: str, suite: str | None = None) -> list[str]:
        """The command line that runs a suite, by default the night's own, without a check unless one is asked for."""
        which = suite or f"{self.folder}/suite.toml"
        options = ["--port=0", "--engine=slurm", "--format=json", f"--engine-file={self.folder}/slurm.toml"]
        options += [] if {"--preflight", "--drop-bad"} & set(words) else ["--no-preflight"]
        return [sys.executable, "-P", "-m", "bench", "suite", "run", which, *options, *words]

    def start(self, *words: str, suite: str | None = None, **variables: str) -> subprocess.Popen[str]:
        """Start the suite."""
        return subprocess.Popen(
            self.command(*words, suite=suite),
            env=self.environment | variables,
            preexec_fn=heeding_ctrl_c,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **variables: str) -> tuple[int, dict[str, Any], str]:
        """Run the suite; return its exit code, its cases by name and its messages."""
        return self.end(self.start(*words, **variables))

    def end(self, process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
        """Wait for the suite's end."""
        out, messages = process.communicate(timeout=200)
        cases = json.loads(out)["cases"] if out.strip() else []
        return process.returncode, {case["case"]: case for case in cases}, messages

    def kept(self) -> int:
        """How many agents have left their folder of runs, as something of it was not sent."""
        return len(list((self.folder / "nodes").glob("observatory-node-*")))

    def measured(self) -> int:
        """How many steps its ranks have logged here so far."""
        return sum(log.read_bytes().count(b'"measured"') for log in self.folder.glob("home/*/runs/*/rank*.jsonl"))


def wait(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def agents_of(slurm: Slurm) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "bench.engines.node.agent" in (process.info["cmdline"] or []):
            try:
                if process.environ().get("SLURM_CONF") == slurm.environment["SLURM_CONF"]:
                    found.append(process)
            except psutil.Error:
                continue
    return found
