"""Servers as processes: found again, never mixed up, and ended."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from bench.errors import InfrastructureFailed
from bench.serve.stack.processes import (
    Server,
    ServerProcess,
    end,
    is_running,
    start,
    strays,
    uninterrupted,
    wait_until_ready,
)

_DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(100)"
Starter = Callable[[str], ServerProcess]


def _server(*command: str) -> Server:
    return Server(name="made", port=1, ready="/ready", command=command)


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    """Starts a Python program as a server; all are gone afterwards."""
    (tmp_path / "logs").mkdir()
    started: list[ServerProcess] = []

    def begin(program: str) -> ServerProcess:
        started.append(start(_server(sys.executable, "-c", program), tmp_path))
        return started[-1]

    yield begin
    assert end(started, patience_s=0) == []


def test_a_server_is_ended_by_another_call(starter: Starter) -> None:
    process = starter("import time; time.sleep(100)")
    assert is_running(process)
    assert end([process]) == []
    assert not is_running(process)


def test_one_that_hears_no_sigterm_is_killed(starter: Starter) -> None:
    process = starter(_DEAF)
    while "deaf" not in Path(process.log).read_text():
        assert is_running(process)
    assert end([process], patience_s=0.1) == []
    assert not is_running(process)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot": "another"}], ids=lambda change: next(iter(change)))
def test_a_later_process_of_the_same_number_is_left_alone(starter: Starter, change: dict[str, object]) -> None:
    process = starter("import time; time.sleep(100)")
    earlier = msgspec.structs.replace(process, **change)
    assert not is_running(earlier)
    assert end([earlier], patience_s=0) == []
    assert is_running(process)


def test_a_server_that_nobody_wrote_down_is_found_by_its_folder(starter: Starter, tmp_path: Path) -> None:
    process = starter("import time; time.sleep(100)")
    assert [stray.pid for stray in strays(tmp_path, ())] == [process.pid]
    assert strays(tmp_path, [process]) == []
    assert strays(tmp_path / "another", ()) == []


def test_a_number_that_nobody_has_is_no_process(starter: Starter) -> None:
    process = starter("import time; time.sleep(100)")
    end([process])
    assert end([process]) == []


def test_a_server_that_ends_at_its_start_is_told_with_its_last_lines(starter: Starter) -> None:
    process = starter("import sys; sys.exit('the port is taken')")
    with pytest.raises(InfrastructureFailed, match="made ended at its start: the port is taken"):
        wait_until_ready(_server(), process)


def test_a_server_that_never_answers_is_told(starter: Starter) -> None:
    process = starter("import time; time.sleep(100)")
    with pytest.raises(InfrastructureFailed, match=r"made does not answer at http://127\.0\.0\.1:1/ready after 0.3 s"):
        wait_until_ready(_server(), process, limit_s=0.3)


def test_a_program_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with pytest.raises(InfrastructureFailed, match="cannot be run: Permission denied"):
        start(_server(str(tmp_path)), tmp_path)


def _record_through_a_signal(recorded: list[str]) -> None:
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
        recorded.append("prometheus")


def test_a_signal_waits_until_what_was_started_is_recorded() -> None:
    recorded: list[str] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _record_through_a_signal(recorded)
    finally:
        signal.signal(signal.SIGINT, before)
    assert recorded == ["prometheus"]
