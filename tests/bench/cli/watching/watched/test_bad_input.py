"""Scripts that do what nobody expects under watch: each runs to its own end, and one line says what is not recorded."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main

pytestmark = pytest.mark.slow

LOOP = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    print("trained", flush=True)
"""
NOBODY = 65534


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A script that was watched. said: lines of ours on standard error. ranks: lines of its ranks' files."""

    code: int
    printed: list[str]
    said: list[str]
    errors: str
    ranks: dict[int, list[dict[str, Any]]]

    def steps(self, rank: int = 0) -> int:
        return sum(len(line["step_ns"]) for line in self.ranks[rank] if line["kind"] == "steps")


@pytest.fixture
def watch(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    def watch(script: str, **variables: str) -> Done:
        for name, value in {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "train.py").write_text(script)
        where = ("--runs", str(tmp_path / "runs"), "--store", f"sqlite:///{tmp_path}/history.sqlite")
        code = main.run(["watch", *where, "--", sys.executable, str(tmp_path / "train.py")])
        printed, errors = capfd.readouterr()
        ranks = {
            int(path.stem.removeprefix("watch_rank")): [json.loads(line) for line in path.read_text().splitlines()]
            for path in (tmp_path / "runs").glob("*/watch_rank*.jsonl")
        }
        said = errors.splitlines()
        runs = [f"run {run.name}: {run}" for run in (tmp_path / "runs").iterdir()]
        assert said[-1:] == (runs or ["no process reported anything, so the run's folder was removed"])
        assert said[0].startswith("run ")
        return Done(code=code, printed=printed.splitlines(), said=said[1:-1], errors=errors, ranks=ranks)

    return watch


def test_ranks_that_fork_before_torch_is_imported_have_their_own_steps(watch: Callable[..., Done]) -> None:
    done = watch(
        "import os, sys\nchild = os.fork()\nos.environ['RANK'] = '0' if child else '1'\n"
        f"os.environ['WORLD_SIZE'] = '2'\n{LOOP}\ntrain(4 if child else 3)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) + 5 if child else 0)\n"
    )
    assert done.code == 5, done.errors
    assert {rank: done.steps(rank) for rank in done.ranks} == {0: 4, 1: 3}


def test_a_script_without_an_optimizer_is_said_to_have_no_steps(watch: Callable[..., Done]) -> None:
    done = watch(f"{LOOP}\nfor _ in range(3):\n    model(torch.ones(2, 4)).mean().backward()\nprint('by hand')\n")
    assert (done.code, done.printed) == (0, ["by hand"])
    assert [line for line in done.said if "no steps seen" in line] == done.said


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("optimizer.step(); raise SystemExit(6)", 6, "1 step reported; a step time needs two"),
        ("raise SystemExit(6)", 6, "rank 0: no steps seen: this process called backward"),
        ("import os; os._exit(6)", 6, "no process reported a step"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "no process reported a step"),
    ],
)
def test_a_script_that_ends_in_its_first_step_has_its_code_and_one_line(
    end: str, code: int, says: str, watch: Callable[..., Done]
) -> None:
    done = watch(f"{LOOP}\nmodel(torch.ones(2, 4)).mean().backward()\n{end}\n")
    assert done.code == code, done.errors
    (line,) = done.said
    assert line.startswith(says)


def test_a_script_that_raises_in_its_first_step_prints_its_traceback_and_one_line_follows(
    watch: Callable[..., Done],
) -> None:
    done = watch(f"{LOOP}\nmodel(torch.ones(2, 4)).backward()\n")
    assert done.code == 1
    assert "RuntimeError: grad can be implicitly created only for scalar outputs" in done.said[-2]
    assert done.said[-1].startswith("rank 0: no steps seen")


def test_a_script_may_listen_on_any_port(watch: Callable[..., Done]) -> None:
    """The watch opens no socket in the script's process, so that no port is ours."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = watch(
        f"import os, socket\nlistener = socket.create_server(('127.0.0.1', {port}))\n"
        f"{LOOP}\ntrain(3)\nopened = [os.readlink(f'/proc/self/fd/{{fd}}') for fd in os.listdir('/proc/self/fd')"
        " if os.path.exists(f'/proc/self/fd/{fd}') or os.path.islink(f'/proc/self/fd/{fd}')]\n"
        "print(sum(name.startswith('socket:') for name in opened))\n"
    )
    assert (done.code, done.printed) == (0, ["trained", "1"])
    assert done.steps() == 3


def test_a_script_that_closes_all_files_keeps_its_own_file_to_itself(
    watch: Callable[..., Done], tmp_path: Path
) -> None:
    """Its next file has the number that the rank's file had."""
    done = watch(
        f"{LOOP}\nimport os\ntrain(3)\nos.closerange(3, 64)\n"
        f"files = [open({str(tmp_path)!r} + f'/mine{{n}}', 'w') for n in range(16)]\ntrain(3)\n"
    )
    assert (done.code, done.printed) == (0, ["trained", "trained"])
    assert [path.read_text() for path in tmp_path.glob("mine*")] == [""] * 16
    assert any("OSError: the script closed the rank's file" in line for line in done.said)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize(("before", "steps"), [("train(3)", 5), ("", 0)])
def test_a_script_that_becomes_another_user_goes_on(before: str, steps: int, watch: Callable[..., Done]) -> None:
    """Once it is open, the rank's file is written to; another user can open none in a folder of ours."""
    done = watch(f"{LOOP}\nimport os\n{before}\nos.setgid({NOBODY})\nos.setuid({NOBODY})\ntrain(2)\n")
    assert done.code == 0, done.errors
    assert done.printed == ["trained"] * (2 if before else 1)
    assert sum(done.steps(rank) for rank in done.ranks) == steps
    if not steps:
        (line,) = done.said
        assert line.startswith("no process reported a step")
        assert "became another user" in line


def test_a_script_without_a_writable_home_is_watched(watch: Callable[..., Done]) -> None:
    done = watch(f"{LOOP}\ntrain(3)\n", HOME="/proc/nowhere", XDG_CACHE_HOME="/proc/nowhere", TMPDIR="/proc/nowhere")
    assert (done.code, done.printed) == (0, ["trained"])
    assert done.steps() == 3


def test_runs_that_no_home_can_keep_need_another_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", "/proc/nowhere")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    code = main.run(["watch", "--", "touch", str(tmp_path / "started")])
    (line,) = capfd.readouterr().err.splitlines()
    assert code == 4
    assert "--runs" in line
    assert not (tmp_path / "started").exists()


def test_a_torch_that_is_too_old_gives_one_line_and_the_script_runs_on(
    watch: Callable[..., Done], tmp_path: Path
) -> None:
    """A sitecustomize of the script's gives torch an older version's number before it is imported."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('torch.version', {_torch_version()!r})\n"
        "module = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(module)\n"
        "module.__version__ = '2.10.1+cpu'\nsys.modules['torch.version'] = module\n"
    )
    done = watch(f"{LOOP}\nprint(torch.__version__)\ntrain(3)\n", PYTHONPATH=str(site))
    assert (done.code, done.printed) == (0, ["2.10.1+cpu", "trained"])
    assert done.said == ["rank 0: torch 2.10.1+cpu is older than 2.11: not watched"]


def _torch_version() -> str:
    from importlib.util import find_spec

    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).with_name("version.py"))
