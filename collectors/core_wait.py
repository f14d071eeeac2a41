"""How long the calling thread was ready to run and no core was free for it, as Linux counts it."""

from __future__ import annotations

import os
from pathlib import Path

SCHEDSTAT = Path("/proc/thread-self/schedstat")
_WAITED = 1
"""Its place in the file: time on a core, time in the run queue, time slices; nanoseconds."""
_LONGEST = 128


class CoreWait:
    """The time in the run queue of the thread that made it; read by any thread.

    Source: Documentation/scheduler/sched-stats.rst of Linux, `/proc/<pid>/schedstat`.
    """

    def __init__(self, path: Path = SCHEDSTAT) -> None:
        """path: of this thread's file; without one, or one that says nothing, the time is unknown."""
        self._file: int | None = None
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._read_ns(self._file)
        except (OSError, ValueError, IndexError):
            self.close()

    def waited_ns(self) -> int | None:
        """Since the thread began; None where the kernel does not tell."""
        return None if self._file is None else self._read_ns(self._file)

    def close(self) -> None:
        """No more is asked."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @staticmethod
    def _read_ns(file: int) -> int:
        return int(os.pread(file, _LONGEST, 0).split()[_WAITED])
