"""`observatory watch --attach`: which jobs it refuses, and what a window's request looks like."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from bench.cli import main
from bench.errors import InfrastructureFailed, Misuse
from bench.results.watched.windows import traced_windows
from bench.session.watched.active import running_job
from bench.session.watched.windows import JobWindows, request_window, withdraw_window
from bench.store.active_runs import lock_folder

ROOT = Path(__file__).parents[5]


def _job(runs: Path, name: str) -> Path:
    run = runs / f"20261127-120000-{name}-abc123"
    (run / "hook").mkdir(parents=True)
    (run / "watch.json").write_text("{}")
    return run


def _attach(runs: Path, *words: str) -> int:
    return main.run(["watch", "--runs", str(runs), "--attach", *words])


def test_an_unknown_name_is_refused_with_the_names_that_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _attach(tmp_path, "job") == 2
    assert "--attach job: there is no such job" in capsys.readouterr().err
    lock = lock_folder(_job(tmp_path, "other-job"))
    assert lock is not None
    assert _attach(tmp_path, "job") == 2
    assert "watched now: other-job" in capsys.readouterr().err
    os.close(lock)


def test_a_job_that_has_ended_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _job(tmp_path, "job")
    assert _attach(tmp_path, "job") == 2
    assert "watched job job has ended" in capsys.readouterr().err


def test_a_job_is_also_found_by_its_run_id(tmp_path: Path) -> None:
    run, newer = _job(tmp_path, "job"), tmp_path / "20261128-120000-job-abc123"
    shutil.copytree(run, newer)
    locks = [lock_folder(each) for each in (run, newer)]
    assert running_job("job", tmp_path) == newer
    assert running_job(run.name, tmp_path) == run
    for lock in filter(None, locks):
        os.close(lock)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_another_user_s_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _job(tmp_path, "job")
    lock = lock_folder(run)
    assert lock is not None
    os.chown(run, 54321, -1)
    assert _attach(tmp_path, "job") == 2
    assert "belongs to the user with uid 54321; only its owner may trace it" in capsys.readouterr().err
    assert not (run / "windows").exists()
    os.close(lock)


@pytest.mark.parametrize(
    "words",
    [
        ("job", "--", "python"),
        ("job", "--name", "other"),
        ("job", "--window-every", "5"),
        ("job", "--no-slow-windows"),
        ("job", "--store", "sqlite:///other.sqlite"),
        ("job", "--shared"),
    ],
)
def test_attaching_runs_no_command(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _attach(tmp_path, *words) == 2
    assert "--attach NAME takes only --steps and --runs" in capsys.readouterr().err


def test_a_second_request_is_refused_while_the_ranks_have_not_taken_the_first(tmp_path: Path) -> None:
    run = _job(tmp_path, "job")
    assert request_window(run, 3, "test") == 1
    assert json.loads((run / "hook" / "window.json").read_text()) == {"id": 1, "steps": 3, "why": "test"}
    with pytest.raises(Misuse, match="pending window request"):
        request_window(run, 3, "test")
    assert [path.name for path in (run / "windows").iterdir()] == ["1"]
    assert [path.name for path in (run / "hook").iterdir()] == ["window.json"]


def test_a_request_that_cannot_be_written_leaves_no_window_open(tmp_path: Path) -> None:
    run = _job(tmp_path, "job")
    (run / "hook").rename(run / "elsewhere")
    windows = JobWindows(run, every_s=0.0)
    windows.beat()
    with pytest.raises(InfrastructureFailed, match="cannot be written"):
        request_window(run, 3, "test")
    assert list((run / "windows").iterdir()) == []
    (run / "elsewhere").rename(run / "hook")
    windows.beat()
    assert (run / "hook" / "window.json").exists()


def test_windows_are_asked_for_in_their_time_and_never_while_one_is_open(tmp_path: Path) -> None:
    run, clock_s = _job(tmp_path, "job"), iter((0.0, 1.0, 61.0, 61.0, 122.0, 183.0))
    windows = JobWindows(run, every_s=60.0, steps=5, clock_s=lambda: next(clock_s))
    windows.beat()
    assert not (run / "windows").exists()
    for _ in range(3):
        windows.beat()
    assert [path.name for path in (run / "windows").iterdir()] == ["1"]
    assert json.loads((run / "hook" / "window.json").read_text())["steps"] == 5


def test_a_window_that_no_rank_took_is_dropped_at_the_command_s_end(tmp_path: Path) -> None:
    run = _job(tmp_path, "job")
    request_window(run, 3, "test")
    JobWindows(run).finish()
    (window,) = traced_windows(run)
    assert window.dropped == "the command ended before the window was traced"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_attach_takes_its_request_back(number: signal.Signals, tmp_path: Path) -> None:
    run = _job(tmp_path, "job")
    lock = lock_folder(run)
    assert lock is not None
    attach = subprocess.Popen(
        [sys.executable, "-m", "bench", "watch", "--runs", str(tmp_path), "--attach", "job"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, number, signal.SIG_DFL),  # The tests may run under nohup.
    )
    assert attach.stderr is not None
    assert "asked the ranks to trace 12 steps" in attach.stderr.readline()
    attach.send_signal(number)
    _, said = attach.communicate()
    assert "window 1 is withdrawn; no step is traced" in said
    assert attach.returncode == 130
    assert list((run / "hook").iterdir()) == []
    (window,) = traced_windows(run)
    assert window.dropped == "withdrawn before the ranks agreed on its steps"
    assert request_window(run, 3, "test") == 2
    os.close(lock)


def test_a_window_that_the_ranks_agreed_on_is_not_withdrawn(tmp_path: Path) -> None:
    run = _job(tmp_path, "job")
    number = request_window(run, 3, "test")
    agreed = {"id": number, "steps": 3, "why": "test", "first": 7, "last": 9, "world_size": 2}
    (run / "windows" / "1" / "window.json").write_text(json.dumps(agreed))
    assert not withdraw_window(run, number)
    assert traced_windows(run) == ()


def test_only_one_s_own_request_is_withdrawn(tmp_path: Path) -> None:
    run = _job(tmp_path, "job")
    request_window(run, 3, "test")
    (run / "hook" / "window.json").unlink()  # Its window is over.
    request_window(run, 3, "test")
    withdraw_window(run, 1)
    assert json.loads((run / "hook" / "window.json").read_text())["id"] == 2
