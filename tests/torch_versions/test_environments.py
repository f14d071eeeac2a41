"""Each version that the project promises has an environment, and one that cannot be had is told in a line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.torch_versions.environments import RELEASES, Environment

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_torch_that_is_promised_has_a_release_to_test() -> None:
    (lowest, below) = re.findall(r"torch>=2\.(\d+),<2\.(\d+)", " ".join(PROJECT["dependencies"]))[0]
    assert list(RELEASES) == [f"2.{minor}" for minor in range(int(lowest), int(below))]


def test_the_makefile_tests_each_torch_and_each_python_that_is_promised() -> None:
    makefile = (ROOT / "Makefile").read_text()
    torch = re.findall(r"^TORCH \?= (.*)", makefile, re.MULTILINE)[0].split()
    pythons = re.findall(r"^PYTHONS \?= (.*)", makefile, re.MULTILINE)[0].split()
    pins = re.findall(r"^torch==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert sorted([*torch, *pins]) == sorted(RELEASES)
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


def test_a_torch_that_is_not_promised_is_refused() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.torch_versions.run", "2.9"], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stderr.endswith('torch "2.9" is not tested; it may be 2.11, 2.12, 2.13\n')
