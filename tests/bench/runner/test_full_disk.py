"""A disk that fills up while samples are written ends the run in one line, and loses no run that was complete."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# A file system of a few hundred kilobytes, in a mount namespace that ends with the command.
ON_A_SMALL_DISK = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=300k none "$0" && exec "$@"']
SMALL = ["--layers=1", "--width=16", "--heads=2", "--kv-heads=1", "--mlp-width=32", "--vocabulary=32", "--sequence=8"]


def _can_mount(folder: Path) -> bool:
    try:
        return subprocess.run([*ON_A_SMALL_DISK, str(folder), "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def test_a_disk_that_fills_up_is_said_in_a_line_and_complete_runs_stay(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if not _can_mount(disk):
        pytest.skip("no right to mount a small file system here")
    run = [sys.executable, "-P", "-m", "bench", "run", "ddp", "--device=cpu", "--batch=4", *SMALL, "--trials=1"]
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "home")}
    subprocess.run([*run, "--steps=3"], capture_output=True, check=True, env=environment, timeout=120)
    full = subprocess.run(
        [*ON_A_SMALL_DISK, str(disk), *run, "--steps=100000", f"--runs={disk}"],
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
