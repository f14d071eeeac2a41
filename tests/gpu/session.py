"""What a check may use: commands that it starts, the size at which it runs, and what earlier checks found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from workloads.spec import Device, Precision

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Program:
    """A command line. Its first word is `observatory`, `script` (one of `tests/gpu/scripts`), `pytest` or a program.

    environment: beside this process's own.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a program ended. code: 127 where there is no such program; minus a signal's number where one ended it."""

    program: Program
    code: int
    out: str
    err: str
    elapsed_s: float


class Running(Protocol):
    """A program that goes on beside the check."""

    def first_line(self) -> str:
        """The first line that it printed to either stream; waits for it, and is empty where it ended without one."""

    def stop(self) -> Completed:
        """Interrupt it, wait until it has ended, and kill it where it does not."""


class Commands(Protocol):
    """Starts programs. The real one is `tests.gpu.commands.OwnCommands`."""

    def run(self, *programs: Program) -> list[Completed]:
        """Run them at the same time, and wait for all."""

    def start(self, program: Program) -> Running:
        """Start one, and go on."""

    def get(self, url: str) -> str:
        """The body of a page of this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One check at work.

    folder: its own; what it leaves there stays. device: cpu in a rehearsal. gpus: that can be seen; in a rehearsal so
    many are taken to be there. earlier: the values that another check found, by their keys; empty where it found none.
    """

    folder: Path
    device: Device
    gpus: int
    commands: Commands
    earlier: Callable[[str], Mapping[str, float]]

    @property
    def is_rehearsal(self) -> bool:
        """Whether figures mean nothing, and everything is tiny."""
        return self.device == "cpu"

    @property
    def half(self) -> Precision:
        """The precision of training on a GPU; CPUs without instructions for it take seconds a step in it."""
        return "fp32" if self.is_rehearsal else "bf16"

    def shape(self, name: str, batch: int | None = None) -> tuple[str, ...]:
        """The words that set the model; in a rehearsal those of the tiny one."""
        if self.is_rehearsal:
            return ("--shape", "tiny")
        return ("--shape", name, *(() if batch is None else ("--batch", str(batch))))

    def count(self, wanted: int, *, rehearsed: int = 3) -> str:
        """A number of steps."""
        return str(min(wanted, rehearsed) if self.is_rehearsal else wanted)

    def observed(self, strategy: str, *words: str, **environment: str) -> Program:
        """`observatory run`: one trial, its result as JSON, its folder and history beneath the check's own.

        environment: beside this process's own.
        """
        trials = () if "--trials" in words or "--check-convergence" in words else ("--trials", "1")
        device = () if "--device" in words else ("--device", self.device)
        kept = ("--runs", str(self.folder / "runs"), "--store", self.store, "--port", "0", "--format", "json")
        return Program(("observatory", "run", strategy, *device, *trials, *words, *kept), environment)

    @property
    def store(self) -> str:
        """The history of this check's runs, as SQLAlchemy names it."""
        return f"sqlite:///{self.folder / 'history.sqlite'}"

    def analysed(self, analysis: str, *files: Path) -> Program:
        """`observatory analyse` of files, as JSON."""
        return Program(("observatory", "analyse", analysis, *map(str, files), "--limit", "100000", "--format", "json"))

    def script(self, name: str, *words: str) -> Program:
        """One of `tests/gpu/scripts`, on this session's device; it prints JSON."""
        return Program(("script", name, "--device", self.device, *words))

    @contextmanager
    def beside(self, program: Program) -> Iterator[Running]:
        """The program goes on as long as one is inside."""
        running = self.commands.start(program)
        try:
            yield running
        finally:
            running.stop()
