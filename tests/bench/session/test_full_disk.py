"""A disk that fills up while samples are written ends the run in one line, and loses no run that was complete."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.rank.distributed import as_full_disk
from tests.bench.made.fake_suites import TINY_SHAPE
from tests.bench.made.small_disk import on_a_small_disk, within_a_quota

pytestmark = pytest.mark.slow

SMALL = ["--layers=1", "--width=16", "--heads=2", "--kv-heads=1", "--mlp-width=32", "--vocabulary=32", "--sequence=8"]


def test_a_disk_that_fills_up_is_said_in_a_line_and_complete_runs_stay(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    run = [sys.executable, "-P", "-m", "bench", "run", "ddp", "--device=cpu", "--batch=4", *SMALL, "--trials=1"]
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "home")}
    subprocess.run([*run, "--steps=3"], capture_output=True, check=True, env=environment, timeout=120)
    full = subprocess.run(
        on_a_small_disk(disk, *run, "--steps=100000", f"--runs={disk}"),
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert full.returncode == 4
    lines = [line for line in full.stderr.splitlines() if "could not write its log: No space left on device" in line]
    assert len(lines) == 1
    assert "Traceback" not in full.stderr
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "bench", "show", "--format=json"],
        capture_output=True,
        check=True,
        env=environment,
        timeout=120,
    )
    assert [(run["outcome"], run["trials_done"]) for run in json.loads(shown.stdout)] == [("failed", 0), ("done", 1)]


WRITE = """
import sys
from pathlib import Path
import numpy as np
from bench.rank.evidence import EvidenceFile, StepEvidence
from bench.rank.distributed import as_full_disk
disk = Path(sys.argv[1])
try:
    if sys.argv[2] == "archive":  # As a Timeline is saved.
        with (disk / "timeline.npz").open("wb") as file:
            np.savez(file, first=np.arange(20_000), second=np.arange(200_000))
    elif sys.argv[2] == "line":  # The disk fills up in its middle.
        EvidenceFile(disk, 0).write(StepEvidence(step=0, loss=None, sequences=["x" * 500_000]))
    else:
        (disk / "trace.json").write_bytes(bytes(500_000))
except BaseException as error:
    print(type(error).__name__, as_full_disk(error), sep=": ")
"""


@pytest.mark.parametrize("what", ["archive", "line", "trace"])
def test_a_full_disk_is_seen_behind_the_error_of_any_file_of_a_rank(tmp_path: Path, what: str) -> None:
    command = on_a_small_disk(tmp_path, sys.executable, "-c", WRITE, str(tmp_path), what)
    wrote = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "No space left on device" in wrote.stdout.splitlines()[0], wrote.stderr


@pytest.mark.parametrize("what", ["archive", "line", "trace"])
def test_a_full_quota_is_seen_behind_the_error_of_any_file_of_a_rank(tmp_path: Path, what: str) -> None:
    disk = tmp_path / "disk"
    command = within_a_quota(disk, sys.executable, "-c", WRITE, str(disk), what)
    wrote = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Disk quota exceeded" in wrote.stdout.splitlines()[0], wrote.stderr


def test_a_quota_that_fills_up_ends_the_run_in_a_line(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    run = [sys.executable, "-P", "-m", "bench", "run", "ddp", "--device=cpu", "--batch=4", *SMALL, "--trials=1"]
    full = subprocess.run(
        within_a_quota(disk, *run, "--steps=100000", f"--runs={disk}"),
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path / "home")},
        timeout=240,
    )
    assert full.returncode == 4
    lines = [line for line in full.stderr.splitlines() if "could not write its log: Disk quota exceeded" in line]
    assert len(lines) == 1
    assert "Traceback" not in full.stderr


def test_a_full_quota_is_a_full_disk_and_another_error_is_none() -> None:
    full = as_full_disk(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "trace.json"))
    assert str(full) == "Disk quota exceeded: trace.json"
    assert "No space left on device" in str(as_full_disk(RuntimeError("fwrite: No space left on device (28)")))
    assert as_full_disk(PermissionError(errno.EACCES, "Permission denied")) is None


SUITE = f"""
schema_version = 1

[defaults]
device = "cpu"
ranks = 1
{TINY_SHAPE}batch = 4
trials = 1
steps = 3
warm_up = 1
trace_steps = 60
keep_traces = true

[case.traced]
strategy = "single"
"""


def test_a_case_whose_trace_fills_the_disk_goes_on_when_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    (tmp_path / "night.toml").write_text(SUITE)
    words = ["suite", "run", str(tmp_path / "night.toml"), f"--runs={disk}", "--port=0"]
    run = " ".join([sys.executable, "-P", "-m", "bench", *words])
    script = f"{run}; echo code $? >&2; mount -o remount,size=50m {disk} && {run} --resume; echo code $? >&2"
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "home")}
    night = subprocess.run(
        on_a_small_disk(disk, "sh", "-c", script),
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
    )
    codes = [line for line in night.stderr.splitlines() if line.startswith("code ")]
    assert codes == ["code 4", "code 0"], night.stderr
    assert "rank 0 could not write a file: No space left on device" in night.stderr
