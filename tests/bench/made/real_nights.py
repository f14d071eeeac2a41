"""Nights of a tiny suite: the last one is measured on real ranks, those before it are made from a real one."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from bench.case import Purpose, SuiteMember
from bench.machine.machine import Machine
from bench.results.estimate import estimate, per_second
from bench.store.history import History
from bench.store.suite_record import SuiteRecord
from bench.store.summary import Summary
from collectors.metrics.results import RUN_MEAN_STEP_SECONDS, RUN_STEP_SECONDS, RUN_TOKENS_PER_SECOND

NIGHTS = 20
DAY_NS = 86_400 * 10**9
NOISE_RATIO = 0.01
SUITE = "tiny"
SUITE_FILE = """
schema_version = 1
nightly = true
period_hours = 24

[defaults]
device = "cpu"
ranks = 2
trials = 3
steps = 5
warm_up = 1
trace_steps = 2
layers = 1
width = 32
heads = 2
kv_heads = 2
mlp_width = 64
vocabulary = 64
sequence = 16
batch = 4

[case.ddp]
"""


@dataclass(frozen=True)
class RealNights:
    """A suite file with its runs and its history, in a folder. variables: of its commands, beside the present ones."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The history's."""
        return f"sqlite:///{self.folder / 'history.sqlite'}"

    def command(self, *words: str) -> list[str]:
        """Return the command line of `observatory` with this history."""
        return [sys.executable, "-P", "-m", "bench", *words, "--store", self.url]

    def call(self, *words: str, within: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Call `observatory` in a process of its own. within: a command that runs it, such as `nice`."""
        command = [*within, *self.command(*words)]
        environment = {**os.environ, **self.variables}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=600, cwd=self.folder, check=False, env=environment
        )

    def run_suite(self, *words: str, within: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run the suite."""
        runs = ("--runs", str(self.folder / "runs"), "--port", "0")
        return self.call("suite", "run", str(self.folder / f"{SUITE}.toml"), *runs, *words, within=within)

    def make_before(
        self,
        *,
        faster: float,
        as_it_was: Callable[[Machine], Machine] = lambda machine: machine,
        within: Sequence[str] = (),
    ) -> None:
        """Measure a night for real, and keep twenty nights before it that are so many times faster in its place.

        as_it_was: of the machine, what it was on these nights.
        """
        (self.folder / f"{SUITE}.toml").write_text(SUITE_FILE)
        first = self.run_suite("--no-gate", within=within)
        assert first.returncode == 0, first.stderr
        noise = random.Random(7)
        with History(self.url) as history:
            (summary,) = history.runs(9)
            machine = history.machine(summary.run)
            assert isinstance(machine, Machine)
            (record,) = history.suite_runs(9)
            folder = self.folder / "earlier"  # Away from the runs, of which the history would take it in again.
            shutil.move(summary.folder, folder)
            summary = replace(summary, folder=str(folder))
            for night in range(NIGHTS, 0, -1):
                run = _earlier(summary, night, noise, faster)
                history.add(run, as_it_was(machine))
                history.save_suite(_record_of(record, run, night))
            history.forget(summary.run)  # It was measured to know how fast this machine is.


def _earlier(summary: Summary, night: int, noise: random.Random, faster: float) -> Summary:
    """The run as it would have been so many nights ago, at the speed of its fastest trial times so much."""
    member = summary.purpose.member
    assert member is not None
    step_s = min(summary.estimates[0].trials) / faster
    steps_s = [step_s * (1 + noise.gauss(0, NOISE_RATIO)) for _ in range(3)]
    steps = (RUN_STEP_SECONDS, RUN_MEAN_STEP_SECONDS)
    rate = per_second(RUN_TOKENS_PER_SECOND, summary.case.shape.tokens, steps_s)
    replaced = {one.name for one in (*steps, RUN_TOKENS_PER_SECOND)}
    others = [one for one in summary.estimates if one.metric not in replaced]
    return replace(
        summary,
        run=f"{summary.run}-{night}",
        started_ns=summary.started_ns - night * DAY_NS,
        estimates=(*(estimate(one, steps_s) for one in steps), rate, *others),
        purpose=Purpose(origin="nightly", member=SuiteMember(suite=member.suite, id=f"night{night}", case=member.case)),
    )


def _record_of(record: SuiteRecord, run: Summary, night: int) -> SuiteRecord:
    return msgspec.structs.replace(
        record, id=f"night{night}", started_ns=run.started_ns, progress_ns=run.ended_ns, ended_ns=run.ended_ns
    )
