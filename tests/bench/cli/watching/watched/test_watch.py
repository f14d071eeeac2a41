"""`observatory watch`: the command's own output and code, what is kept of it, and what is refused."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.cli import main

ROOT = Path(__file__).parents[5]
MS = 1_000_000


@dataclass(frozen=True)
class Done:
    """What a command under watch printed, ours included, and its code."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def watch(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    def watch(*words: str, runs: Path, **variables: str) -> Done:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        code = main.run(["watch", "--runs", str(runs), "--store", f"sqlite:///{runs}.sqlite", *words])
        captured = capfd.readouterr()
        return Done(code, captured.out, captured.err)

    return watch


def _folder(runs: Path) -> Path:
    (folder,) = runs.iterdir()
    return folder


def test_the_command_s_output_and_code_are_its_own_and_ours_is_on_standard_error(
    watch: Callable[..., Done], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    done = watch("--name", "job", "--", "sh", "-c", "echo out; echo err >&2; exit 7", runs=runs)
    assert (done.stdout, done.returncode) == ("out\n", 7)
    first, *said = done.stderr.splitlines()
    assert re.fullmatch(r"run \S+-job-\S+: `observatory show job` shows it while it runs", first)
    assert said[0] == "err"
    assert said[1].startswith("no process reported a step: ")
    assert said[-1] == "no process reported anything, so the run's folder was removed"
    assert list(runs.iterdir()) == []


def test_watches_at_the_same_time_have_different_slots(watch: Callable[..., Done], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    inner = [
        sys.executable,
        "-P",
        "-m",
        "bench",
        "watch",
        "--runs",
        str(runs),
        "--",
        "sh",
        "-c",
        f"cat {runs}/*/watch.json",
    ]
    done = watch("--", *inner, runs=runs)
    assert sorted(re.findall(r'"slot": (\d)', done.stdout)) == ["0", "1"]


def test_quiet_begins_without_a_line(watch: Callable[..., Done], tmp_path: Path) -> None:
    done = watch("--quiet", "--", "sh", "-c", "echo err >&2", runs=tmp_path / "runs")
    assert done.stderr.startswith("err\n")


def test_the_run_s_folder_says_what_ran_and_how_it_ended(watch: Callable[..., Done], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    script = tmp_path / "train.py"
    # Something of the script's in the run's folder, so that it stays.
    script.write_text(
        "import os, signal, sys; from pathlib import Path\n"
        "Path(sys.path[1]).with_name('mine').touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    words = ("--tag", "model=7b", "--", sys.executable, str(script), "--token", "hidden")
    done = watch(*words, runs=runs)
    assert done.returncode == 137
    assert done.stderr.splitlines()[-1] == f"run {_folder(runs).name}: {_folder(runs)}"
    folder = _folder(runs)
    said = json.loads((folder / "watch.json").read_text())
    assert (said["name"], said["run_id"], said["tags"]) == ("train", folder.name, {"model": "7b"})
    assert said["command"] == [Path(sys.executable).name, "train.py", "(2 more)"]
    assert (said["exit_code"], said["signal"]) == (None, 9)
    assert said["start_unix_s"] < said["end_unix_s"]
    machine = json.loads((folder / "machine.json").read_text())
    assert (machine["commit"], machine["is_dirty"]) == (None, None)  # This program's are not the script's.
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"hidden" not in everything


@pytest.mark.parametrize("line", ["{python} -m trained", "bash -c '{python} trained.py'"])
@pytest.mark.parametrize("is_redacted", [False, True])
def test_a_script_that_the_command_does_not_name_is_the_one_that_began(
    line: str, is_redacted: bool, watch: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "trained.py"
    script.write_text(
        "import torch\nparameter = torch.nn.Parameter(torch.ones(1))\noptimizer = torch.optim.SGD([parameter])\n"
        "for _ in range(3):\n    parameter.square().sum().backward()\n    optimizer.step()\n"
    )
    words = shlex.split(line.format(python=sys.executable))
    runs = tmp_path / "runs"
    assert watch(*(["--redact"] if is_redacted else []), "--", *words, runs=runs).returncode == 0
    said = json.loads((_folder(runs) / "watch.json").read_text())
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    assert (said["script"], said["script_sha256"]) == ((None, None) if is_redacted else (str(script), digest))


def test_the_hook_is_this_user_s_alone_and_comes_first_on_the_path(watch: Callable[..., Done], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    show = "import os, sys; print(os.environ['PYTHONPATH']); print('torch' in sys.modules, 'pathlib' in sys.modules)"
    show += "; print(oct(os.stat(os.environ['PYTHONPATH'].split(':')[0]).st_mode & 0o777))"
    done = watch("--shared", "--", sys.executable, "-c", show, runs=runs, PYTHONPATH="/first:/second")
    path, modules, mode = done.stdout.splitlines()
    hook, *rest = path.split(":")
    assert (Path(hook).parents[1], Path(hook).name, rest) == (runs, "hook", ["/first", "/second"])
    assert (modules, mode) == ("False False", "0o700")


def test_a_sitecustomize_that_was_there_runs_first_and_keeps_its_name(
    watch: Callable[..., Done], tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text(
        "import sys\nprint('theirs', 'observatory_watch' in sys.modules)\nmine = 1\n"
    )
    show = "import sys, sitecustomize; print(sitecustomize.mine, 'observatory_watch' in sys.modules)"
    done = watch("--", sys.executable, "-c", show, runs=tmp_path / "runs", PYTHONPATH=str(theirs))
    assert done.stdout == "theirs False\n1 True\n"


def test_a_sitecustomize_that_fails_fails_as_without_us(watch: Callable[..., Done], tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    show = "import sys; print('observatory_watch' in sys.modules)"
    done = watch("--", sys.executable, "-c", show, runs=tmp_path / "runs", PYTHONPATH=str(theirs))
    assert done.stdout == "True\n"
    assert "Error in sitecustomize" in done.stderr
    assert "ValueError: theirs" in done.stderr


def test_the_command_has_the_umask_of_whoever_calls(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "bench", "watch", "--runs", str(tmp_path / "runs"), "--", "sh", "-c", "umask")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, umask=0o022, check=True)
    assert done.stdout == "0022\n"


def test_the_switch_runs_the_command_unwatched(watch: Callable[..., Done], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    done = watch("--", "sh", "-c", "echo $PYTHONPATH; exit 3", runs=runs, OBSERVATORY_WATCH="off", PYTHONPATH="/mine")
    assert (done.stdout, done.returncode) == ("/mine\n", 3)
    assert done.stderr == "OBSERVATORY_WATCH=off: the command runs unwatched, and no run is kept\n"
    assert not runs.exists()


def test_a_script_that_no_interpreter_of_ours_sees_is_not_reported(watch: Callable[..., Done], tmp_path: Path) -> None:
    done = watch("--", sys.executable, "-I", "-c", "print('isolated')", runs=tmp_path / "runs")
    assert (done.stdout, done.returncode) == ("isolated\n", 0)
    assert "no process reported a step" in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--", "no-such-program"], "command 'no-such-program' cannot be run: there is no such program; check"),
        (["--", "/tmp"], "command '/tmp' cannot be run: it is a folder"),
        (["--", str(ROOT / "README.md")], "it is not executable; put its interpreter first, for example `python`"),
        (["--name", "a/b", "--", "true"], "--name 'a/b' cannot name a run; use up to 63 letters"),
        (["--name", "", "--", "true"], "it is empty"),
        (["--tag", "model", "--", "true"], "--tag 'model' is no KEY=VALUE; write for example --tag model=7b"),
        (["--tag", "a=1", "--tag", "a=2", "--", "true"], "--tag a is set twice; set it once"),
        (["--live", "-q", "--", "true"], "--live draws the progress that --quiet leaves out; use one of them"),
        (["--name", "job"], "Missing argument 'COMMAND...'"),
        (["--no-slow-windows", "--steps", "5", "--", "true"], "--steps 5 has no window: --no-slow-windows leaves only"),
        (["--window-every", "0.1", "--", "true"], "'0.1' is no whole number of minutes from 1 to 10,080"),
        (["--window-every", "10081", "--", "true"], "'10081' is no whole number of minutes from 1 to 10,080"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_and_leaves_nothing(
    words: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["watch", "--runs", str(tmp_path / "runs"), *words]) == 2
    assert line in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (OSError(28, "No space left on device"), 4)])
def test_a_watch_that_ends_before_its_command_starts_leaves_no_folder(
    error: BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_machine() -> None:
        raise error

    monkeypatch.setattr("bench.session.watched.session.read_machine", read_machine)
    started, runs = tmp_path / "started", tmp_path / "runs"
    assert main.run(["watch", "--runs", str(runs), "--", "touch", str(started)]) == code
    assert list(runs.iterdir()) == []
    assert not started.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_command_starts_leaves_no_folder(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.session.watched.session.read_machine", lambda: signal.raise_signal(number))
    runs = tmp_path / "runs"
    former = signal.signal(number, signal.SIG_DFL)  # The tests may run under nohup.
    try:
        assert main.run(["watch", "--runs", str(runs), "--", "true"]) == 130
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, former)
    assert list(runs.iterdir()) == []


def test_a_folder_that_cannot_hold_runs_is_refused_before_the_command_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    started = tmp_path / "started"
    code = main.run(["watch", "--runs", str(tmp_path / "file" / "runs"), "--", "touch", str(started)])
    assert code == 4
    assert "no run can be written" in capsys.readouterr().err
    assert not started.exists()
