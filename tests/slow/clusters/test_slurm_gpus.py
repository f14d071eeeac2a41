"""GPUs of a real Slurm, in each way in which people ask for them: an agent gets what the job has on its node."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.case import Case
from bench.errors import FINE, MISUSE
from bench.store.run_dir import load
from collectors.sample_log import Opened, read
from tests.bench.made.examples import small_case
from tests.slow.clusters.nights import defaults
from tests.slow.clusters.slurm import Slurm, run_slurm
from tests.slow.clusters.slurm_nights import SETTINGS, SlurmNight
from tests.support.nvml.library import build, fake_node
from tests.support.nvml.scenes import H100, node_of

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(300)]

SUITE = f"{defaults(trials=1)}[case.ddp]\nranks = 2\n"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """Five nodes. node2 has four GPUs, node3 two, node4 three MIG instances: device files, which Slurm binds."""
    with run_slurm(5) as slurm:
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
    "MIG instances": (("--nodes=1", "--nodelist=node4", "--gres=gpu:1g.10gb:2"), {"node4": "0,1"}),
    "MIG instances, no word of them": (("--nodes=1", "--nodelist=node4", "--exclusive"), {"node4": "0,1,2"}),
    "a heterogeneous job, whose first component is used": (
        (*ONE_NODE, "--gres=gpu:4", ":", "-p", "gpu", "--nodes=1", "--nodelist=node3", "--gres=gpu:2"),
        FOUR,
    ),
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
    assert messages.count("has 4 GPUs on node2 and 2 on node3: 2 per node are used") == 1


def test_words_of_the_user_for_srun_come_first(slurm: Slurm, short_path: Path) -> None:
    night = _night(slurm, short_path, 'partition = "gpu"\nsrun = ["--gres=gpu:1"]\n')
    code, _, messages = night.run("--nodes=2")
    assert code == FINE, messages
    assert set(_devices(short_path).values()) == {"0"}


@pytest.mark.parametrize("request_words", ['gres = "gpu:2"\n', 'salloc = ["--gpus-per-node=2"]\n'])
def test_of_shared_nodes_a_dry_run_counts_the_gpus_that_agents_get(
    request_words: str, slurm: Slurm, short_path: Path
) -> None:
    night = _night(slurm, short_path, f'partition = "gpu"\nexclusive = false\n{request_words}')
    words = night.command("--nodes=2", "--dry-run")
    done = subprocess.run(words, env=night.environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == FINE, done.stderr
    assert json.loads(done.stdout)["cluster"]["gpus"] == ["GPU"] * 2
    code, _, messages = night.run("--nodes=2")
    assert code == FINE, messages
    assert set(_devices(short_path).values()) == {"0,1"}


# Ranks that Slurm starts itself, as docs/reference/cli.md shows it.

RANK = (
    "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE"
    f" MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 exec {sys.executable} -P -m bench.session.torchrun"
)


def _srun_ranks(
    slurm: Slurm, folder: Path, case: Case, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Start each rank of a case as a task that has one GPU of node2."""
    (folder / "case.json").write_bytes(msgspec.json.encode([{"case": case}]))
    script = f"{RANK} {folder}/case.json --folder {folder}/run"
    words = ["--partition=gpu", *ONE_NODE, f"--ntasks-per-node={case.ranks}", "--gpus-per-task=1"]
    return subprocess.run(
        ["salloc", *words, "srun", "sh", "-c", script],
        env={**environment, "SLURM_CONF": slurm.environment["SLURM_CONF"]},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip


def _opened(folder: Path, rank: int) -> Opened:
    (opened,) = (record for record in read(folder / f"run/rank{rank}.jsonl").records if isinstance(record, Opened))
    return opened


def test_ranks_that_slurm_starts_measure_a_case(slurm: Slurm, short_path: Path) -> None:
    done = _srun_ranks(slurm, short_path, small_case("ddp", 2), os.environ)
    assert done.returncode == FINE, done.stderr
    assert load(short_path / "run").trials_done == 1


def test_each_rank_that_slurm_gives_one_gpu_is_bound_to_the_cores_of_that_gpu(slurm: Slurm, short_path: Path) -> None:
    """CUDA shows it as number 0, whatever the rank's place. The ranks end where they start CUDA, which torch lacks."""
    cpus = sorted(os.sched_getaffinity(0))
    near = {f"{gpu}.CpuAffinity": str(cpu) for gpu, cpu in enumerate((cpus[0], cpus[-1]) * 2)}
    node = fake_node(short_path / "nvml", build(short_path / "library"), {**node_of(*[H100] * 4), **near})
    case = replace(small_case("ddp", 4), device="cuda", bind=True)
    done = _srun_ranks(slurm, short_path, case, node.environment())
    assert "torch is built without CUDA" in (short_path / "run/rank3.jsonl").read_text(), done.stderr
    assert [_opened(short_path, rank).cpus for rank in range(4)] == [str(cpus[0]), str(cpus[-1])] * 2


def test_a_users_variable_beside_slurms_is_refused_where_it_shows_the_gpu_of_another_job(
    slurm: Slurm, short_path: Path
) -> None:
    node = fake_node(short_path / "nvml", build(short_path / "library"), node_of(*[H100] * 4))
    script = f"export CUDA_VISIBLE_DEVICES=2,3; exec {sys.executable} -P -m bench run ddp --device cuda --dry-run"
    done = subprocess.run(
        ["salloc", "--partition=gpu", *ONE_NODE, "--gres=gpu:2", "srun", "sh", "-c", script],
        env={**node.environment(), "SLURM_CONF": slurm.environment["SLURM_CONF"]},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert (
        'CUDA_VISIBLE_DEVICES is "2,3" and shows GPU 2, 3, but Slurm gave this process GPU 0, 1 (SLURM_STEP_GPUS)'
        in done.stderr
    )
    assert done.returncode == MISUSE


@pytest.mark.timeout(600)
def test_the_shipped_smoke_suite_passes_in_a_job_with_a_gpu_for_each_task(slurm: Slurm, short_path: Path) -> None:
    """On the CPU: Slurm's GPUs here are device files, and CI's torch is built without CUDA."""
    night = _night(slurm, short_path)
    command = night.command("--nodes=1", "--set", "defaults.device=cpu", suite="smoke")
    words = ["salloc", "--partition=gpu", *ONE_NODE, "--ntasks-per-node=4", "--gpus-per-task=1", *command]
    done = subprocess.run(words, env=night.environment, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == FINE, done.stderr
    ran = [case for case in json.loads(done.stdout)["cases"] if case["outcome"] != "left_out"]
    assert len(ran) > 15
    assert {case["outcome"] for case in ran} == {"done"}
    assert _devices(short_path) == FOUR
