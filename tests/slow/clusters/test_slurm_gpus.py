"""GPUs of a real Slurm, in each way in which people ask for them: an agent gets what the job has on its node."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.errors import FINE
from tests.slow.clusters.nights import defaults
from tests.slow.clusters.slurm import Slurm, run_slurm
from tests.slow.clusters.slurm_nights import SETTINGS, SlurmNight

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(300)]

SUITE = f"{defaults(trials=1)}[case.ddp]\nranks = 2\n"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """Four nodes, of which node2 has four GPUs and node3 two: device files, which Slurm binds."""
    with run_slurm(4) as slurm:
        yield slurm


def _night(slurm: Slurm, folder: Path, more: str = "") -> SlurmNight:
    """A night whose agents write down their variables before they start."""
    setup = f"setup = 'env > \"{folder}/$SLURMD_NODENAME.env\"'\n"
    return SlurmNight(folder, slurm, SUITE, f"{SETTINGS}{setup}{more}")


def _devices(folder: Path) -> dict[str, str | None]:
    """CUDA_VISIBLE_DEVICES of each node's agent, None where Slurm sets none."""
    found = {}
    for path in folder.glob("node*.env"):
        variables = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
        found[path.stem] = variables.get("CUDA_VISIBLE_DEVICES") or None
    return found


ONE_NODE = ("--nodes=1", "--nodelist=node2")
FOUR: dict[str, str | None] = {"node2": "0,1,2,3"}
WAYS: dict[str, tuple[tuple[str, ...], dict[str, str | None]]] = {
    "gres": ((*ONE_NODE, "--gres=gpu:4"), FOUR),
    "gres with a type, fewer than there are": ((*ONE_NODE, "--gres=gpu:a100:3"), {"node2": "0,1,2"}),
    "exclusive, no word of GPUs": ((*ONE_NODE, "--exclusive"), FOUR),
    "a GPU for each task": ((*ONE_NODE, "--ntasks-per-node=4", "--gpus-per-task=1"), FOUR),
    "GPUs per node, bound one by one": (
        (*ONE_NODE, "--gpus-per-node=4", "--ntasks-per-node=4", "--gpu-bind=single:1"),
        FOUR,
    ),
    "GPUs of the job": ((*ONE_NODE, "--gpus=4"), FOUR),
    "GPUs per socket": ((*ONE_NODE, "--gpus-per-socket=2", "--sockets-per-node=1"), {"node2": "0,1"}),
    "tasks with threads": ((*ONE_NODE, "--gres=gpu:4", "--ntasks-per-node=4", "--hint=nomultithread"), FOUR),
    "none, on nodes that have some": ((*ONE_NODE, "--ntasks-per-node=2"), {"node2": None}),
    "nodes that differ": (
        ("--nodes=2", "--nodelist=node2,node3", "--exclusive"),
        {"node2": "0,1", "node3": "0,1"},
    ),
    "nodes with GPUs and without": (
        ("--partition=night", "--nodes=2", "--nodelist=node1,node2", "--exclusive"),
        {"node1": None, "node2": None},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_gets_what_the_job_has(way: str, slurm: Slurm, short_path: Path) -> None:
    words, expected = WAYS[way]
    night = _night(slurm, short_path)
    partition = [] if any(word.startswith("--partition") for word in words) else ["--partition=gpu"]
    command = ["salloc", *partition, *words, *night.command(f"--nodes={len(expected)}")]
    done = subprocess.run(command, env=night.environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == FINE, done.stderr
    assert _devices(short_path) == expected


@pytest.mark.parametrize("launch", ["sbatch", "srun"])
def test_from_a_script_or_a_step_too(launch: str, slurm: Slurm, short_path: Path) -> None:
    """Their variables are those of one of four tasks, which has one GPU."""
    night = _night(slurm, short_path)
    words = ["--partition=gpu", *ONE_NODE, "--ntasks-per-node=4", "--gpus-per-task=1", "--time=5"]
    command = night.command("--nodes=1")
    if launch == "sbatch":
        words = ["sbatch", "--wait", *words, f"--output={short_path}/job", f"--wrap={shlex.join(command)}"]
    else:
        words = ["salloc", *words, "srun", "--ntasks=1", *command]
    done = subprocess.run(words, env=night.environment, capture_output=True, text=True, timeout=200, cwd=short_path)
    assert done.returncode == FINE, done.stderr
    assert _devices(short_path) == FOUR


def test_a_job_of_ours_gets_what_its_nodes_have(slurm: Slurm, short_path: Path) -> None:
    """The engine's file says nothing of GPUs, so that the job's are implicit: it is exclusive."""
    night = _night(slurm, short_path, 'partition = "gpu"\n')
    code, _, messages = night.run("--nodes=2")
    assert code == FINE, messages
    assert _devices(short_path) == {"node2": "0,1", "node3": "0,1"}
    assert messages.count("has 4 GPUs on node2 and 2 on node3: 2 of each node are used") == 1


def test_words_of_the_user_for_srun_come_first(slurm: Slurm, short_path: Path) -> None:
    night = _night(slurm, short_path, 'partition = "gpu"\nsrun = ["--gres=gpu:1"]\n')
    code, _, messages = night.run("--nodes=2")
    assert code == FINE, messages
    assert set(_devices(short_path).values()) == {"0"}
