"""Starts the programs of a check, keeps what they print in the check's folder, and ends whatever is left of them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
LAST_LINES = 6
NO_PROGRAM = 127
STOP_S = 15.0
"""How long an interrupted program may take to end in order."""
ENDING_S = 10.0
"""How long killed processes are waited for; a driver may hold a process longer."""
_LOOK_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36
"""Of Linux's prctl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a program ended. code: 127 where there is no such program; minus the number of a signal that ended it."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    elapsed_s: float

    def __str__(self) -> str:
        """Return which program ended how, with the end of what it said."""
        text = (self.err.strip() or self.out.strip()).splitlines()[-LAST_LINES:]
        return f"{' '.join(self.words[:3])} ended with code {self.code}: {' | '.join(text) or 'it said nothing'}"


class Running:
    """One program; what it prints goes to NAME.out and NAME.err in the folder."""

    def __init__(self, words: tuple[str, ...], folder: Path, name: str) -> None:
        self._words = words
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self._start_s = time.monotonic()
        self._end_s: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        print(f"$ {' '.join(words)}")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            try:
                self._process = subprocess.Popen(
                    command_line(words), cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
                )
            except FileNotFoundError as error:
                err.write(f"{error}\n".encode())

    def first_line(self) -> str:
        """Return the first line that it printed to either stream; empty where it ended without a line."""
        while True:
            is_over = self.is_over()
            for path in (self._err, self._out):
                line, end, _ = path.read_text(errors="replace").partition("\n")
                if end:
                    return line
            if is_over:
                return ""
            time.sleep(_LOOK_S)

    def is_over(self) -> bool:
        """Return whether it has ended; the first look that sees this notes when."""
        is_over = self._process is None or self._process.poll() is not None
        if is_over and self._end_s is None:
            self._end_s = time.monotonic()
        return is_over

    def stop(self) -> None:
        """Interrupt it, wait until it has ended, and kill it where it does not."""
        if self._process is not None and not self.is_over():
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
            self._process.kill()  # Does nothing to a process that has ended.
            self._process.wait()

    def completed(self) -> Completed:
        """Return how it ended; it is over."""
        assert self._end_s is not None
        completed = Completed(
            words=self._words,
            code=NO_PROGRAM if self._process is None else self._process.returncode,
            out=self._out.read_text(errors="replace"),
            err=self._err.read_text(errors="replace"),
            elapsed_s=self._end_s - self._start_s,
        )
        print(f"  code {completed.code} after {completed.elapsed_s:.1f} s: {' '.join(self._words[:3])}")
        print(completed.err.rstrip())
        return completed


class Programs:
    """Starts command lines.

    Their first word is `observatory`, `script` (a file of `tests/gpu/scripts`), `pytest` or a program.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = 0

    def run(self, *programs: tuple[str, ...]) -> list[Completed]:
        """Run them at the same time, and wait for all."""
        running = [self.start(words) for words in programs]
        while sum(program.is_over() for program in running) < len(running):  # Each look notes when a program ended.
            time.sleep(_LOOK_S)
        return [program.completed() for program in running]

    def start(self, words: tuple[str, ...]) -> Running:
        """Start a program and return at once."""
        self._started += 1
        return Running(words, self._folder, f"program{self._started}")

    def get(self, url: str) -> str:
        """Return the body of a page of this machine."""
        with urllib.request.urlopen(url, timeout=10) as answer:
            body: bytes = answer.read()
        return body.decode()


def command_line(words: Sequence[str]) -> list[str]:
    """Return what the operating system gets. PYTHONPATH has the project; it need not be installed."""
    first, *rest = words
    modules = {"observatory": ["bench"], "pytest": ["pytest", "-c", str(ROOT / "pyproject.toml")]}
    if first == "script":
        return [sys.executable, "-P", "-m", f"tests.gpu.scripts.{rest[0]}", *rest[1:]]
    return [sys.executable, "-P", "-m", *modules[first], *rest] if first in modules else list(words)


def adopt_orphans(is_adopting: bool) -> None:
    """Become the parent of descendants whose own parent dies, or stop being it.

    Ranks and agents lead sessions of their own, and what a killed process leaves goes to another parent.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_adopting), 0, 0, 0)


def descendants() -> list[psutil.Process]:
    """Return all processes that this process started, directly or not, and that are no zombies."""
    alive = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def end_descendants(before: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Kill all descendants but those of `before`; return those that are still there at the end."""
    others = set(before)
    until_s = time.monotonic() + ENDING_S
    killed: set[int] = set()
    while (left := [process for process in descendants() if process not in others]) and time.monotonic() < until_s:
        for process in left:
            killed.add(process.pid)
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(_LOOK_S)
    for pid in killed:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return left
