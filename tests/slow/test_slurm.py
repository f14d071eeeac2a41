"""Suites on a real Slurm, whose nodes are all this machine: what runs where, what is told of faults, what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.errors import FINE, INFRASTRUCTURE, INTERRUPTED, MISUSE
from tests.slow.clusters.nights import wait
from tests.slow.clusters.slurm import CPUS, MEMORY_MB, Slurm, run_slurm
from tests.slow.clusters.slurm_nights import LONG, SETTINGS, SUITE, SlurmNight, agents_of

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """Four nodes."""
    with run_slurm(4) as slurm:
        yield slurm


def test_a_suite_runs_on_several_nodes_in_one_job_that_is_given_back(slurm: Slurm, short_path: Path) -> None:
    nodes = 4
    night = SlurmNight(short_path, slurm, SUITE)
    code, cases, messages = night.run(f"--nodes={nodes}")
    assert code == FINE, messages
    assert {name: case["outcome"] for name, case in cases.items()} == dict.fromkeys(cases, "done")
    assert len(cases) == 6
    spread = {name: case["summary"]["case"]["nodes"] for name, case in cases.items()}
    assert spread == {**dict.fromkeys(cases, nodes), "single": 1}
    folder = Path(cases["fsdp"]["summary"]["folder"])
    assert len(list(folder.glob("node*.jsonl"))) == nodes
    assert len(list(folder.glob("trial1/rank*.timeline.npz"))) == 4
    assert [cases[name]["summary"]["cause"]["rank"] for name in ("killed", "hung")] == [3, 2]
    wait(lambda: not slurm.jobs())
    assert agents_of(slurm) == []
    assert night.kept() == 0


PLANNED = """
schema_version = 1
[case.everywhere]
strategy = "ddp"
[case.three]
strategy = "ddp"
device = "cuda"
ranks = 6
batch = 12
seed = 1
"""


def test_a_suite_is_planned_by_the_nodes_and_nothing_is_asked_for(slurm: Slurm, short_path: Path) -> None:
    """On a machine without GPUs. One node of the partition has 4, and one 2."""
    night = SlurmNight(short_path, slurm, PLANNED, f'{SETTINGS}partition = "gpu"\n')
    command = [sys.executable, "-P", "-m", "bench", "suite"]
    where = [str(short_path / "suite.toml"), "--engine=slurm", "--nodes=2", f"--engine-file={night.engine_file}"]
    for words in (["plan", *where, "--format=json"], ["run", *where, "--dry-run", "--format=json"]):
        done = subprocess.run([*command, *words], env=night.environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == FINE, done.stderr
        plan = json.loads(done.stdout)
        cases = {case["case"]: case for case in plan["cases"]}
        resolved = cases["everywhere"]["resolved"]
        assert [resolved[name] for name in ("device", "ranks", "nodes")] == ["cuda", 4, 2]
        assert cases["three"]["refusal"].startswith(
            "ranks is 6 over 2 nodes, up to 3 per node, and NCCL needs a GPU for each rank"
        )
        assert plan["cluster"]["gpus"] == ["a100", "a100"]
        assert (plan["cluster"]["cores"], plan["cluster"]["memory_bytes"]) == (CPUS, MEMORY_MB << 20)
    done = subprocess.run(
        [*command[:-1], "run", "ddp", *where[1:], "--dry-run"],
        env=night.environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "ddp on 4 over 2 nodes: cuda, nccl" in done.stdout, done.stderr
    assert "a node of the partition gpu has at least 8 cores, 3.91 GiB, 2 x a100" in done.stdout
    assert "--partition=gpu --time=20 --exclusive`" in done.stdout
    assert slurm.jobs() == []
    assert not (short_path / "home").exists()


def test_within_an_allocation_its_nodes_are_used_and_it_is_kept(slurm: Slurm, short_path: Path) -> None:
    said = subprocess.run(
        ["salloc", "--no-shell", "--nodes=2", "--exclusive", "--time=10"],
        env=slurm.environment, capture_output=True, text=True, check=True, timeout=60,
    ).stderr  # fmt: skip
    job = said.split("job allocation ")[1].split()[0]
    try:
        night = SlurmNight(short_path, slurm, SUITE.partition("[case.fsdp]")[0])
        code, cases, messages = night.run("--nodes=2", SLURM_JOB_ID=job, SLURM_JOB_NUM_NODES="2")
        assert code == FINE, messages
        assert cases["ddp"]["summary"]["case"]["nodes"] == 2
        assert slurm.jobs() == [job]
        code, _, messages = night.run("--nodes=3", SLURM_JOB_ID=job, SLURM_JOB_NUM_NODES="2")
        assert (code, messages.splitlines()[-1]) == (
            MISUSE,
            f"observatory: --nodes is 3, but job {job} has only 2; use fewer",
        )
    finally:
        slurm.call("scancel", job)


def test_after_a_killed_agent_the_case_goes_on_with_others_in_the_same_job(slurm: Slurm, short_path: Path) -> None:
    night = SlurmNight(short_path, slurm, LONG)
    process = night.start("--nodes=2")
    wait(lambda: night.measured() > 40)
    (job,) = slurm.jobs()
    max(agents_of(slurm), key=lambda agent: int(agent.cmdline()[-1])).kill()
    code, cases, messages = night.end(process)
    assert code == FINE, messages
    assert "the agent of node1 ended" in messages
    assert cases["ddp"]["summary"]["trials_done"] == 2
    assert f"job {job}" not in messages
    wait(lambda: night.kept() == 0)  # The next agents of the node have swept what the killed one left.
    wait(lambda: not slurm.jobs())


def _listing(night: SlurmNight) -> Callable[[], set[str]]:
    """Have each node's exporter be a target; return what reads them."""
    targets = night.folder / "targets"
    night.write_settings(f'{SETTINGS}exporter = "0.0.0.0:0"\ntargets = "{targets}"\n')

    def listed() -> set[str]:
        groups = [group for file in targets.glob("*.json") for group in json.loads(file.read_bytes())]
        return {target for group in groups for target in group["targets"]}

    return listed


def test_a_cancelled_job_is_told_and_the_suite_goes_on_later(slurm: Slurm, short_path: Path) -> None:
    night = SlurmNight(short_path, slurm, LONG)
    listed = _listing(night)
    process = night.start("--nodes=2")
    wait(lambda: night.measured() > 40 and len(listed()) == 2)
    (job,) = slurm.jobs()
    slurm.call("scancel", job)
    code, _, messages = night.end(process)
    assert code == INFRASTRUCTURE, messages
    wait(lambda: not listed())
    assert f"job {job} has ended: CANCELLED" in messages
    code, cases, messages = night.run("--nodes=2", "--resume")
    assert code == FINE, messages
    assert cases["ddp"]["summary"]["trials_done"] == 2
    assert agents_of(slurm) == []


def test_ctrl_c_gives_the_job_back(slurm: Slurm, short_path: Path) -> None:
    night = SlurmNight(short_path, slurm, LONG)
    listed = _listing(night)
    process = night.start("--nodes=2")
    wait(lambda: night.measured() > 40 and len(listed()) == 2)
    process.send_signal(signal.SIGINT)
    code, _, messages = night.end(process)
    assert code == INTERRUPTED, messages
    wait(lambda: not slurm.jobs())
    wait(lambda: not agents_of(slurm))
    assert listed() == set()


@pytest.mark.parametrize(
    ("words", "settings", "path", "code", "said"),
    [
        (["--nodes=9"], SETTINGS, None, 2, "--nodes is 9, but the partition night has only 4; use fewer"),
        ([], SETTINGS + 'partion = "night"\n', None, 2, "unknown key 'partion'; did you mean 'partition'?"),
        ([], SETTINGS + "time = 20\n", None, 2, "a key is given twice; give it once"),
        ([], 'partition = "day"\n', None, 2, 'partition "day" is unknown; set partition = '),
        (
            [],
            SETTINGS + 'account = "nobody"\nconstraint = "gpu"\n',
            None,
            4,
            "Slurm allocated no nodes: salloc: error:",
        ),
        ([], SETTINGS, "/nowhere", 4, "the engine slurm needs sinfo, which is not on the PATH"),
        ([], f'{SETTINGS}setup = "read line || exit 7"\n', None, 4, "its step ended with code 7"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    words: list[str], settings: str, path: str | None, code: int, said: str, slurm: Slurm, short_path: Path
) -> None:
    night = SlurmNight(short_path, slurm, LONG, settings)
    found, _, messages = night.run(*words, PATH=path or os.environ["PATH"])
    assert found == code, messages
    assert said in messages
    assert "Traceback" not in messages
    wait(lambda: not slurm.jobs())
