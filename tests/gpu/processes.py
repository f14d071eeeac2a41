"""Starts a program as the leader of a group of its own, and ends all that came of it.

Ranks and agents lead sessions of their own, and what a killed process leaves goes to another parent. So this process
adopts orphans while it watches, and looks for descendants until there are none. Only descendants are ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

_PR_SET_CHILD_SUBREAPER = 36
"""Of Linux's prctl, see its manual."""
ENDING_S = 10.0
"""How long killed processes are waited for; one that a driver holds may take longer."""
_LOOK_S = 0.02


def adopt_orphans(*, is_adopting: bool = True) -> bool:
    """Become the parent of descendants whose own parent dies, or be it no more; whether the kernel does so."""
    refused: int = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_adopting), 0, 0, 0)
    return refused == 0


def start(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a program in the folder, as the leader of a session and a group of its own."""
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )


def descendants() -> list[psutil.Process]:
    """All processes that came of this one and are no zombies."""
    alive = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def end(process: subprocess.Popen[bytes], before: Sequence[psutil.Process], *, ending_s: float = ENDING_S) -> list[str]:
    """End a program of `start`, its group, and whatever else came of this process since `before`.

    before: descendants that are none of its. Returns: the command lines of those that are still there at the end.
    """
    kept = {one.pid for one in before}
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    until = time.monotonic() + ending_s
    killed: set[int] = set()
    while True:
        process.poll()
        left = [one for one in descendants() if one.pid not in kept]
        _reap(killed - {process.pid})
        if not left or time.monotonic() > until:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
            return [_line(one) for one in left]
        for one in left:
            killed.add(one.pid)
            with suppress(psutil.NoSuchProcess):
                one.kill()
        time.sleep(_LOOK_S)


def _reap(pids: Iterable[int]) -> None:
    """Take the exit codes of processes that were killed, as far as they are this one's children by now."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:100] or process.name()
    except psutil.NoSuchProcess:
        return f"process {process.pid}"
