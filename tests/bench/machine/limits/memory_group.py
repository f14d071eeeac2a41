"""A real control group, of version 1 or 2, whose memory is limited and counted, and Python programs in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.machine.container import own_groups

LOOK_S = 0.05
TAKEN_DOWN_S = 20.0
RETURNS_FREED = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
"""glibc's setting with which a freed tensor of 1 MB or more leaves the process. Without it, glibc keeps freed tensors,
and how many depends on chance."""


@dataclass(frozen=True)
class MemoryGroup:
    """A control group for memory. version: of control groups, 1 or 2."""

    folder: Path
    version: int

    def limit(self, most_bytes: int) -> None:
        """Let the kernel kill a process of the group if they need more; nothing is swapped out."""
        limit, swap = ("memory.max", "memory.swap.max")
        if self.version == 1:
            limit, swap = ("memory.limit_in_bytes", "memory.swappiness")
        (self.folder / limit).write_text(str(most_bytes))
        if (self.folder / swap).exists():  # A kernel that cannot swap has no such file.
            (self.folder / swap).write_text("0")

    def pids(self) -> list[int]:
        """Return the processes in the group."""
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]

    def held_bytes(self) -> int:
        """Return what the processes hold now, not counting cached files, which the kernel drops at the limit."""
        counts = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        return int(counts["anon" if self.version == 2 else "total_rss"])

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start Python with these words in the group."""
        join = f"import os, sys; open({str(self.folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
        start = f"{join}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        return subprocess.Popen(
            [sys.executable, "-c", start, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **RETURNS_FREED},
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these words in the group."""
        with self.start(*words) as process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def most_held_bytes(self, *words: str) -> int:
        """Run Python with these words in the group; return the most that its processes held together.

        It may print only what fits into a pipe.
        """
        most_bytes = 0
        with self.start(*words) as process:
            while process.poll() is None:
                most_bytes = max(most_bytes, self.held_bytes())
                time.sleep(LOOK_S)
            assert process.stderr is not None
            assert process.returncode == 0, process.stderr.read()
        return most_bytes


@contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """Make a control group, and remove it at the end with all its processes; skip the test if that is not allowed."""
    try:
        version, above = next(
            (version, folder)
            for version, folder in own_groups("memory")
            # In version 2, a group with processes hands no controller on, but one further up does.
            if version == 1 or "memory" in (folder / "cgroup.subtree_control").read_text().split()
        )
        folder = above / f"observatory-test-{os.getpid()}"
        folder.mkdir()
    except StopIteration:
        pytest.skip("no control group can be made here: none has memory to hand on")
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    group = MemoryGroup(folder, version)
    try:
        yield group
    finally:
        deadline_s = time.monotonic() + TAKEN_DOWN_S
        while (pids := group.pids()) and time.monotonic() < deadline_s:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(LOOK_S)
        folder.rmdir()
