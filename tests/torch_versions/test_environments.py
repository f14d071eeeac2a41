"""Each version that the project promises has an environment; one that cannot be had, and one that breaks, is a line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.torch_versions.environments import RELEASES, Environment, newest_torch
from tests.torch_versions.run import FAKE_CUDA_RELEASE, breakages, run_parts

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_torch_that_is_promised_has_a_release_to_test() -> None:
    (lowest, below) = re.findall(r"torch>=2\.(\d+),<2\.(\d+)", " ".join(PROJECT["dependencies"]))[0]
    assert list(RELEASES) == [f"2.{minor}" for minor in range(int(lowest), int(below))]


def test_the_makefile_tests_the_oldest_and_the_newest_torch_and_each_python_that_is_promised() -> None:
    makefile = (ROOT / "Makefile").read_text()
    torch = re.findall(r"^TORCH \?= (.*)", makefile, re.MULTILINE)[0].split()
    pythons = re.findall(r"^PYTHONS \?= (.*)", makefile, re.MULTILINE)[0].split()
    (pinned,) = re.findall(r"^torch==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    oldest, *_, newest = RELEASES
    assert torch == [oldest, FAKE_CUDA_RELEASE, newest]
    assert pinned in RELEASES
    promised = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if " 3." in name}
    assert {version.partition("/")[2] for version in pythons} == promised - {"3.11"}


def test_each_environment_has_a_folder_and_a_title_of_its_own() -> None:
    environments = [Environment(torch=torch, python=python) for torch in RELEASES for python in (None, "3.12", "3.13")]
    assert len({environment.folder for environment in environments}) == len(environments)
    assert Environment(torch="2.11", python="3.12").title == "torch 2.11.0, Python 3.12"


@pytest.mark.parametrize("is_ci", [False, True])
def test_an_interpreter_that_is_not_there_is_told(is_ci: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | ({"CI": "1"} if is_ci else {})
    ended = subprocess.run(
        [sys.executable, "-m", "tests.torch_versions.run", "2.11/3.99"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "torch 2.11.0, Python 3.99 is not tested:"
        " no interpreter of Python 3.99 was found on the PATH, nor among pyenv's",
        "nothing was tested",
    ]


def test_without_an_environment_the_peaks_of_memory_are_left_out_of_the_tests_around_them() -> None:
    command = [sys.executable, "-m", "tests.torch_versions.run", "--memory", "2.12/3.99"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0
    assert ended.stderr.splitlines()[-1] == "nothing was tested"


def _write_index(folder: Path, *releases: str) -> None:
    """Files with the names of torch's wheels, which is all that pip reads of an index."""
    for release in releases:
        (folder / f"torch-{release}-py3-none-any.whl").touch()


@pytest.mark.parametrize(
    ("releases", "newest"),
    [
        (["2.11.0", RELEASES["2.12"]], "2.12"),
        ([RELEASES["2.12"], "2.12.9"], "2.12.9"),
        (["99.10.0", "99.9.1", "99.11.0rc1", "100.0.0.dev20300101"], "99.10.0"),
        (["99.1.0+cpu"], "99.1.0"),
    ],
)
def test_the_newest_torch_is_the_indexs(
    releases: list[str], newest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_index(tmp_path, *releases)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert newest_torch() == newest


def test_an_index_without_torch_is_a_line(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.torch_versions.run", "newest"],
        cwd=ROOT,
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert "the newest torch is unknown: " in ended.stderr
    assert "No matching distribution found for torch" in ended.stderr


class FakeEnvironment(Environment):
    """An environment that is the one which runs this."""

    @property
    def executable(self) -> Path:
        return Path(sys.executable)


@pytest.mark.slow
def test_one_line_names_what_a_release_breaks(tmp_path: Path) -> None:
    passing, failing, broken = (tmp_path / f"test_{name}.py" for name in ("passing", "failing", "broken"))
    passing.write_text("def test_a(): pass\n")
    failing.write_text("def test_a(): raise RuntimeError('renamed')\ndef test_b(): assert False\ndef test_c(): pass\n")
    broken.write_text("import nothing_of_this_name\n")
    parts = {path.stem.removeprefix("test_"): [str(path)] for path in (passing, failing, broken)}
    lines = list(run_parts(FakeEnvironment(torch="99.1.0", python="3.11"), parts))
    assert [line.first_failure is None for line in lines] == [True, False, False]
    (breakage,) = breakages(lines)
    first = re.escape(f"{failing.relative_to(tmp_path)}")
    assert re.fullmatch(
        r"torch 99\.1\.0, Python 3\.11 breaks"
        rf" failing \(2 failed, 1 passed in [^;]*; first: \S*{first}::test_a - RuntimeError: renamed\),"
        r" broken \(1 error in [^;]*; first: \S*test_broken\.py\)",
        breakage,
    )


def test_a_torch_that_is_not_promised_is_refused() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.torch_versions.run", "2.9"], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stderr.endswith(f'torch "2.9" is not tested; it may be {", ".join(RELEASES)} or newest\n')
