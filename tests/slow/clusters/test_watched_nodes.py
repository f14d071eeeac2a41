"""`observatory watch` on several nodes: torchrun on two nodes of a box, and srun on two of a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.slow.clusters.nights import wait
from tests.slow.clusters.slurm import Slurm, run_slurm
from tests.support.netbox import INTERFACE, NAMED, NetBox, netbox

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("watched_training.py")
STEPS = 30
TORCHRUN = "-m torch.distributed.run --nnodes 2 --nproc-per-node 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A folder of runs on a file system that all nodes share."""

    folder: Path

    @property
    def words(self) -> list[str]:
        where = ["--name", "job", "--runs", str(self.folder / "runs"), "--store", f"sqlite:///{self.folder}/h.sqlite"]
        return [sys.executable, "-P", "-m", "bench", "watch", *where, "--"]

    @property
    def program(self) -> list[str]:
        return [sys.executable, str(PROGRAM), str(self.folder / "rendezvous")]

    def runs(self) -> list[dict[str, Any]]:
        """The summaries of all runs, in order of their nodes."""
        found = [json.loads(path.read_text()) for path in (self.folder / "runs").glob("*/summary.json")]
        return sorted(found, key=lambda summary: [rank["rank"] for rank in summary["watched"]["ranks"]])


def _environment(**variables: str) -> dict[str, str]:
    quiet = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **quiet, **variables}


def _ranks(summary: dict[str, Any]) -> list[int]:
    return [rank["rank"] for rank in summary["watched"]["ranks"]]


@pytest.fixture(scope="module")
def box() -> Iterator[NetBox]:
    with netbox(nodes=2) as box:
        yield box


def _torchrun(node: int, box: NetBox, watch: Watch, port: int) -> list[str]:
    place = f"--node-rank {node} --master-addr {box.nodes[0].address} --master-port {port}"
    return [sys.executable, *TORCHRUN.split(), *place.split(), *watch.program[1:]]


def test_a_launcher_that_reaches_both_nodes_makes_one_run(box: NetBox, tmp_path: Path) -> None:
    watch = Watch(folder=tmp_path)
    first, second = (" ".join(_torchrun(node, box, watch, 29400)) for node in range(2))
    namespace = NAMED / box.nodes[1].namespace
    both = f"nsenter --net={namespace} {second} & {first}; code=$?; wait $! || code=$?; exit $code"
    process = box.run_in(
        0, [*watch.words, "sh", "-c", both],
        cwd=ROOT, env=_environment(GLOO_SOCKET_IFNAME=INTERFACE), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    printed, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert sorted(line.partition(":")[0] for line in printed.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    (summary,) = watch.runs()
    assert _ranks(summary) == [0, 1]
    assert summary["watched"]["missing"] == 0
    assert summary["case"]["nodes"] == 2


def test_a_watch_on_each_node_keeps_its_ranks_and_says_which_are_missing(box: NetBox, tmp_path: Path) -> None:
    watch = Watch(folder=tmp_path)
    processes = [
        box.run_in(
            node, [*watch.words, *_torchrun(node, box, watch, 29401)],
            cwd=ROOT, env=_environment(GLOO_SOCKET_IFNAME=INTERFACE), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]  # fmt: skip
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
    summaries = watch.runs()
    assert [_ranks(summary) for summary in summaries] == [[0], [1]]
    assert [summary["watched"]["missing_ranks"] for summary in summaries] == [[1], [0]]
    assert [any("no steps of 1 rank" in note for note in summary["notes"]) for summary in summaries] == [True, True]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with run_slurm(2) as slurm:
        yield slurm


def _slurm_environment(slurm: Slurm) -> dict[str, str]:
    return _environment(SLURM_CONF=slurm.environment["SLURM_CONF"])


SRUN = ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]


def test_the_tasks_of_srun_on_two_nodes_are_one_run_with_srun_s_own_code(slurm: Slurm, tmp_path: Path) -> None:
    watch = Watch(folder=tmp_path)
    done = subprocess.run(
        [*watch.words, *SRUN, *watch.program, "7"],
        cwd=ROOT, env=_slurm_environment(slurm), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert sorted(line.partition(":")[0] for line in done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    (summary,) = watch.runs()
    assert _ranks(summary) == [0, 1]
    assert {rank["steps"] for rank in summary["watched"]["ranks"]} == {STEPS}
    assert summary["watched"]["missing"] == 0
    wait(lambda: not slurm.jobs())


def test_within_a_batch_script_the_watch_stands_around_srun(slurm: Slurm, tmp_path: Path) -> None:
    watch = Watch(folder=tmp_path)
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\ncd {ROOT}\nexec {' '.join([*watch.words, *SRUN, *watch.program])}\n")
    words = ["sbatch", "--nodes=2", f"--output={tmp_path}/job.out", str(script)]
    subprocess.run(words, env=_slurm_environment(slurm), check=True, capture_output=True, timeout=60)
    wait(lambda: not slurm.jobs())
    output = (tmp_path / "job.out").read_text()
    assert output.count("of 2: ") == 2, output
    assert "steps are those of the optimizer" in output
    (summary,) = watch.runs()
    assert _ranks(summary) == [0, 1]
    assert (summary["outcome"], summary["watched"]["missing"]) == ("done", 0)


def test_a_cancelled_job_keeps_what_its_ranks_wrote(slurm: Slurm, tmp_path: Path) -> None:
    watch = Watch(folder=tmp_path)
    forever = tmp_path / "forever.py"
    forever.write_text(
        "import time, torch\noptimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)\n"
        "while True:\n    optimizer.step()\n    time.sleep(0.01)\n"
    )
    with subprocess.Popen(
        [*watch.words, "srun", "--nodes=1", sys.executable, str(forever)],
        cwd=ROOT, env=_slurm_environment(slurm), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        wait(lambda: any(b'"steps"' in path.read_bytes() for path in tmp_path.glob("runs/*/watch_rank0.jsonl")))
        (job,) = slurm.jobs()
        slurm.call("scancel", job)
        _, errors = process.communicate(timeout=100)
    assert process.returncode != 0
    assert "rank" in errors
    (summary,) = watch.runs()
    assert summary["outcome"] == "failed"
    assert summary["watched"]["ranks"][0]["steps"] > 0


def test_sbatch_is_refused_since_it_returns_before_its_job_begins(slurm: Slurm, tmp_path: Path) -> None:
    watch = Watch(folder=tmp_path)
    done = subprocess.run(
        [*watch.words, "sbatch", str(tmp_path / "job.sh")],
        cwd=ROOT, env=_slurm_environment(slurm), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 2
    assert "sbatch returns before its job begins" in done.stderr
    assert slurm.jobs() == []
    assert not (tmp_path / "runs").exists()
