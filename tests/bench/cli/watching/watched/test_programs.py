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

from tests.support.servers import absent_server, free_port

ROOT = Path(__file__).parents[5]
PROGRAMS = Path(__file__).with_name("programs")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SLEEP_NS = 200_000_000
CLOSURE_SLEEPS_NS = 2 * 30_000_000
"""Of the two microbatches of a step in closure.py."""

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

    def sees(self, rank: int) -> tuple[int, int]:
        """Return the rank and the world's size that a rank's file begins with."""
        begin = self.ranks[rank][0]
        return begin["rank"], begin["world_size"]


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def _needs(package: str) -> None:
    if find_spec(package) is None:
        absent_server(f"{package} is not installed (pip install 'parallel-observatory[dev]')")


def test_losses_random_numbers_and_the_code_are_bit_equal_with_dropout_and_data_workers(tmp_path: Path) -> None:
    command = (sys.executable, str(PROGRAMS / "bits.py"))
    alone, watched = _run(*command), Watched(tmp_path, *command)
    assert alone.returncode == watched.done.returncode == 3
    assert len(alone.stdout.splitlines()) == 9
    assert watched.done.stdout == alone.stdout
    assert watched.done.stderr.partition("\n")[2].startswith(alone.stderr)
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


def _launcher(name: str) -> list[str]:
    """Return a launcher's words for two ranks on the CPU."""
    program = str(Path(sys.executable).with_name(name.split()[0]))
    if name == "torchrun":
        return [program, "--standalone", "--nproc-per-node", "2"]
    if name == "accelerate launch":
        words = "launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
        return [program, *words.split(), "--main_process_port", "0"]
    if name == "deepspeed":
        return [program, "--num_gpus", "2", "--master_port", str(free_port())]
    return [sys.executable] if name == "python" else TORCHRUN


@pytest.mark.parametrize(
    ("launcher", "kind", "rule", "ranks"),
    [
        ("python", "accelerate", "optimizer", 1),
        ("python -m torch.distributed.run", "ddp", "optimizer", 2),
        ("torchrun", "ddp", "optimizer", 2),
        ("accelerate launch", "accelerate", "optimizer", 2),
        ("deepspeed", "deepspeed", "deepspeed", 2),
    ],
)
def test_a_launcher_s_ranks_are_one_run_and_its_code_is_as_without_the_watch(
    launcher: str, kind: str, rule: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": str(ranks), "TORCHDYNAMO_DISABLE": "1"}.items():
        monkeypatch.setenv(variable, value)  # DeepSpeed's.
    for package in {"accelerate", "deepspeed"} & {kind}:
        _needs(package)
    program = (str(PROGRAMS / "launched.py"), kind, "3")
    alone, watched = _run(*_launcher(launcher), *program), Watched(tmp_path, *_launcher(launcher), *program)
    assert alone.returncode == watched.done.returncode != 0, watched.done.stderr
    losses = [
        sorted(line for line in done.stdout.splitlines() if line.startswith("rank ")) for done in (alone, watched.done)
    ]
    assert len(losses[0]) == ranks, alone.stderr
    assert losses[0] == losses[1]
    assert [watched.sees(rank) for rank in sorted(watched.ranks)] == [(rank, ranks) for rank in range(ranks)]
    for rank in watched.ranks:
        assert watched.rules(rank) == {rule}
        assert len(watched.column(rank, "step_ns")) == 5
        assert [line["kind"] for line in watched.ranks[rank]] == ["begin", "steps", "end"]


def test_deepspeed_s_engine_makes_a_step_at_its_boundary(tmp_path: Path) -> None:
    _needs("deepspeed")
    watched = Watched(tmp_path, sys.executable, str(PROGRAMS / "engine.py"), str(tmp_path / "store"))
    assert watched.done.returncode == 0, watched.done.stderr
    assert watched.rules(0) == {"deepspeed"}
    assert len(watched.column(0, "step_ns")) == 3


def _as_alone(folder: Path, program: str) -> Watched:
    """Run a program with and without the watch; check its output, its code and that its steps are its optimizer's."""
    command = (sys.executable, str(PROGRAMS / program), str(folder / "output"))
    alone, watched = _run(*command), Watched(folder, *command)
    assert alone.returncode == watched.done.returncode == 0, alone.stderr + watched.done.stderr
    printed, printed_watched = alone.stdout.splitlines(), watched.done.stdout.splitlines()
    assert len(printed) == len(printed_watched)
    assert printed[-1] == printed_watched[-1]  # Lines before may have times; the last one is an exact loss.
    assert list(watched.ranks) == [0]
    assert watched.rules(0) == {"optimizer"}
    assert not [line for line in watched.ranks[0] if line["kind"] == "note"]
    return watched


@pytest.mark.parametrize(
    ("program", "package", "backward_calls"),
    [
        ("trainer.py", "accelerate", [2, 2, 2, 2]),
        ("accumulated.py", "accelerate", [2, 2, 2, 1]),
        ("compiled.py", "torch", [1] * 8),
    ],
)
def test_a_program_has_its_steps_and_prints_the_same_losses(
    program: str, package: str, backward_calls: list[int], tmp_path: Path
) -> None:
    _needs(package)
    assert _as_alone(tmp_path, program).column(0, "backward_calls") == backward_calls


def test_lightning_s_closure_is_divided_into_its_phases(tmp_path: Path) -> None:
    _needs("pytorch_lightning")
    watched = _as_alone(tmp_path, "closure.py")
    assert watched.column(0, "backward_calls") == [2, 2, 2]
    forward_ns, step_ns = watched.column(0, "forward_ns"), watched.column(0, "step_ns")
    assert min(forward_ns) >= CLOSURE_SLEEPS_NS
    for step in (1, 2):  # The sleep is forward alone, and the step holds it once.
        others_ns = sum(watched.column(0, f"{phase}_ns")[step] for phase in ("data", "backward", "optimizer"))
        assert others_ns + CLOSURE_SLEEPS_NS <= step_ns[step]
