"""Preparing a machine and starting the checks: exit codes, wheels, Ctrl-C, a rehearsal, and what the page says."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import msgspec
import psutil
import pytest

from tests.gpu import start
from tests.gpu.programs import ROOT
from tests.gpu.results import REHEARSAL, Result, Verdict
from tests.gpu.test_first import marked_files
from tests.support.markers import usable_gpus

pytestmark = pytest.mark.slow

MEASURED = ROOT / "docs" / "measured"
PAGE = (MEASURED / "README.md").read_text()
_START = [sys.executable, "-m", "tests.gpu.start"]


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(usable_gpus() > 0, reason="there is a GPU")
def test_a_machine_without_a_gpu_is_refused_in_one_line(tmp_path: Path) -> None:
    done = _run(*_START, "--output", str(tmp_path / "out"))
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert "no GPU is visible" in line
    assert not (tmp_path / "out").exists()


def test_a_python_without_torch_is_refused_in_one_line() -> None:
    text = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.gpu.start import main; sys.exit(main([]))"
    done = _run(sys.executable, "-I", "-S", "-c", text)
    assert (done.returncode, done.stdout) == (4, "")
    assert "has no torch; choose another Python by `make gpu PYTHON=...`" in done.stderr


def test_only_what_is_missing_is_installed() -> None:
    installed = {"numpy", "sqlalchemy", "pynvml", "click"}
    missing = start.missing_packages(lambda module: module in installed)
    assert {"numpy", "SQLAlchemy", "nvidia-ml-py", "click"}.isdisjoint(missing)
    assert {"rich", "markdown-it-py", "pytest-timeout", "msgspec"} <= set(missing)
    assert start.missing_packages(lambda module: importlib.util.find_spec(module) is not None) == []


def test_every_package_of_the_list_is_pinned() -> None:
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert set(start.packages()) <= pinned


def test_the_checks_and_the_marked_tests_load_nothing_that_is_not_carried(tmp_path: Path) -> None:
    from_torch = ("torch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec", "setuptools")
    for name in (*start.packages(), *from_torch):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (tmp_path / top).exists():
                (tmp_path / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    files = [f"tests/gpu/test_{name}.py" for name in start.FILES]
    done = subprocess.run(
        [
            *(sys.executable, "-S", "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"),
            *("-m", "gpu or gpu2 or gpu8", *files, *marked_files("collectors"), *marked_files("workloads")),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_an_empty_folder_of_wheels_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        start.install(["no-such-package"], tmp_path / "wheels", tmp_path / "venv")


def test_a_name_that_no_check_has_is_refused(tmp_path: Path) -> None:
    assert _run(*_START, "--rehearse", "-k", "speeed", "--output", str(tmp_path)).returncode == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--budget", "60"), "a budget of 60 s fits no check, which may take 60 s; give at least 83 s (BUDGET=83)"),
        (("--rehearse", "--budget=140"), "fits no check of a rehearsal, which may take 360 s; give at least 383 s"),
    ],
)
def test_a_budget_that_fits_no_check_is_refused_before_torch_is_loaded(words: tuple[str, ...], said: str) -> None:
    text = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.gpu.start import main; sys.exit(main({words}))"
    done = _run(sys.executable, "-I", "-S", "-c", text)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_other_budgets_are_left_to_pytest() -> None:
    for words in ([], ["--budget", "540"], ["--budget", "-5"], ["--budget", "x"], ["--collect-only", "--budget", "1"]):
        assert start.why_too_short(words) is None


def test_each_check_has_the_limit_that_a_budget_is_judged_by() -> None:
    for path in (ROOT / "tests" / "gpu").glob("test_*.py"):
        limits = re.findall(r"mark\.timeout\((\d+)\)", path.read_text())
        assert [float(limit) for limit in limits] == [start.CHECK_S]


def test_the_list_shows_every_file_of_checks_and_runs_none() -> None:
    done = _run(*_START, "--collect-only", "-q")
    assert done.returncode == 0
    listed = {Path(line.partition("::")[0]).name for line in done.stdout.splitlines() if "::" in line}
    assert listed == {path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    order = [re.split(r"::test_|\[", line)[1] for line in done.stdout.splitlines() if "::" in line]
    assert list(dict.fromkeys(order))[:6] == ["versions", "fork", "single", "selfring", "window", "faults"]


def test_no_check_may_take_more_than_a_minute() -> None:
    for path in (ROOT / "tests" / "gpu").glob("test_*.py"):
        limits = re.findall(r"mark\.timeout\((\d+)\)", path.read_text())
        assert limits
        assert max(map(int, limits)) <= 60


def test_ctrl_c_ends_what_runs_and_leaves_the_table(tmp_path: Path) -> None:
    words = [*_START, "--rehearse", "-k", "test_single and half", "--output", str(tmp_path)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        until = time.monotonic() + 100
        while not (tmp_path / "work").exists() and time.monotonic() < until:
            time.sleep(0.05)
        while not (children := psutil.Process(running.pid).children(recursive=True)) and time.monotonic() < until:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        output, _ = running.communicate(timeout=100)
    assert running.returncode == 130, output[-2000:]
    _, left = psutil.wait_procs(children, timeout=10)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
    assert (tmp_path / "table.md").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["single-half", "leaving", "counters"])  # `make gpu-rehearsal` runs all.
def test_a_rehearsed_check_runs_real_commands_and_keeps_its_result(name: str, tmp_path: Path) -> None:
    words = ("--rehearse", "--output", str(tmp_path), "-k", name.replace("-", " and "), "--budget", "2000")
    done = _run(*_START, *words, "--commit", "abc")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    result = msgspec.json.decode((tmp_path / f"{name}.json").read_bytes(), type=Result)
    assert (result.verdict, result.reason, result.is_rehearsal) == ("seen", "", True)
    assert "$ " in (tmp_path / f"{name}.log").read_text()
    assert REHEARSAL in (tmp_path / "table.md").read_text()


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
    python = fetching if pip == "./pip" else pip
    done = _run("make", "--silent", "gpu-wheels", f"GPU_WHEELS={wheels}", f"PYTHON={python}")
    assert (done.returncode == 0) == (left == ["new.whl"]), done.stderr
    assert [path.name for path in wheels.iterdir()] == left
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pip", "wheels"]


def test_the_page_explains_every_verdict_and_its_words_are_understood() -> None:
    assert sorted(re.findall(r"^\| `([a-z ]+)` \|", PAGE, re.MULTILINE)) == sorted(get_args(Verdict))
    words = [word for words in re.findall(r'MORE="([^"]*)"', PAGE) for word in shlex.split(words)]
    assert {"--collect-only", "-q", "-k", "--commit"} <= set(words)
    done = _run(*_START, "--collect-only", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "at most 540 s" in " ".join(PAGE.split())
    assert "BUDGET ?= 540\n" in (ROOT / "Makefile").read_text()


def test_a_table_on_the_pages_is_of_a_gpu_and_others_are_listed() -> None:
    tables = [path for path in MEASURED.glob("*.md") if re.match(r"\d+-", path.name)]
    for path in tables:
        text = path.read_text()
        assert REHEARSAL not in text
        assert re.search(r"^- commit: [0-9a-f]{7,}", text, re.MULTILINE)
    assert ("No GPU has been measured yet" in PAGE) == (not tables)
    for path in MEASURED.glob("*.md"):
        if path not in tables and path.name != "README.md":
            assert f"| [{path.name}]({path.name}) |" in PAGE.partition("## GPU machines")[0]
