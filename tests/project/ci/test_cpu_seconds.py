"""The plugin counts what a test and its processes compute, not what they wait, and adds it up by file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.ci.second_run import ROOT

_COMPUTES_S = 0.5
_TESTS = {
    "test_computes.py": f"""
import subprocess, sys
def test_here_and_in_a_child():
    burn = "import time\\nwhile time.process_time() < {_COMPUTES_S}: pass"
    exec(burn.replace("process_time()", "process_time() - begin_s"), {{"begin_s": __import__("time").process_time()}})
    subprocess.run([sys.executable, "-c", burn], check=True)
""",
    "test_waits.py": """
import time
def test_sleeps():
    time.sleep(0.5)
""",
}


@pytest.mark.parametrize("processes", [[], ["--numprocesses=2"]], ids=["alone", "shared"])
def test_what_is_computed_counts_where_it_was_computed(tmp_path: Path, processes: list[str]) -> None:
    for name, text in _TESTS.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "--rootdir=.", "-c", "/dev/null", "-o", "cache_dir=cache", "-q"]
    done = subprocess.run(
        [*command, "-p", "tests.project.ci.cpu_seconds", "--cpu-budget=0", *processes, "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    machine = re.search(r"^(\d+) s were computed on this machine meanwhile", done.stdout, re.MULTILINE)
    assert machine is not None, done.stdout
    assert int(machine[1]) >= 2 * _COMPUTES_S
    assert "OVER the budget of 0 s" in done.stdout
    cpu_s = json.loads((tmp_path / "cache/v/observatory/cpu_seconds").read_text())
    assert list(cpu_s) == ["test_computes.py", "test_waits.py"]
    assert cpu_s["test_computes.py"] >= 2 * _COMPUTES_S
