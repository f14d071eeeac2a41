"""The plugin on made-up checks: verdicts, limits, what a second call does, the budget, and the table."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
import psutil
import pytest

from tests.gpu.programs import ROOT
from tests.gpu.results import Result, Run, pytest_configure

CHECKS = '''
import os, subprocess, sys, time
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.timeout(20)]

SLEEPER = "import os, sys, time; os.setsid(); open('pid', 'w').write(str(os.getpid())); time.sleep(600)"

def test_fine(gpu):
    """Tells how fast."""
    gpu.within("rate", 3, low=2, high=4, unit="GB/s", source="PCI|e")
    gpu.figure("step", 12.5, "ms", key="step_ms")

def test_seen(gpu):
    gpu.figure("earlier", gpu.earlier("fine")["step_ms"])

def test_off(gpu):
    gpu.within("rate", float("nan"), low=2, source="a book")
    gpu.holds("word", True, seen="a", expected="a", source="a book")

def test_breaks(gpu):
    gpu.figure("before", 1)
    raise KeyError("a key")

def test_empty(gpu):
    pass

@pytest.mark.timeout(3)
def test_hangs(gpu):
    gpu.figure("before", 1)
    middle = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])"
    gpu.programs.run((sys.executable, "-c", middle))
    time.sleep(600)

def test_absent(gpu):
    pytest.skip("there is no such part here")

def test_together(gpu):
    long, short = gpu.programs.run(
        (sys.executable, "-c", "import time; time.sleep(1); print('long')"),
        (sys.executable, "-c", "import sys; print('short'); sys.exit(7)"),
    )
    assert (long.out, short.out, short.code) == ("long\\n", "short\\n", 7)
    assert short.elapsed_s < long.elapsed_s
    (missing,) = gpu.programs.run(("no-such-program",))
    assert (missing.code, "no-such-program" in missing.err) == (127, True)
    gpu.figure("programs", 3)

@getattr(pytest.mark, "gpu" + "8")  # Not by its name: this file needs no GPU.
def test_many(gpu):
    gpu.figure("never", 1)
'''


class Calls:
    """Calls of the plugin in one folder."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "results"
        self._folder = folder
        (folder / "test_made.py").write_text(CHECKS)
        (folder / "conftest.py").write_text(
            "from tests.conftest import pytest_collection_modifyitems\n"
            "from tests.gpu.conftest import gpu, pytest_pyfunc_call\n"
        )

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Call pytest, on which no warning of a marker is an error."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.gpu.results",
            "-p",
            "no:cacheprovider",
            "-c",
            "/dev/null",
        ]
        return subprocess.run(
            [*command, "--rootdir=.", "--output", str(self.output), *words, "."],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )

    def result(self, name: str) -> Result:
        """Return the result of a check."""
        return msgspec.json.decode((self.output / f"{name}.json").read_bytes(), type=Result)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Calls, subprocess.CompletedProcess[str]]:
    """A call that runs all checks."""
    calls = Calls(tmp_path_factory.mktemp("made"))
    return calls, calls.call("--commit", "abc")


First = tuple[Calls, subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("name", "verdict", "reason"),
    [
        ("fine", "ok", ""),
        ("seen", "seen", ""),
        ("off", "off", ""),
        ("breaks", "failed", "KeyError: 'a key'"),
        ("empty", "failed", "AssertionError: the check found nothing"),
        ("hangs", "timed out", "Failed: Timeout (>3.0s) from pytest-timeout."),
        ("absent", "skipped", "there is no such part here"),
        ("together", "seen", ""),
    ],
)
def test_each_way_to_end_has_its_verdict_and_reason(name: str, verdict: str, reason: str, first: First) -> None:
    calls, done = first
    result = calls.result(name)
    assert (result.verdict, result.reason) == (verdict, reason), done.stdout[-3000:]
    assert (result.commit, result.is_rehearsal) == ("abc", False)


def test_findings_before_an_end_are_kept(first: First) -> None:
    for name in ("breaks", "hangs"):
        assert [row.what for row in first[0].result(name).findings] == ["before"]


def test_a_later_check_reads_the_values_of_an_earlier_one(first: First) -> None:
    assert [row.value for row in first[0].result("seen").findings] == [12.5]


def test_nothing_that_a_check_started_outlives_it(first: First) -> None:
    pid = int((first[0].output / "work" / "hangs" / "pid").read_text())
    assert not psutil.pid_exists(pid)


def test_a_log_has_what_was_started_and_found(first: First) -> None:
    log = (first[0].output / "together.log").read_text()
    assert "$ no-such-program" in log
    assert "code 7 after" in log


def test_the_table_has_each_finding_with_its_bound_and_source(first: First) -> None:
    text = (first[0].output / "table.md").read_text()
    assert "| fine | Tells how fast. |" in text
    assert "|  | rate | 3 GB/s | at least 2 and at most 4 GB/s | ok | PCI\\|e |" in text
    assert "9 checks: 1 off, 2 failed, 1 timed out, 1 ok, 2 seen, 2 skipped; 0 not run" in text
    assert re.search(r"^- commit: abc", text, re.MULTILINE)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {7}


def test_too_few_gpus_are_the_reason_to_skip(first: First) -> None:
    assert first[0].result("many").reason.startswith("needs 8 NVIDIA GPUs, and torch can use")


def test_a_second_call_runs_only_what_was_skipped_and_fails_still(first: First) -> None:
    calls, done = first
    assert done.returncode == 1
    again = calls.call("--commit", "abc")
    assert again.returncode == 1
    assert "2 skipped, 7 deselected" in again.stdout
    assert calls.call("--commit", "abc", "-k", "fine or seen").returncode == 0


def test_another_commit_and_a_rehearsal_use_no_result(first: First) -> None:
    run = Run(output=first[0].output, device="cuda", commit="abc", until_s=0.0)
    assert run.is_done("fine")
    assert not replace(run, commit="def").is_done("fine")
    assert not replace(run, device="cpu").is_done("fine")


def test_a_small_budget_leaves_all(first: First) -> None:
    done = first[0].call("--commit", "def", "-k", "fine or hangs", "--budget", "1")
    assert (done.returncode, "left for another call: fine, hangs" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize("budget", [0.0, -5.0, float("nan"), float("inf")])
def test_a_budget_without_an_end_or_a_beginning_is_refused(budget: float, tmp_path: Path) -> None:
    options = argparse.Namespace(collectonly=False, budget=budget, output=tmp_path)
    with pytest.raises(pytest.UsageError, match=f"--budget {budget:g}: it may be any number of seconds above 0"):
        pytest_configure(cast(pytest.Config, argparse.Namespace(option=options)))


def test_an_output_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    calls = Calls(tmp_path)
    calls.output.write_text("")
    done = calls.call()
    assert done.returncode == 4
    assert f"{calls.output} cannot be made: File exists; choose another --output" in done.stderr
