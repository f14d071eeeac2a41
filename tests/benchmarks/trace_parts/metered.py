"""What a command costs with all processes that it starts, those that outlive it too. Linux alone has the means.

CPU time is the system's own account of each process as it ends. Memory is the pages of all processes, shared ones by
their share, looked at on a beat; of a command that stays alone, its own highest mark, which no beat can miss.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

BEAT_S = 0.05
_BECOME_THE_PARENT_OF_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of a whole command, from its start to the end of its last process. output: what it wrote."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    output: bytes


def metered(command: Sequence[str]) -> Cost:
    """Run it and wait for all that it started.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_BECOME_THE_PARENT_OF_ORPHANS, 1, 0, 0, 0)
    begun_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    cpu_s, peak_bytes, code, output = 0.0, 0, None, b""
    while True:
        output += process.stdout.read() or b""
        try:
            ended, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if not ended:
            peak_bytes = max(peak_bytes, _resident_bytes())
            time.sleep(BEAT_S)
            continue
        cpu_s += usage.ru_utime + usage.ru_stime
        if ended == process.pid:
            code = os.waitstatus_to_exitcode(status)
            peak_bytes = max(peak_bytes, 1024 * usage.ru_maxrss)
    wall_s = time.perf_counter() - begun_s
    output += process.stdout.read() or b""
    process.stdout.close()
    process.returncode = code
    if code:
        raise subprocess.CalledProcessError(code, list(command))
    return Cost(cpu_s=cpu_s, wall_s=wall_s, peak_bytes=peak_bytes, output=output)


def _resident_bytes() -> int:
    resident_bytes = 0
    for process in psutil.Process().children(recursive=True):
        try:
            resident_bytes += process.memory_full_info().pss
        except psutil.Error:  # It ended meanwhile.
            continue
    return resident_bytes
