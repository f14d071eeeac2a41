"""Real programs under `observatory watch`, unedited: each ends as without it, and has its steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[5]
PROGRAMS = Path(__file__).with_name("programs")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SLEEP_NS = 200_000_000

pytestmark = pytest.mark.slow


class Watched:
    """A program that was watched, and its ranks' files."""

    def __init__(self, folder: Path, *command: str) -> None:
        words = ["watch", "--name", "job", "--runs", str(folder / "runs"), "--store", f"sqlite:///{folder}/h.sqlite"]
        self.done = _run(sys.executable, "-m", "bench", *words, "--", *command)
        (run,) = (folder / "runs").iterdir()
        self.ranks = {
            int(path.stem.removeprefix("watch_rank")): [json.loads(line) for line in path.read_text().splitlines()]
            for path in run.glob("watch_rank*.jsonl")
        }

    def column(self, rank: int, name: str) -> list[Any]:
        return [value for line in self.steps(rank) for value in line[name] or []]

    def steps(self, rank: int) -> Iterable[dict[str, Any]]:
        return (line for line in self.ranks[rank] if line["kind"] == "steps")

    def rules(self, rank: int) -> set[str]:
        return {line["rule"] for line in self.steps(rank)}


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_losses_random_numbers_and_the_code_are_bit_equal_with_dropout_and_data_workers(tmp_path: Path) -> None:
    command = (sys.executable, str(PROGRAMS / "bits.py"))
    alone, watched = _run(*command), Watched(tmp_path, *command)
    assert alone.returncode == watched.done.returncode == 3
    assert len(alone.stdout.splitlines()) == 9
    assert watched.done.stdout == alone.stdout
    assert watched.done.stderr.startswith(alone.stderr)
    assert list(watched.ranks) == [0]
    assert len(watched.column(0, "step_ns")) == 8


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_late_rank_shows_in_the_phase_that_sleeps(strategy: str, tmp_path: Path) -> None:
    watched = Watched(tmp_path, *TORCHRUN, str(PROGRAMS / "late.py"), strategy, str(SLEEP_NS / 1e9))
    assert watched.done.returncode == 0, watched.done.stderr
    assert sorted(watched.ranks) == [0, 1]
    for place, phase in enumerate(("data", "forward", "backward", "optimizer"), start=1):
        times_ns = watched.column(1, f"{phase}_ns")
        late, others = times_ns[4 * place : 4 * place + 4], times_ns[4:4] + times_ns[1:4]
        assert min(late) >= SLEEP_NS, phase
        assert min(others) < SLEEP_NS, phase
        for other in {"data", "forward", "optimizer"} - {phase}:
            # What is of other phases did not sleep; backward waits for whoever is late.
            assert min(watched.column(1, f"{other}_ns")[4 * place : 4 * place + 4]) < SLEEP_NS, (phase, other)
    for phase in ("data", "forward", "optimizer"):
        assert min(watched.column(0, f"{phase}_ns")[4:]) < SLEEP_NS, phase
    begin = watched.ranks[1][0]
    assert (begin["rank"], begin["world_size"], begin["backend"], begin["groups"][0]) == (1, 2, "gloo", [0, 1])


def test_ranks_that_a_script_spawns_have_steps_and_their_parent_none(tmp_path: Path) -> None:
    watched = Watched(tmp_path, sys.executable, str(PROGRAMS / "spawned.py"), str(tmp_path / "store"))
    assert watched.done.returncode == 0, watched.done.stderr
    assert {rank: len(watched.column(rank, "step_ns")) for rank in watched.ranks} == {0: 3, 1: 3}


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_deepspeed_s_engine_makes_a_step_at_its_boundary(tmp_path: Path) -> None:
    watched = Watched(tmp_path, sys.executable, str(PROGRAMS / "engine.py"), str(tmp_path / "store"))
    assert watched.done.returncode == 0, watched.done.stderr
    assert watched.rules(0) == {"deepspeed"}
    assert len(watched.column(0, "step_ns")) == 3


@pytest.mark.skipif(find_spec("accelerate") is None, reason="transformers' Trainer needs accelerate")
def test_hugging_face_s_trainer_has_its_steps(tmp_path: Path) -> None:
    watched = Watched(tmp_path, sys.executable, str(PROGRAMS / "trainer.py"), str(tmp_path / "output"))
    assert watched.done.returncode == 0, watched.done.stderr
    assert len(watched.column(0, "step_ns")) == 4
