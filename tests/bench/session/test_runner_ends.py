"""However the runner ends, no process is left, and what was measured is kept."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(500)

SMALL = {"layers": 1, "width": 16, "heads": 2, "kv-heads": 1, "mlp-width": 32, "vocabulary": 32, "sequence": 8}


@contextmanager
def _running(home: Path, *arguments: str, temporary: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A run that measures, and is killed if the test leaves it alive; what it started ends with it."""
    shape = [f"--{name}={size}" for name, size in SMALL.items()]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "bench", "run", "ddp", "--ranks=2", "--device=cpu", *shape, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "XDG_DATA_HOME": str(home),
            **({} if temporary is None else {"TMPDIR": str(temporary)}),
        },
    ) as runner:
        try:
            yield runner
        finally:
            runner.kill()


def _logs(home: Path) -> list[Path]:
    return sorted(home.glob("parallel-observatory/runs/*/rank*.jsonl"))


def _is_measuring(home: Path) -> bool:
    logs = _logs(home)
    return len(logs) == 2 and all(b'"measured"' in log.read_bytes() for log in logs)


def _family(runner: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(runner.pid).children(recursive=True)


# The second of two differs from the first, as the kernel merges equal ones.
SIGNALS = [
    pytest.param([signal.SIGINT], id="once"),
    pytest.param([signal.SIGINT, signal.SIGTERM], id="twice", marks=pytest.mark.slow),
    pytest.param([signal.SIGKILL], id="killed", marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize("signals", SIGNALS)
def test_no_process_outlives_the_runner(signals: list[signal.Signals], tmp_path: Path) -> None:
    with _running(tmp_path, "--steps", "1000000", "--trials", "1", "--option", "workers=1") as runner:
        wait_until(lambda: _is_measuring(tmp_path))
        family = _family(runner)
        assert len(family) >= 5, "agent, forkserver, two ranks and their loaders"
        for number in signals:
            runner.send_signal(number)
        _, errors = runner.communicate(timeout=60)
        _, left = psutil.wait_procs(family, timeout=10)
        assert left == []
        if signals == [signal.SIGKILL]:
            assert runner.returncode == -signal.SIGKILL
        else:
            assert runner.returncode == 130
            assert "Traceback" not in errors
            assert errors.count("Stopping; completed work is kept. Press Ctrl-C again to stop now.") == 1
        if signals == [signal.SIGINT]:
            assert [path.parent.parent.name for path in tmp_path.rglob("summary.json")] == ["runs"]


def _is_there(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _is_forkserver(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "forkserver" in " ".join(process.cmdline())
    return False


def test_a_run_that_is_ended_while_torch_is_loaded_leaves_nothing_behind(tmp_path: Path, short_path: Path) -> None:
    with _running(tmp_path, temporary=short_path) as runner:
        wait_until(lambda: any(map(_is_forkserver, _family(runner))))
        family = _family(runner)
        runner.send_signal(signal.SIGTERM)  # Which is answered as SIGINT is, that a test sends while ranks measure.
        _, errors = runner.communicate(timeout=60)
        assert runner.returncode == 130
        assert "Traceback" not in errors
        assert not any(_is_there(process) for process in family if _is_forkserver(process))
        _, left = psutil.wait_procs(family, timeout=10)
        assert left == []
    assert list(short_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_is_over_when_its_forkserver_is_gone(tmp_path: Path) -> None:
    with _running(tmp_path, "--trials", "1", "--steps", "2", "--trace-steps", "0") as runner:
        servers: list[psutil.Process] = []
        while runner.poll() is None:
            with suppress(psutil.NoSuchProcess):
                servers = [process for process in _family(runner) if _is_forkserver(process)] or servers
            time.sleep(0.25)  # Each look goes through all processes of the machine; torch alone loads for longer.
        assert runner.returncode == 0
        assert servers
        assert not any(map(_is_there, servers))


@pytest.mark.slow
def test_no_rank_outlives_an_agent_that_was_killed(tmp_path: Path) -> None:
    with _running(tmp_path, "--steps", "1000000", "--trials", "1") as runner:
        wait_until(lambda: _is_measuring(tmp_path))
        family = _family(runner)
        agent = next(process for process in family if process.ppid() == runner.pid)
        agent.kill()
        _, errors = runner.communicate(timeout=60)
        _, left = psutil.wait_procs(family, timeout=10)
        assert left == []
        assert runner.returncode == 4
        assert "the agent of this machine ended with code -9" in errors


@pytest.mark.slow
def test_no_rank_outlives_a_forkserver_that_was_killed_and_none_is_blamed(tmp_path: Path) -> None:
    with _running(tmp_path, "--steps", "1000000", "--trials", "1") as runner:
        wait_until(lambda: _is_measuring(tmp_path))
        family = _family(runner)
        agent = next(process for process in family if process.ppid() == runner.pid)
        forkserver = next(process for process in agent.children() if "forkserver" in " ".join(process.cmdline()))
        forkserver.kill()
        _, errors = runner.communicate(timeout=60)
        _, left = psutil.wait_procs(family, timeout=10)
        assert left == []
        assert runner.returncode == 4
        assert "the forkserver, from which all ranks are forked, is gone" in errors


@pytest.mark.slow
def test_trials_that_were_complete_when_the_runner_was_killed_are_in_the_history(tmp_path: Path) -> None:
    with _running(tmp_path, "--trials", "1000", "--steps", "2", "--warm-up", "0") as runner:
        wait_until(lambda: any(log.read_bytes().count(b'"ended"') >= 3 for log in _logs(tmp_path)))
        family = _family(runner)
        runner.kill()
        runner.communicate(timeout=60)
        psutil.wait_procs(family, timeout=10)
        shown = subprocess.run(
            [sys.executable, "-P", "-m", "bench", "show", "--format", "json"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
        )
        (summary,) = json.loads(shown.stdout)
        assert summary["outcome"] == "interrupted"
        assert summary["trials_done"] >= 2
        assert summary["cause"]["text"] == "the runner died before the run's end"
        assert [len(estimate["trials"]) for estimate in summary["estimates"]] == [summary["trials_done"]] * len(
            summary["estimates"]
        )
