"""Preparing a machine: what it lacks is one line and an exit code, and what is installed comes from the folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.gpu import first, start
from tests.gpu.first import command_parser
from tests.gpu.roster import CHECKS
from tests.gpu.session import ROOT
from tests.support.markers import usable_gpus


def _run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(usable_gpus() > 0, reason="there is a GPU")
@pytest.mark.parametrize("module", ["tests.gpu.start", "tests.gpu.first"])
def test_a_machine_without_a_gpu_is_told_so_in_one_line(module: str, tmp_path: Path) -> None:
    done = _run("-m", module, "--output", str(tmp_path / "out"))
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert "no GPU is visible" in line
    assert not (tmp_path / "out").exists()


def test_a_python_without_torch_is_told_so_in_one_line() -> None:
    done = _run("-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {_START}")
    assert (done.returncode, done.stdout) == (4, "")
    assert "has no torch; choose another by `make gpu PYTHON=...`" in done.stderr


_START = "from tests.gpu.start import main; sys.exit(main([]))"


def test_only_what_is_missing_is_installed() -> None:
    there = {"numpy", "sqlalchemy", "pynvml", "click"}
    missing = start.missing_packages(lambda module: module in there)
    assert {"numpy", "SQLAlchemy", "nvidia-ml-py", "click"}.isdisjoint(missing)
    assert {"rich", "markdown-it-py", "pytest-timeout", "msgspec"} <= set(missing)


def test_every_module_of_the_list_is_known_by_the_name_that_is_imported() -> None:
    import importlib.util

    assert start.missing_packages(lambda module: importlib.util.find_spec(module) is not None) == []


def test_every_package_of_the_list_is_pinned() -> None:
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert set(start.packages()) <= pinned


def test_an_empty_folder_of_wheels_is_told_with_what_fills_it(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        start.install(["no-such-package"], tmp_path / "wheels", tmp_path / "venv")


def test_an_unknown_check_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert first.main(["--only", "speeed", "--rehearse"]) == 2
    assert "no check is called speeed; --list shows all" in capsys.readouterr().err


def test_the_list_shows_every_check_and_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert first.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CHECKS)


@pytest.mark.parametrize("budget", ["0", "-5", "nan", "inf", "x"])
def test_a_budget_without_an_end_or_a_beginning_is_refused(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_parser().parse_args(["--budget", budget])
    assert ended.value.code == 2
    assert f"{budget} is no budget; it may be any number of seconds above 0" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    assert first.main(["--rehearse", "--only", "single", "--output", str(tmp_path / "taken")]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path / 'taken'} cannot be written: ")


def test_ctrl_c_ends_what_runs_and_leaves_the_table(tmp_path: Path) -> None:
    words = ["-m", "tests.gpu.first", "--rehearse", "--only", "single", "--output", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        until = time.monotonic() + 100
        while not (children := psutil.Process(running.pid).children(recursive=True)) and time.monotonic() < until:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=100)
    assert children
    assert running.returncode == 130
    assert said == f"interrupted; the same call goes on with what {tmp_path} lacks\n"
    _, left = psutil.wait_procs(children, timeout=10)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
    assert (tmp_path / "table.txt").exists()


@pytest.mark.parametrize(("pip", "left"), [("false", ["old.whl"]), ("./pip", ["new.whl"])])
def test_wheels_stay_until_new_ones_are_whole(pip: str, left: list[str], tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("no make here")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "old.whl").touch()
    fetching = tmp_path / "pip"
    fetching.write_text(f"#!/bin/sh\nmkdir {wheels}.new && touch {wheels}.new/new.whl\n")
    fetching.chmod(0o755)
    words = ["make", "--silent", "gpu-wheels", f"GPU_WHEELS={wheels}", f"PYTHON={fetching if pip == './pip' else pip}"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode == 0) == (left == ["new.whl"]), ended.stderr
    assert [path.name for path in wheels.iterdir()] == left
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pip", "wheels"]
