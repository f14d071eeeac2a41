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

pytestmark = pytest.mark.slow


def _rehearse(output: Path, name: str) -> subprocess.CompletedProcess[str]:
    words = ("--rehearse", "--output", str(output), "--only", name, "--budget", "2000", "--commit", "abc")
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu.first", *words],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all that is rehearsed here."""
    return tmp_path_factory.mktemp("gpu") / "results"


@pytest.mark.parametrize("name", ["single", "leaving", "counters"])  # `make gpu-rehearsal` tries all.
def test_a_rehearsed_check_runs_real_commands_and_keeps_its_result(name: str, output: Path) -> None:
    done = _rehearse(output, name)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    result = result_of(output, name)
    assert result is not None
    assert (result.verdict in ("ok", "seen"), result.reason) == (True, "")
    assert (result.commit, result.is_rehearsal) == ("abc", True)
    assert "$ " in (output / f"{name}.log").read_text()
    for table in ("table.txt", "table.md"):
        assert REHEARSAL in (output / table).read_text(), "the tables say that this is no GPU"
    assert "has its result" in _rehearse(output, name).stdout, "a second call repeats nothing"
