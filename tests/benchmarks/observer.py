"""What watching costs a step: blocks of steps that are watched, traced or left alone, in turn, in one rank.

One process, so that all blocks share its memory layout; a block's median step is one repetition. Watched: all that is
always on: step clock, memory by phase, speed, the log, the node's sampler in a thread of this process, and beside it an
`observatory serve` that polls the node each second, follows the log and is scraped once a block. Traced: the profiler.
Bare: one reading of the clock a step, while the server is stopped.

    python -m tests.benchmarks.observer [--blocks N] [--steps N]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # Public, but in no __all__.

from bench.case import Case
from bench.machine.machine import read as read_machine
from bench.rank.instrumentation import PhaseMarks
from bench.rank.train import StepSpeed
from bench.results.estimate import estimate, ratio
from bench.results.mfu import peak_of
from bench.store.run_dir import begin
from collectors.metrics.rank import LOSS, OBSERVER_SECONDS, PHASE_SECONDS, STEP_SECONDS
from collectors.metrics.results import RUN_STEP_SECONDS
from collectors.node.poller import Poller
from collectors.node.registry import open_collectors
from collectors.node.watch import polling
from collectors.rank.memory import make_memory
from collectors.rank.profiler import ProfiledSteps
from collectors.rank.step_clock import make_clock
from collectors.sample_log import Opened, Reading, SampleLog
from tests.benchmarks.plain import benchmark_case
from workloads.core.data import Batches
from workloads.core.mesh import make_mesh
from workloads.data_parallel.strategy import build_single

PROMISE = 0.01
WINDOW_PROMISE = 0.05
Kind = Literal["bare", "watched", "traced"]
DEVICE = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12, help="of each kind")
    parser.add_argument("--steps", type=int, default=15, help="of a block")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", store=FileStore(f"{folder}/store", 1), rank=0, world_size=1)
        print(_compare(Path(folder), arguments.blocks, arguments.steps), flush=True)
    os._exit(0)  # gloo may abort in the interpreter's farewell.


def _compare(folder: Path, blocks: int, steps: int) -> str:
    case = benchmark_case("single", steps)
    run = begin(case, read_machine(), folder)
    agent = _Agent(folder)
    rank = _Rank(case, run.folder, agent)
    times_s: dict[Kind, list[float]] = {kind: [] for kind in get_args(Kind)}
    try:
        for block in range(blocks + 1):
            for kind, of_kind_s in times_s.items():
                measured_s = rank.block(kind)
                if block:  # The first of each kind warms up.
                    of_kind_s.append(measured_s)
    finally:
        rank.close()
        agent.close()
        run.close()
    return "\n".join(
        [
            _line("always-on collectors", times_s["watched"], times_s["bare"], PROMISE),
            _line("the profiler's window (promised on a GPU only)", times_s["traced"], times_s["bare"], WINDOW_PROMISE),
            f"{blocks} blocks of {steps} steps each way; bare steps of {1e3 * median(times_s['bare']):.1f} ms",
        ]
    )


class _Agent:
    """An `observatory serve` on the folder of runs, which is stopped except where it is asked for."""

    def __init__(self, runs: Path) -> None:
        command = ["serve", "--port=0", f"--runs={runs}", f"--store=sqlite:///{runs}/history.sqlite"]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench", *command], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        self._url = self._process.stderr.readline().removeprefix("serving ").strip()
        self._process.send_signal(signal.SIGSTOP)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """It goes on meanwhile, and is scraped once."""
        self._process.send_signal(signal.SIGCONT)
        scrape = threading.Thread(target=self._scrape)
        scrape.start()
        try:
            yield
        finally:
            scrape.join()
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        self._process.communicate()

    def _scrape(self) -> None:
        with urllib.request.urlopen(self._url, timeout=30) as answer:
            answer.read()


class _Rank:
    """One rank of `single` whose steps are watched, traced or left alone."""

    def __init__(self, case: Case, folder: Path, agent: _Agent) -> None:
        torch.set_num_threads(case.threads)
        self._folder = folder
        self._agent = agent
        self._steps = case.steps
        self._marks = PhaseMarks(make_clock(DEVICE), make_memory(DEVICE))
        self._is_watched = False
        self._workload = build_single(case, make_mesh({"data": 1}, "cpu"), self._phase)
        self._batches = Batches(case, data_rank=0, data_ranks=1)
        peak = peak_of(None, case.precision)
        self._speed = StepSpeed(case, tokens=case.shape.tokens, peak=peak, ceiling_flops_per_second=1e12)
        self._poller = Poller(open_collectors())
        self._log = SampleLog(folder / "rank0.jsonl")
        self._log.write(Opened(run=folder.name, trial=0, rank=0, time_ns=time.time_ns(), pid=os.getpid(), host="here"))

    def block(self, kind: Kind) -> float:
        """The median of so many steps, in seconds."""
        self._is_watched = kind == "watched"
        ends_s = []
        with self._watch(kind) as window:
            self._marks.start()
            ends_s.append(time.perf_counter())
            for step in range(self._steps):
                with window.step() if isinstance(window, ProfiledSteps) else nullcontext():
                    loss = self._workload.step(next(self._batches))
                if self._is_watched:
                    self._write(step, loss)
                ends_s.append(time.perf_counter())
        return median(end - start for start, end in pairwise(ends_s))

    def close(self) -> None:
        """End the loader and the collectors."""
        self._batches.close()
        self._poller.close()

    def _phase(self, name: str) -> AbstractContextManager[None]:
        return self._marks.phase(name) if self._is_watched else nullcontext()

    @contextmanager
    def _watch(self, kind: Kind) -> Iterator[ProfiledSteps | None]:
        if kind == "traced":
            with ProfiledSteps(DEVICE) as window:
                yield window
        elif kind == "bare":
            yield None
        else:
            node = self._folder / "node0.jsonl"
            with self._agent.awake(), polling(self._poller, node, run="r", node=0, trial=0, on_problem=print):
                yield None

    def _write(self, step: int, loss: torch.Tensor | None) -> None:
        clock, observer_s = self._marks.clock, self._marks.take_reading_ns() / 1e9
        clock.end_step(loss)
        samples = [*self._marks.memory.end_step(), OBSERVER_SECONDS.at(observer_s)]
        for finished in clock.finished():
            samples += [STEP_SECONDS.at(finished.step_s), *self._speed.samples(finished.step_s)]
            samples += [PHASE_SECONDS.at(value, phase=name) for name, value in finished.phases_s.items()]
            samples += [LOSS.at(finished.loss)] if finished.loss is not None else []
        self._log.write(Reading(trial=0, time_ns=time.time_ns(), mark="measured", step=step, samples=samples))


def _line(name: str, with_s: list[float], without_s: list[float], promise: float) -> str:
    found = ratio(estimate(RUN_STEP_SECONDS, with_s), estimate(RUN_STEP_SECONDS, without_s))
    assert found.low is not None
    assert found.high is not None
    verdict = "kept" if found.high <= 1 + promise else "broken" if found.low > 1 + promise else "unsure"
    return (
        f"{name}: {100 * (found.value - 1):+.2f} % of the median step"
        f" [{100 * (found.low - 1):+.2f}, {100 * (found.high - 1):+.2f}]; {100 * promise:g} % is {verdict}"
    )


if __name__ == "__main__":
    main()
