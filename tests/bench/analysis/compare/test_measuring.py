"""`observatory compare --ab` and `--aa` with real ranks: option sets, checkouts, and the noise of a suite."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.case import why_ad_hoc
from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED
from bench.store.history import History
from bench.store.summary import Summary
from tests.bench.made.fake_suites import TINY_SHAPE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
SMALL = [
    *("--layers=1", "--width=16", "--heads=2", "--kv-heads=1", "--mlp-width=32", "--vocabulary=32", "--sequence=8"),
    *("--device=cpu", "--steps=3", "--warm-up=1", "--trace-steps=0"),
]
SUITE = f"""
schema_version = 1
[defaults]
device = "cpu"
trials = 2
steps = 3
warm_up = 1
trace_steps = 0
{TINY_SHAPE}
[case.single]
ranks = 1
batch = 2
[case.large]
strategy = "ddp"
ranks = 2
needs = {{ nodes = 99 }}
[case.drill]
strategy = "ddp"
ranks = 2
inject = "raise@1:2"
expect = {{ outcome = "failed" }}
"""


def _start(home: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "bench", "compare", *words],
        env={**os.environ, "XDG_DATA_HOME": str(home), "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _compare(home: Path, *words: str) -> tuple[int, str, str]:
    process = _start(home, *words)
    out, err = process.communicate(timeout=280)
    return process.returncode, out, err


def _runs(home: Path) -> list[Summary]:
    with History(f"sqlite:///{home}/parallel-observatory/history.sqlite") as history:
        return list(reversed(history.runs(limit=100)))


def _step(found: dict[str, Any]) -> dict[str, Any]:
    (compared,) = found["compared"]
    (step,) = [one for one in compared["figures"] if one["metric"] == "observatory_run_step_seconds"]
    return dict(step)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def told(home: Path) -> tuple[int, str, str]:
    """What a comparison of two options said."""
    words = ("--ab=ddp", "--ranks=2", "--trials=2", "--a=bucket_mb=1", "--b=bucket_mb=25", "--format=json")
    return _compare(home, *words, *SMALL)


def test_two_options_are_compared_in_pairs_of_trials(told: tuple[int, str, str]) -> None:
    code, out, err = told
    assert code == FINE, err
    found = json.loads(out)
    (compared,) = found["compared"]
    assert (compared["in_turn"], compared["differences"]) == (True, ["option bucket_mb 1.0 -> 25.0"])
    step = _step(found)
    assert step["paired"]
    assert len(step["a"]["trials"]) == len(step["b"]["trials"]) == 2
    assert found["a"].startswith("ddp on 2, bucket_mb=1 (run ")


def test_the_sides_take_turns_and_every_other_time_in_reverse(told: tuple[int, str, str]) -> None:
    lines = [line[:1] for line in told[2].splitlines() if " begins, " in line]
    assert lines == ["A", "B", "B", "A"]


def test_the_runs_are_kept_as_ad_hoc(home: Path, told: tuple[int, str, str]) -> None:
    a, b = _runs(home)
    assert (a.in_turn_with, b.in_turn_with) == ((b.run,), (a.run,))
    assert a.purpose.note == "compare --ab: A, ddp on 2, bucket_mb=1"
    assert "it has a note" in why_ad_hoc(a.case, a.purpose)


def test_the_runs_can_be_compared_again(home: Path, told: tuple[int, str, str]) -> None:
    a, b = _runs(home)
    code, out, err = _compare(home, a.run, b.run, "--format=json")
    assert code == FINE, err
    assert _step(json.loads(out)) == _step(json.loads(told[1]))


def test_sides_are_measured_without_a_store_that_is_down_and_stay_in_their_folders(tmp_path: Path) -> None:
    words = ("--ab=ddp", "--ranks=2", "--trials=2", "--a=bucket_mb=1", "--b=bucket_mb=25", "--format=json")
    code, out, err = _compare(tmp_path, *words, *SMALL, "--store=postgresql://127.0.0.1:1/nowhere")
    assert code == INFRASTRUCTURE
    assert "the comparison continues, and its results stay in the run folders" in err
    assert len(_step(json.loads(out))["a"]["trials"]) == 2
    assert len(list((tmp_path / "parallel-observatory" / "runs").glob("*/summary.json"))) == 2


def test_two_checkouts_are_compared_each_by_its_own_code(tmp_path: Path) -> None:
    """B's ranks sleep in each step: its own code is what they run."""
    for name in "ab":
        for package in ("bench", "collectors", "dashboards", "workloads"):
            shutil.copytree(ROOT / package, tmp_path / name / package, ignore=shutil.ignore_patterns("__pycache__"))
    trainer = tmp_path / "b" / "workloads" / "core" / "trainer.py"
    line = "            self.optimizer.zero_grad()\n"
    text = trainer.read_text()
    assert text.count(line) == 1
    trainer.write_text(text.replace(line, f"            __import__('time').sleep(0.2)\n{line}"))
    sides = (f"--checkout-a={tmp_path / 'a'}", f"--checkout-b={tmp_path / 'b'}")
    words = ("--ab=single", "--trials=2", "--batch=2", *sides, "--format=json")
    code, out, err = _compare(tmp_path, *words, *SMALL)
    assert code == FINE, err
    step = _step(json.loads(out))
    assert min(step["b"]["trials"]) > 0.2
    assert step["value"] > 1
    assert f"A: its ranks run from checkout {tmp_path / 'a'}" in err


def test_what_is_complete_is_compared_where_a_person_ends_it(tmp_path: Path) -> None:
    process = _start(tmp_path, "--ab=single", "--trials=50", "--a=batch=2", "--b=batch=4", *SMALL)
    assert process.stderr is not None
    lines = [
        next(line for line in process.stderr if line.startswith("B") and f"trial {number} " in line)
        for number in (1, 3)
    ]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert process.returncode == INTERRUPTED, (lines, err)
    assert "median step" in out
    a, b = _runs(tmp_path)
    assert (a.outcome, b.outcome) == ("interrupted", "interrupted")
    assert min(a.trials_done, b.trials_done) >= 2


def test_a_suite_is_measured_twice_and_its_noise_is_told(tmp_path: Path) -> None:
    suite = tmp_path / "tiny.toml"
    suite.write_text(SUITE)
    code, out, err = _compare(tmp_path, f"--aa={suite}", "--format=json")
    found = json.loads(out)
    assert code == CASE_FAILED, err  # One case cannot run here.
    assert {one["case"] for one in found["series"]} == {"single"}
    (step,) = [one for one in found["series"] if one["metric"] == "observatory_run_step_seconds"]
    assert step["trial_deviation_ratio"] > 0
    assert step["in_turn_change_ratio"] > step["trial_deviation_ratio"]
    assert step["night_deviation_ratio"] is None
    assert step["reason"] == "0 nights in the history, but 3 are needed"
    assert found["false_differences"]["tested"] >= 3
    assert sorted(found["missing"])[0] == "drill is a fire drill and is left out"
    assert any(line.startswith("large cannot run here: it needs 99 nodes") for line in found["missing"])
    runs = _runs(tmp_path)
    assert [run.trials_done for run in runs] == [2, 2]
    assert runs[0].purpose.note == "compare --aa tiny: single, first"
    assert runs[0].in_turn_with == (runs[1].run,)
