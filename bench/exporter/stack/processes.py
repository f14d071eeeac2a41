"""Servers as processes of their own: started apart from the terminal, found again by number and start, ended.

A process is the one that was started only where its start, in ticks of this boot, is the same: numbers are given again.
Not covered: other systems than Linux. Source: proc(5), pidfd_open(2).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from types import FrameType
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import msgspec
import psutil

from bench.errors import InfrastructureFailed
from collectors.files import open_to_append, read_regular
from collectors.sockets import holder_of, uids_at

READY_S = 60.0
"""How long a server may take until it answers."""
END_S = 20.0
"""How long a server may take to end after SIGTERM: Prometheus writes what it has in memory."""
_KILLED_S = 5.0
_LOOK_S = 0.1
_LAST_LINES = 3
_MARK = "OBSERVATORY_STACK_FOLDER"
"""Variable of a server's environment that says which stack it is of, for the moment before it is written down."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")

open_here = build_opener(ProxyHandler({})).open
"""Opens a URL of this machine; a proxy of the environment is for others."""


class ServerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was started. boot: this machine's, and the start in its ticks, which together are unique."""

    name: str
    pid: int
    boot: str
    start_ticks: int
    url: str
    log: str


def start(
    name: str, command: Sequence[str], *, url: str, folder: Path, log: Path, environment: Mapping[str, str]
) -> ServerProcess:
    """Start a command that outlives this process and its terminal.

    folder: of its stack. log: for what it prints. environment: beside this process's own.

    Raises:
        InfrastructureFailed: the program cannot be run.
    """
    try:
        with os.fdopen(open_to_append(log), "ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, _MARK: str(folder)},
                cwd=log.parent,
                start_new_session=True,
            )
    except OSError as error:
        raise InfrastructureFailed(f"{command[0]} cannot be run: {error.strerror}; is it whole?") from None
    process.returncode = 0  # It is ended by its number: `Popen` would warn of a process that it leaves running.
    return _recorded(name, process.pid, url, log)


def strays(folder: Path, known: Collection[ServerProcess]) -> list[ServerProcess]:
    """Return servers of the folder's stack that run and were not written down: their `up` was killed before."""
    numbers = {process.pid for process in known if is_running(process)}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # It has ended, or is another user's.
            if process.pid not in numbers and process.environ().get(_MARK) == str(folder):
                found.append(_recorded(process.name(), process.pid, "", folder))
    return found


def _recorded(name: str, pid: int, url: str, log: Path) -> ServerProcess:
    ticks = _start_ticks(pid)
    return ServerProcess(
        name=name, pid=pid, boot=_boot(), start_ticks=-1 if ticks is None else ticks, url=url, log=str(log)
    )


def is_running(process: ServerProcess) -> bool:
    """Return whether the process goes on."""
    return process.boot == _boot() and _start_ticks(process.pid) == process.start_ticks


def end(processes: Sequence[ServerProcess], *, patience_s: float = END_S) -> list[ServerProcess]:
    """End the processes, by SIGTERM and after that time by SIGKILL; return those that do not end even so."""
    with ExitStack() as stack:
        open_fds: dict[int, ServerProcess] = {}
        for process in processes:
            try:
                fd = os.pidfd_open(process.pid)
            except ProcessLookupError:
                continue
            stack.callback(os.close, fd)
            if is_running(process):  # Asked once the number is held: it can be given to no other now.
                open_fds[fd] = process
        for number, limit_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, _KILLED_S)):
            for fd in open_fds:
                try:
                    signal.pidfd_send_signal(fd, number)
                except ProcessLookupError:
                    continue
            _wait_for_end(open_fds, limit_s)
        for process in processes:
            _reap(process.pid)
        return list(open_fds.values())


def _wait_for_end(open_fds: dict[int, ServerProcess], limit_s: float) -> None:
    """Take out those that ended, until none is left or the time is over."""
    until_s = time.monotonic() + limit_s
    ends = select.poll()
    for fd in open_fds:
        ends.register(fd, select.POLLIN)  # A process descriptor is readable once its process has ended.
    while open_fds and (left_s := until_s - time.monotonic()) > 0:
        for fd, _ in ends.poll(left_s * 1e3):
            ends.unregister(fd)
            del open_fds[fd]


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # Another process started it.
        return


def wait_until_ready(
    process: ServerProcess, path: str, *, authorization: str | None = None, limit_s: float = READY_S
) -> None:
    """Wait until the server answers at the path.

    authorization: the value of that header, for a server that asks for a password.

    Raises:
        InfrastructureFailed: it ended, or does not answer in time; the message has its last lines. Or another user's
            program has its port.
    """
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        if not is_running(process):
            raise InfrastructureFailed(f"{process.name} ended at its start: {last_lines(Path(process.log))}")
        where = urlsplit(process.url)
        if uids_at(where.hostname or "", where.port or 0) - {os.getuid()}:  # Faster than ours, since the port was free.
            raise InfrastructureFailed(
                f"{process.name}: port {where.port} is taken by {holder_of(where.hostname or '', where.port or 0)}"
            )
        try:
            asked = Request(f"{process.url}{path}", headers={"Authorization": authorization} if authorization else {})
            with open_here(asked, timeout=5):
                return
        except HTTPError as error:  # It listens, and is not ready.
            error.close()
        except (OSError, HTTPException):
            pass
        time.sleep(_LOOK_S)
    raise InfrastructureFailed(
        f"{process.name} does not answer at {process.url}{path} after {limit_s:g} s: {last_lines(Path(process.log))}"
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
    """Hold back SIGINT and SIGTERM while the context is open, so that what is started is also recorded."""
    heard: list[tuple[int, FrameType | None]] = []
    former = {
        number: signal.signal(number, lambda *one: heard.append(one)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0][0])


def _boot() -> str:
    return _BOOT.read_text().strip()


def _start_ticks(pid: int) -> int | None:
    """Return when the process started, in ticks since the boot; None where there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # Behind the name, which may be odd.
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
