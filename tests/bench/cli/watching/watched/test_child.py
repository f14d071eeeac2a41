"""A watched command keeps its streams, its files, its signals and its exit code."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer

import psutil
import pytest

from bench.errors import InfrastructureFailed
from bench.session.watched.child import exit_code, run_child

ROOT = Path(__file__).parents[5]
RUNNER = """
import os, sys
from bench.session.watched.child import exit_code, run_child
sys.exit(exit_code(run_child(sys.argv[1:], os.environ)))
"""
TRAPS = "trap 'echo got INT; exit 3' INT; trap 'echo got TERM; exit 4' TERM; trap 'echo got USR1' USR1; echo ready;"


_RUNNERS: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _ends_all() -> Iterator[None]:
    """End what a test leaves running, and a test that waits for a line that does not come."""
    limit = Timer(60, _end_all)
    limit.start()
    yield
    limit.cancel()
    _end_all()
    _RUNNERS.clear()


def _end_all() -> None:
    for runner in _RUNNERS:
        with suppress(ProcessLookupError):
            os.killpg(runner.pid, signal.SIGKILL)


def _started(*command: str, script: str = RUNNER, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    """Start the runner with a command, in a session of its own; return when the command says that it is ready."""
    runner = subprocess.Popen(
        [sys.executable, "-c", script, *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        pass_fds=pass_fds,
    )
    _RUNNERS.append(runner)
    assert runner.stdout is not None
    assert runner.stdout.readline() == b"ready\n"
    return runner


def _ended(runner: subprocess.Popen[bytes]) -> tuple[bytes, int]:
    output, _ = runner.communicate(timeout=60)
    return output, runner.returncode


LOOP = "while :; do sleep 0.05; done"


def test_a_signal_to_us_alone_reaches_the_command_which_decides_its_code() -> None:
    runner = _started("sh", "-c", TRAPS + LOOP)
    runner.send_signal(signal.SIGTERM)
    assert _ended(runner) == (b"got TERM\n", 4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_whole_group_reaches_the_command_once(number: signal.Signals) -> None:
    count = 'n=0; trap "n=\\$((n + 1))" INT TERM USR1; echo ready; while [ $n = 0 ]; do sleep 0.05; done;'
    runner = _started("sh", "-c", count + "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.1; done; echo $n")
    os.killpg(runner.pid, number)
    assert _ended(runner) == (b"1\n", 0)


def test_a_signal_to_the_whole_group_reaches_the_command_once_on_a_busy_machine() -> None:
    count = 'n=0; trap "n=\\$((n + 1))" USR1; trap "echo \\$n; exit" TERM; echo ready; ' + LOOP
    runner = _started("sh", "-c", count)
    witness, _ = sorted(psutil.Process(runner.pid).children(), key=lambda child: child.cmdline()[0] == "sh")
    witness.suspend()  # It does not run for a second.
    os.killpg(runner.pid, signal.SIGUSR1)
    time.sleep(1)
    witness.resume()
    time.sleep(0.5)
    runner.send_signal(signal.SIGTERM)
    assert _ended(runner) == (b"1\n", 0)


def test_a_signal_to_the_whole_group_reaches_the_command_once_before_we_know_that_it_runs() -> None:
    slow_start = """
import subprocess, time
start = subprocess.Popen
def start_slowly(*arguments, **options):
    child = start(*arguments, **options)
    time.sleep(0.5)
    return child
subprocess.Popen = start_slowly
"""
    count = 'n=0; trap "n=\\$((n + 1))" USR1; trap "echo \\$n; exit" TERM; echo ready; ' + LOOP
    runner = _started("sh", "-c", count, script=slow_start + RUNNER)
    os.killpg(runner.pid, signal.SIGUSR1)
    time.sleep(1)
    runner.send_signal(signal.SIGTERM)
    assert _ended(runner) == (b"1\n", 0)


def test_signals_reach_the_command_although_somebody_killed_the_witness() -> None:
    runner = _started("sh", "-c", TRAPS + LOOP)
    witness, _ = sorted(psutil.Process(runner.pid).children(), key=lambda child: child.cmdline()[0] == "sh")
    witness.kill()
    runner.send_signal(signal.SIGUSR1)
    assert runner.stdout is not None
    assert runner.stdout.readline() == b"got USR1\n"
    runner.send_signal(signal.SIGTERM)
    assert _ended(runner) == (b"got TERM\n", 4)


def test_a_signal_to_us_and_then_to_the_whole_group_counts_as_one() -> None:
    """As `timeout` sends it."""
    script = """
import os, signal
from bench.session.watched.child import _was_seen, _witness
os.setpgid(0, 0)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
with _witness() as witness:
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.sigwait({signal.SIGUSR1})
    print(_was_seen(signal.SIGUSR1, witness))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.sigwait({signal.SIGUSR1})
    os.killpg(0, signal.SIGUSR1)
    print(_was_seen(signal.SIGUSR1, witness), signal.sigpending())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue set()\n"


def test_each_signal_reaches_the_command_and_none_ends_us_before_it() -> None:
    runner = _started("sh", "-c", TRAPS + LOOP)
    runner.send_signal(signal.SIGUSR1)
    assert runner.stdout is not None
    assert runner.stdout.readline() == b"got USR1\n"
    runner.send_signal(signal.SIGINT)
    assert _ended(runner) == (b"got INT\n", 3)


def test_a_command_that_a_signal_ends_gives_128_and_its_number() -> None:
    runner = _started("sh", "-c", "echo ready; kill -9 $$")
    assert _ended(runner) == (b"", 128 + signal.SIGKILL)


def test_a_command_that_ignores_an_interrupt_goes_on() -> None:
    runner = _started("sh", "-c", "trap '' INT; echo ready; read word; echo $word; exit 7")
    runner.send_signal(signal.SIGINT)
    assert runner.stdin is not None
    runner.stdin.write(b"more\n")
    runner.stdin.flush()
    assert _ended(runner) == (b"more\n", 7)


def _on_terminal(script: str, *command: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a script of Python on a terminal of its own; return it and the terminal once it says that it is ready."""
    leader, follower = os.openpty()
    start = (
        "import fcntl, os, subprocess, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1], *sys.argv[2:]])"
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", start, script, *command],
        cwd=ROOT,
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    _RUNNERS.append(runner)
    os.close(follower)
    assert runner.stdout is not None
    assert runner.stdout.readline() == b"ready\n"
    return runner, leader


def test_an_interrupt_from_the_terminal_just_before_the_command_starts_reaches_it() -> None:
    script = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("ready", flush=True)
while signal.SIGINT not in signal.sigpending():
    time.sleep(0.01)
from bench.session.watched.child import run_child
sys.exit(run_child(sys.argv[1:], os.environ))
"""
    # The command inherits the script's blocked signal, so it takes the interrupt whenever it comes.
    takes = "import signal; print(signal.sigtimedwait({signal.SIGINT}, 5) is not None)"
    runner, leader = _on_terminal(script, sys.executable, "-c", takes)
    os.write(leader, b"\x03")
    assert _ended(runner) == (b"True\n", 0)
    os.close(leader)


def test_an_interrupt_from_the_terminal_reaches_the_command_once() -> None:
    """A terminal sends Ctrl-C to the command as well, so that we must not."""
    count = "n=0; trap 'n=$((n+1))' INT; trap 'echo $n; exit 0' TERM; echo ready; " + LOOP
    runner, leader = _on_terminal(RUNNER, "sh", "-c", count)
    os.write(leader, b"\x03")
    # The shell counts the interrupt between two sleeps; the terminal echoes ^C when it has sent it.
    assert select.select([leader], [], [], 30)[0]
    time.sleep(0.5)
    runner.send_signal(signal.SIGTERM)
    assert _ended(runner) == (b"1\n", 0)
    os.close(leader)


def test_an_interrupt_to_us_alone_reaches_the_command_after_one_from_the_terminal() -> None:
    script = "trap 'echo got INT' INT; trap 'echo got TERM; exit 4' TERM; echo ready; "
    runner, leader = _on_terminal(RUNNER, "sh", "-c", script + LOOP)
    os.write(leader, b"\x03")
    assert runner.stdout is not None
    assert runner.stdout.readline() == b"got INT\n"
    time.sleep(0.5)  # We have asked the witness.
    runner.send_signal(signal.SIGINT)
    assert runner.stdout.readline() == b"got INT\n"
    runner.send_signal(signal.SIGTERM)
    assert _ended(runner) == (b"got TERM\n", 4)
    os.close(leader)


def test_a_timer_that_was_set_before_the_watch_reaches_the_command() -> None:
    """As in `perl -e 'alarm 1; exec @ARGV'`: the kernel sends it to us alone."""
    timed = "import os, signal, sys; signal.alarm(2); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    takes = "import signal; print(signal.sigtimedwait({signal.SIGALRM}, 10) is not None)"
    blocked = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM});"
    command = [sys.executable, "-c", blocked + f"exec({takes!r})"]
    done = subprocess.run(
        [sys.executable, "-c", timed, "-c", RUNNER, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_the_code_of_the_command_is_known_although_our_parent_ignores_ended_children(tmp_path: Path) -> None:
    ignores = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    )
    command = [sys.executable, "-P", "-m", "bench", "watch", "--", "sh", "-c", "exit 3"]
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ignores, *command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr


def test_the_command_has_the_files_that_a_shell_opened(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        code = f"import os; os.write(1, b'ready\\n'); os.write({log.fileno()}, b'written\\n')"
        runner = _started(sys.executable, "-c", code, pass_fds=(log.fileno(),))
        assert _ended(runner)[1] == 0
    assert (tmp_path / "log").read_text() == "written\n"


def test_the_command_s_signals_are_not_blocked() -> None:
    code = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    done = subprocess.run([sys.executable, "-c", RUNNER, sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    assert done.stdout == b"[]\n"


def test_our_own_signals_are_unblocked_again() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert run_child(["true"], os.environ) == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_the_command_gets_the_umask_of_whoever_called_us(tmp_path: Path) -> None:
    assert run_child(["touch", str(tmp_path / "result")], os.environ, umask=0o002) == 0
    assert (tmp_path / "result").stat().st_mode & 0o777 == 0o664


def test_a_command_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(InfrastructureFailed, match=r"script cannot be started: No such file"):
        run_child([str(script)], os.environ)


def test_codes_are_those_of_a_shell() -> None:
    assert [exit_code(code) for code in (0, 1, 255, -2, -15)] == [0, 1, 255, 130, 143]
