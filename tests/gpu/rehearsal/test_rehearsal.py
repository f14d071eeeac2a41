"""A rehearsal on this CPU: checks run real commands in tiny, and leave results, logs and tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.report import REHEARSAL
from tests.gpu.runner import result_of
from tests.gpu.session import ROOT

SHORT = ["leaving", "counters", "single"]
"""`make gpu-rehearsal` tries all."""


def _rehearse(output: Path, names: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    words = ("--rehearse", "--output", str(output), "--only", *names, *words)
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu.first", *words],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a rehearsal of the short checks."""
    output = tmp_path_factory.mktemp("gpu") / "results"
    done = _rehearse(output, SHORT, "--budget", "2000", "--commit", "abc")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return output


@pytest.mark.parametrize("name", SHORT)
def test_a_rehearsed_check_runs_real_commands_and_keeps_its_result(name: str, rehearsed: Path) -> None:
    result = result_of(rehearsed, name)
    assert result is not None
    assert (result.verdict in ("ok", "seen"), result.reason) == (True, "")
    assert (result.commit, result.is_rehearsal) == ("abc", True)
    assert "$ " in (rehearsed / f"{name}.log").read_text()


def test_the_tables_say_that_this_is_no_gpu(rehearsed: Path) -> None:
    for name in ("table.txt", "table.md"):
        assert REHEARSAL in (rehearsed / name).read_text()


def test_a_second_call_repeats_nothing(rehearsed: Path) -> None:
    done = _rehearse(rehearsed, SHORT, "--commit", "abc")
    assert done.stdout.count("has its result") == len(SHORT)
