"""Starts the programs of a check for real, keeps what they print beside the check's log, and ends what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.gpu.readings import NO_PROGRAM
from tests.gpu.session import ROOT, Completed, Program

STOP_S = 15.0
"""How long an interrupted program may take to end in order."""
_LOOK_S = 0.05
SCRIPTS = "tests.gpu.scripts"


class OwnCommands:
    """Programs in a check's folder. say: is told what is started and how it ended."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._started = 0

    def run(self, *programs: Program) -> list[Completed]:
        """See `Commands.run`."""
        running = [self._start(program) for program in programs]
        while sum(one.is_over() for one in running) < len(running):  # Each is looked at, to note its own end.
            time.sleep(_LOOK_S)
        return [one.wait() for one in running]

    def start(self, program: Program) -> OwnRunning:
        """See `Commands.start`."""
        return self._start(program)

    def get(self, url: str) -> str:
        """See `Commands.get`."""
        with urllib.request.urlopen(url, timeout=10) as answer:
            body: bytes = answer.read()
        return body.decode()

    def _start(self, program: Program) -> OwnRunning:
        self._started += 1
        self._say(f"$ {' '.join(program.words)}")
        return OwnRunning(program, self._folder, f"program{self._started}", self._say)


class OwnRunning:
    """One program; what it prints goes to NAME.out and NAME.err in the folder."""

    def __init__(self, program: Program, folder: Path, name: str, say: Callable[[str], None]) -> None:
        self._program = program
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self._say = say
        self._begun_s = time.monotonic()
        self._ended_s: float | None = None
        self._completed: Completed | None = None
        self._process: subprocess.Popen[bytes] | None = None
        with self._out.open("wb") as out, self._err.open("wb") as err:
            try:
                self._process = subprocess.Popen(
                    command_line(program),
                    cwd=folder,
                    env={**os.environ, "PYTHONPATH": str(ROOT), **program.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
            except FileNotFoundError as error:
                err.write(f"{error}\n".encode())

    def first_line(self) -> str:
        """See `Running.first_line`."""
        while True:
            is_over = self._process is None or self._process.poll() is not None
            for path in (self._err, self._out):
                line, end, _ = path.read_text(errors="replace").partition("\n")
                if end:
                    return line
            if is_over:
                return ""
            time.sleep(_LOOK_S)

    def is_over(self) -> bool:
        """Whether it has ended; the first look that finds it so notes when."""
        is_over = self._process is None or self._process.poll() is not None
        if is_over and self._ended_s is None:
            self._ended_s = time.monotonic()
        return is_over

    def stop(self) -> Completed:
        """See `Running.stop`."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
            self._process.kill()  # Does nothing to one that has ended.
        return self.wait()

    def wait(self) -> Completed:
        """How it ended; waits for that, as the check's own limit lets it."""
        if self._completed is None:
            code = NO_PROGRAM if self._process is None else self._process.wait()
            ended_s = time.monotonic() if self._ended_s is None else self._ended_s
            self._completed = Completed(
                program=self._program,
                code=code,
                out=self._out.read_text(errors="replace"),
                err=self._err.read_text(errors="replace"),
                elapsed_s=ended_s - self._begun_s,
            )
            self._say(f"  code {code} after {self._completed.elapsed_s:.1f} s: {' '.join(self._program.words[:3])}")
            if self._completed.err.strip():
                self._say(self._completed.err.rstrip())
        return self._completed


def command_line(program: Program) -> list[str]:
    """What the operating system is given. The project is found on PYTHONPATH; it need not be installed."""
    first, *rest = program.words
    match first:
        case "observatory":
            return [sys.executable, "-P", "-m", "bench", *rest]
        case "script":
            return [sys.executable, "-P", "-m", f"{SCRIPTS}.{rest[0]}", *rest[1:]]
        case "pytest":
            return [
                sys.executable,
                "-P",
                "-m",
                "pytest",
                "--rootdir",
                str(ROOT),
                "-c",
                str(ROOT / "pyproject.toml"),
                *rest,
            ]
        case _:
            return list(program.words)
