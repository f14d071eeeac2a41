"""A runner in a network in a box: it measures one case with the agent of another node, and again if that one fails.

Started as `python -m tests.slow.ranks.boxed_runner FOLDER HOST`. Each attempt listens at a port of its own, and prints
the port, then "running" when ranks measure, then how the attempt ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Literal

from bench.engines.agent_link import AgentLink
from bench.engines.wire.frames import new_key, write_key
from bench.engines.wire.run_files import LogSizes
from bench.engines.wire.tcp import AgentListener
from bench.errors import InfrastructureFailed
from bench.machine.machine import Machine
from bench.rank.messages import TrialEnded, TrialOrder, TrialProgress
from bench.results.trials import read_trials
from bench.session.measure import CaseOrder, Listener, TrialSettings, measure
from bench.store.run_dir import Run
from tests.bench.made.examples import small_case

STEPS = 1000
"""Enough that the trial outlasts the silence after which a link counts as cut."""
WITHIN_S = 100.0


class BoxedEngine(Listener):
    """An engine whose only agent is started by others, on another node. It watches the logs of runs as they grow."""

    name = "boxed"

    def __init__(self, folder: Path, host: str, key: bytes) -> None:
        with closing(AgentListener(host, key)) as listener:
            print(listener.port, flush=True)
            wire = listener.accept(WITHIN_S)
        assert wire is not None, "no agent came"
        assert wire.peer is not None, "the sides have met"
        self.link = AgentLink(
            wire.stream, lambda _: wire, log_sizes=LogSizes(folder), name=f"the agent of node {wire.peer.node}"
        )
        self.is_measuring = False

    def __enter__(self) -> BoxedEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def machine(self) -> Machine:
        """The node of the agent."""
        return self.link.machine()

    def stop(self) -> None:
        """End the agent."""
        self.link.hang_up(WITHIN_S)
        assert self.link.join(WITHIN_S)

    def begun(self, order: CaseOrder, run: Run) -> None:
        """Have the agent send what ranks log meanwhile."""
        self.link.watch(run.id)

    def progressed(self, order: CaseOrder, trial: int, steps: int) -> None:
        """Say once that the ranks measure."""
        if steps > 2 and not self.is_measuring:
            self.is_measuring = True
            print("running", flush=True)

    def collect(self, run: str) -> tuple[str, ...]:
        """Have the agent send its files."""
        try:
            self.problems = self.link.collect(run)
        except InfrastructureFailed as error:
            self.problems = (str(error),)
        return self.problems

    def run(self, order: TrialOrder, progress: Callable[[TrialProgress], None]) -> TrialEnded:
        """Measure a case once."""
        return self.link.run(order, progress)


def attempt(folder: Path, host: str, key: bytes, resumes: Path | None) -> tuple[Literal["done", "failed"], Path]:
    """Measure the case, or what a run of it lacks; return how that ended, and the run's folder."""
    with BoxedEngine(folder, host, key) as engine:
        order = CaseOrder(case=small_case(ranks=4, steps=STEPS), settings=TrialSettings(limit_s=200.0), resumes=resumes)
        machine = engine.machine()
        measured = measure([order], engine=engine, machine=machine, folder=folder, listener=engine)
        (summary,), (run,) = measured.summaries, measured.runs
        try:
            if summary.cause is not None:
                print("failed", summary.cause.kind, summary.cause.text, flush=True)
                return "failed", run.folder
            complete = [trial for trial in read_trials(run.folder, 4).trials if trial.step_s > 0]
            print(f"done, complete trials: {len(complete)}, files not whole: {engine.problems}", flush=True)
            return "done", run.folder
        finally:
            measured.close()


def main(folder: Path, host: str) -> None:
    """Measure the case; once more where the first agent is lost."""
    key, runs = new_key(), folder / "runner"
    write_key(folder / "key", key)
    runs.mkdir()
    outcome, run = attempt(runs, host, key, None)
    if outcome == "failed":
        attempt(runs, host, key, run)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
