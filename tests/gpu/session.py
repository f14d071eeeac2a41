"""What a check of the GPU machine works with: programs, sizes, earlier results, and a place for its findings.

A verdict of `ok` or `off` needs a bound whose source stands with it; what has no honest bound is `seen`, a figure to
keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.gpu.programs import Programs, Running
from workloads.spec import Device, Precision

Verdict = Literal["ok", "off", "seen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row of a check.

    expected: in words, with the bound. source: of the bound. key: under which later checks find `value`.
    """

    what: str
    seen: str
    expected: str
    source: str
    verdict: Verdict
    key: str | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One check at work.

    folder: the check's own; what it leaves there stays. device: cpu in a rehearsal, where figures mean nothing and
    everything is tiny. earlier: values that another check kept, by their keys.
    """

    folder: Path
    device: Device
    programs: Programs
    earlier: Callable[[str], Mapping[str, float]]
    findings: list[Finding] = field(default_factory=list)

    def within(
        self,
        what: str,
        value: float,
        *,
        low: float | None = None,
        high: float | None = None,
        unit: str = "",
        source: str,
    ) -> None:
        """Judge whether a value lies from low to high, both included; a rehearsal keeps the figure only."""
        assert low is not None or high is not None, f"{what}: a figure without a bound is `figure`"
        limits = (("at least", low), ("at most", high))
        expected = " and ".join(f"{word} {_short(limit)}" for word, limit in limits if limit is not None) + f" {unit}"
        is_ok = (low is None or value >= low) and (high is None or value <= high)
        verdict: Verdict = "seen" if self.is_rehearsal else "ok" if is_ok else "off"
        self._add(
            Finding(what=what, seen=_short(value, unit), expected=expected.strip(), source=source, verdict=verdict)
        )

    def holds(self, what: str, is_so: bool, *, seen: str, expected: str, source: str) -> None:
        """Judge something that is no number."""
        self._add(Finding(what=what, seen=seen, expected=expected, source=source, verdict="ok" if is_so else "off"))

    def figure(
        self, what: str, value: float | str, unit: str = "", *, compare: str = "", key: str | None = None
    ) -> None:
        """Keep something that has no bound. compare: what it can be read against."""
        number, seen = (None, value) if isinstance(value, str) else (value, _short(value, unit))
        self._add(Finding(what=what, seen=seen, expected=compare, source="", verdict="seen", key=key, value=number))

    def _add(self, row: Finding) -> None:
        self.findings.append(row)
        print(f"{row.verdict}: {row.what}: {row.seen} (expected: {row.expected or '-'})")

    @property
    def is_rehearsal(self) -> bool:
        """Whether this is a CPU, where figures mean nothing."""
        return self.device == "cpu"

    @property
    def half(self) -> Precision:
        """The precision of training on a GPU; CPUs without instructions for it take seconds a step in it."""
        return "fp32" if self.is_rehearsal else "bf16"

    def shape(self, name: str, batch: int) -> tuple[str, ...]:
        """Return the words that set the model; in a rehearsal those of the tiny model."""
        return ("--shape", "tiny") if self.is_rehearsal else ("--shape", name, "--batch", str(batch))

    def count(self, wanted: int) -> str:
        """Return a number of steps; in a rehearsal at most 3."""
        return str(min(wanted, 3) if self.is_rehearsal else wanted)

    def observed(self, strategy: str, *words: str) -> tuple[str, ...]:
        """Return `observatory run`: one trial, its result as JSON, its folder and history below the check's own."""
        trials = () if "--check-convergence" in words else ("--trials", "1")
        device = () if "--device" in words else ("--device", self.device)
        return ("observatory", "run", strategy, *device, *trials, *words, *self._places, "--format", "json")

    @property
    def store(self) -> str:
        """The history of this check's runs, as SQLAlchemy names it."""
        return f"sqlite:///{self.folder / 'history.sqlite'}"

    @property
    def _places(self) -> tuple[str, ...]:
        return ("--runs", str(self.folder / "runs"), "--store", self.store, "--port", "0")

    def server(self, *words: str) -> tuple[str, ...]:
        """Return `observatory serve` of this check's runs, on a free port; its first line says where."""
        return ("observatory", "serve", *self._places, *words)

    def analysed(self, analysis: str, *files: Path) -> tuple[str, ...]:
        """Return `observatory analyse` of files, as JSON."""
        return ("observatory", "analyse", analysis, *map(str, files), "--limit", "100000", "--format", "json")

    def script(self, name: str, *words: str) -> tuple[str, ...]:
        """Return a file of `tests/gpu/scripts`, on this session's device; it prints JSON."""
        return ("script", name, "--device", self.device, *words)

    @contextmanager
    def during(self, words: tuple[str, ...]) -> Iterator[Running]:
        """Keep a program running inside the block."""
        running = self.programs.start(words)
        try:
            yield running
        finally:
            running.stop()


def _short(value: float, unit: str = "") -> str:
    return f"{f'{value:,.0f}' if abs(value) >= 1e5 and value < float('inf') else f'{value:.4g}'} {unit}".strip()
