"""Suites on a real Slurm, whose nodes are all this machine: what runs where, what is told of faults, what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.cli import main
from tests.bench.made.fake_suites import TINY_SHAPE
from tests.slow.slurm import Slurm, run_slurm

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(300)]

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
LONG = SUITE.partition("[case.single]")[0] + "[case.ddp]\nranks = 4\nsteps = 400\n"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """Four nodes."""
    with run_slurm(4) as slurm:
        yield slurm


def _heeding_ctrl_c() -> None:
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

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Start the suite."""
        command = ["suite", "run", f"{self.folder}/suite.toml", "--port=0", "--engine=slurm", "--format=json"]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "bench", *command, f"--engine-file={self.folder}/slurm.toml", *words],
            env=self.environment | variables,
            preexec_fn=_heeding_ctrl_c,
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


def _wait(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def _agents(slurm: Slurm) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "bench.engines.node.agent" in (process.info["cmdline"] or []):
            try:
                if process.environ().get("SLURM_CONF") == slurm.environment["SLURM_CONF"]:
                    found.append(process)
            except psutil.Error:
                continue
    return found


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_suite_runs_on_several_nodes_in_one_job_that_is_given_back(
    nodes: int, slurm: Slurm, short_path: Path
) -> None:
    night = Night(short_path, slurm, SUITE)
    code, cases, messages = night.run(f"--nodes={nodes}")
    assert code == main.FINE, messages
    assert {name: case["outcome"] for name, case in cases.items()} == dict.fromkeys(cases, "done")
    assert len(cases) == 6
    spread = {name: case["summary"]["case"]["nodes"] for name, case in cases.items()}
    assert spread == {**dict.fromkeys(cases, nodes), "single": 1}
    folder = Path(cases["fsdp"]["summary"]["folder"])
    assert len(list(folder.glob("node*.jsonl"))) == nodes
    assert len(list(folder.glob("trial1/rank*.timeline.npz"))) == 4
    assert [cases[name]["summary"]["cause"]["rank"] for name in ("killed", "hung")] == [3, 2]
    _wait(lambda: not slurm.jobs())
    assert _agents(slurm) == []
    assert night.kept() == 0


def test_within_an_allocation_its_nodes_are_used_and_it_is_kept(slurm: Slurm, short_path: Path) -> None:
    said = subprocess.run(
        ["salloc", "--no-shell", "--nodes=2", "--exclusive", "--time=10"],
        env=slurm.environment, capture_output=True, text=True, check=True, timeout=60,
    ).stderr  # fmt: skip
    job = said.split("job allocation ")[1].split()[0]
    try:
        night = Night(short_path, slurm, SUITE.partition("[case.fsdp]")[0])
        code, cases, messages = night.run("--nodes=2", SLURM_JOB_ID=job, SLURM_JOB_NUM_NODES="2")
        assert code == main.FINE, messages
        assert cases["ddp"]["summary"]["case"]["nodes"] == 2
        assert slurm.jobs() == [job]
        code, _, messages = night.run("--nodes=3", SLURM_JOB_ID=job, SLURM_JOB_NUM_NODES="2")
        assert (code, messages.splitlines()[-1]) == (
            main.MISUSE,
            f"observatory: --nodes is 3, and job {job} has 2; take fewer",
        )
    finally:
        slurm.call("scancel", job)


def test_after_a_killed_agent_the_case_goes_on_with_others_in_the_same_job(slurm: Slurm, short_path: Path) -> None:
    night = Night(short_path, slurm, LONG)
    process = night.start("--nodes=2")
    _wait(lambda: night.measured() > 40)
    (job,) = slurm.jobs()
    max(_agents(slurm), key=lambda agent: int(agent.cmdline()[-1])).kill()
    code, cases, messages = night.end(process)
    assert code == main.FINE, messages
    assert "the agent of node1 ended" in messages
    assert cases["ddp"]["summary"]["trials_done"] == 2
    assert f"job {job}" not in messages
    assert night.kept() == 1  # Of the killed one.
    _wait(lambda: not slurm.jobs())


def test_a_cancelled_job_is_told_and_the_suite_goes_on_later(slurm: Slurm, short_path: Path) -> None:
    night = Night(short_path, slurm, LONG)
    process = night.start("--nodes=2")
    _wait(lambda: night.measured() > 40)
    (job,) = slurm.jobs()
    slurm.call("scancel", job)
    code, _, messages = night.end(process)
    assert code == main.INFRASTRUCTURE, messages
    assert f"job {job} has ended: CANCELLED" in messages
    code, cases, messages = night.run("--nodes=2", "--resume")
    assert code == main.FINE, messages
    assert cases["ddp"]["summary"]["trials_done"] == 2
    assert _agents(slurm) == []


def test_ctrl_c_gives_the_job_back(slurm: Slurm, short_path: Path) -> None:
    night = Night(short_path, slurm, LONG)
    process = night.start("--nodes=2")
    _wait(lambda: night.measured() > 40)
    process.send_signal(signal.SIGINT)
    code, _, messages = night.end(process)
    assert code == main.INTERRUPTED, messages
    _wait(lambda: not slurm.jobs())
    _wait(lambda: not _agents(slurm))


@pytest.mark.parametrize(
    ("words", "settings", "path", "code", "said"),
    [
        (["--nodes=9"], SETTINGS, None, 2, "--nodes is 9, and the partition night has 4; take fewer"),
        ([], SETTINGS + 'partion = "night"\n', None, 2, 'the field "partion" is unknown; did you mean "partition"?'),
        ([], SETTINGS + "time = 20\n", None, 2, "is no TOML"),
        ([], 'partition = "day"\n', None, 2, 'partition "day" is unknown; name one in the engine\'s file'),
        ([], SETTINGS + 'account = "nobody"\nconstraint = "gpu"\n', None, 4, "Slurm gives no nodes: salloc: error: "),
        ([], SETTINGS, "/nowhere", 4, "the engine slurm needs salloc, which is not on the PATH"),
        ([], f'{SETTINGS}setup = "read line || exit 7"\n', None, 4, "its step ended with code 7"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    words: list[str], settings: str, path: str | None, code: int, said: str, slurm: Slurm, short_path: Path
) -> None:
    night = Night(short_path, slurm, LONG)
    (short_path / "slurm.toml").write_text(settings)
    found, _, messages = night.run(*words, PATH=path or os.environ["PATH"])
    assert found == code, messages
    assert said in messages
    assert "Traceback" not in messages
    _wait(lambda: not slurm.jobs())
