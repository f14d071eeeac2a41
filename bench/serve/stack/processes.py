"""Starts servers as processes apart from the terminal, finds them again by process ID and start time, and ends them.

Process IDs are reused, so a process is recognised only if its start, in ticks since this boot, is also the same.
Not covered: systems other than Linux. Source: proc(5).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import msgspec
import psutil

from bench.errors import InfrastructureFailed
from bench.serve.stack.files import LOOPBACK
from bench.serve.stack.passwords import authorization
from collectors.files import open_to_append, read_regular
from collectors.sockets import holder_of, uids_at

LOGS = "logs"
READY_S = 60.0
"""How long a server may take to answer."""
END_S = 20.0
"""How long a server may take to end after SIGTERM: Prometheus writes what it has in memory."""
_KILLED_S = 5.0
_LOOK_S = 0.1
_LAST_LINES = 3
_MARK = "OBSERVATORY_STACK_FOLDER"
"""Variable of a server's environment with its stack's folder, for the moment before the server is recorded."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")

open_here = build_opener(ProxyHandler({})).open
"""Opens a URL of this machine, without the environment's proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server to start on the loopback address. ready: the path that answers once the server is ready."""

    name: str
    port: int
    ready: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    password: str | None = None


class ServerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was started. boot: the ID of the machine's boot, which is unique together with start_ticks."""

    name: str
    pid: int
    boot: str
    start_ticks: int
    url: str
    log: str


def start(server: Server, folder: Path) -> ServerProcess:
    """Start a server of the stack in this folder. It outlives this process and its terminal.

    Raises:
        InfrastructureFailed: the program cannot be run.
    """
    log = folder / LOGS / f"{server.name}.log"
    try:
        with os.fdopen(open_to_append(log), "ab") as output:
            process = subprocess.Popen(
                server.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **server.environment, _MARK: str(folder)},
                cwd=log.parent,
                start_new_session=True,
            )
    except OSError as error:
        raise InfrastructureFailed(f"{server.command[0]} cannot be run: {error.strerror}; install it again") from None
    process.returncode = 0  # `end` uses the process ID; `Popen` would warn of a running process.
    return _recorded(server.name, process.pid, url=f"http://{LOOPBACK}:{server.port}", log=str(log))


def strays(folder: Path, known: Collection[ServerProcess]) -> list[ServerProcess]:
    """Return the folder's running servers that are not in its state file, because their `up` was killed."""
    pids = {process.pid for process in known if is_running(process)}
    unknown = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # It has ended, or is another user's.
            if process.pid not in pids and process.environ().get(_MARK) == str(folder):
                unknown.append(_recorded(process.name(), process.pid))
    return unknown


def _recorded(name: str, pid: int, *, url: str = "", log: str = "") -> ServerProcess:
    ticks = _start_ticks(pid)
    return ServerProcess(name=name, pid=pid, boot=_boot(), start_ticks=-1 if ticks is None else ticks, url=url, log=log)


def is_running(process: ServerProcess) -> bool:
    """Return whether the process has not ended."""
    return process.boot == _boot() and _start_ticks(process.pid) == process.start_ticks


def end(processes: Sequence[ServerProcess], *, patience_s: float = END_S) -> list[ServerProcess]:
    """End the processes by SIGTERM, and after `patience_s` by SIGKILL; return those that survive."""
    survivors = [*filter(is_running, processes)]
    for number, limit_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, _KILLED_S)):
        for process in survivors:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        until_s = time.monotonic() + limit_s
        while (survivors := [*filter(is_running, survivors)]) and time.monotonic() < until_s:
            time.sleep(_LOOK_S / 2)
    for process in processes:
        with suppress(ChildProcessError):  # Another process started it.
            os.waitpid(process.pid, os.WNOHANG)
    return survivors


def wait_until_ready(server: Server, process: ServerProcess, *, limit_s: float = READY_S) -> None:
    """Wait until the server answers.

    Raises:
        InfrastructureFailed: it ended, or does not answer in time (the message has its last lines), or another user's
        program has its port.
    """
    headers = {} if server.password is None else {"Authorization": authorization(server.password)}
    request = Request(f"{process.url}{server.ready}", headers=headers)
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        if not is_running(process):
            raise InfrastructureFailed(f"{server.name} ended at its start: {last_lines(Path(process.log))}")
        if uids_at(LOOPBACK, server.port) - {os.getuid()}:  # It was faster than ours: the port was free.
            raise InfrastructureFailed(
                f"{server.name}: port {server.port} is taken by {holder_of(LOOPBACK, server.port)}"
            )
        try:
            with open_here(request, timeout=5):
                return
        except HTTPError as error:  # It listens, but is not ready.
            error.close()
        except (OSError, HTTPException):
            pass
        time.sleep(_LOOK_S)
    raise InfrastructureFailed(
        f"{server.name} does not answer at {request.full_url} after {limit_s:g} s: {last_lines(Path(process.log))}"
    )


def last_lines(log: Path) -> str:
    """Return the last lines of a log, on one line."""
    try:
        lines = read_regular(log).decode(errors="replace").strip().splitlines()
    except FileNotFoundError:
        lines = []
    return " | ".join(lines[-_LAST_LINES:]) or f"{log} is empty"


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay SIGINT and SIGTERM while the context is open, so that every started server is also recorded."""
    signals: list[int] = []
    former = {
        number: signal.signal(number, lambda number, _: signals.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        if signals:
            signal.raise_signal(signals[0])


def _boot() -> str:
    return _BOOT.read_text().strip()


def _start_ticks(pid: int) -> int | None:
    """Return when the process started, in ticks since the boot; None if it does not exist or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # After the name, which may be odd.
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
