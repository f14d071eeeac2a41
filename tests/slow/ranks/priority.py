"""How a rank that sleeps is woken up in time on a machine that others use too."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def go_first() -> None:
    """Have this process's threads, and those they make, woken up before others, where the system lets it."""
    with suppress(PermissionError):
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))
