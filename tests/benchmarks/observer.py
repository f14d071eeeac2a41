"""What watching costs a step: blocks of steps that are watched, traced or left alone, in turn, in one rank.

One process, so that all blocks share its memory layout; a block's median step is one repetition. Watched: step clock,
memory samples, the log, and the node's sampler beside. Traced: the profiler. Bare: one reading of the clock a step.

    python -m tests.benchmarks.observer [--blocks N] [--steps N]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # Public, but in no __all__.

from bench.judgement.estimate import estimate, ratio
from collectors import allocator
from collectors.catalogue.results import RUN_STEP_SECONDS
from collectors.catalogue.step import LOSS, PHASE_SECONDS, STEP_SECONDS
from collectors.profiler import Window
from collectors.roster import open_collectors
from collectors.sample_log import Reading, SampleLog
from collectors.sampler import polling
from collectors.step_clock import make_clock
from tests.benchmarks.plain import benchmark_case
from workloads.parts.data import Batches
from workloads.parts.mesh import make_mesh
from workloads.single import build

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
    rank = _Rank(folder, steps)
    times_s: dict[Kind, list[float]] = {kind: [] for kind in get_args(Kind)}
    for block in range(blocks + 1):
        for kind, of_kind_s in times_s.items():
            measured_s = rank.block(kind)
            if block:  # The first of each kind warms up.
                of_kind_s.append(measured_s)
    rank.close()
    return "\n".join(
        [
            _line("always-on collectors", times_s["watched"], times_s["bare"], PROMISE),
            _line("the profiler's window (promised on a GPU only)", times_s["traced"], times_s["bare"], WINDOW_PROMISE),
            f"{blocks} blocks of {steps} steps each way; bare steps of {1e3 * median(times_s['bare']):.1f} ms",
        ]
    )


class _Rank:
    """One rank of `single` whose steps are watched, traced or left alone."""

    def __init__(self, folder: Path, steps: int) -> None:
        case = benchmark_case("single", steps)
        torch.set_num_threads(case.threads)
        self._folder = folder
        self._steps = steps
        self._clock = make_clock(DEVICE)
        self._is_watched = False
        self._workload = build(case, make_mesh({"data": 1}, "cpu"), self._phase)
        self._batches = Batches(case, data_rank=0, data_ranks=1)
        self._log = SampleLog(folder / "rank0.jsonl")

    def block(self, kind: Kind) -> float:
        """The median of so many steps, in seconds."""
        self._is_watched = kind == "watched"
        ends_s = []
        with self._watch(kind) as window:
            self._clock.start()
            ends_s.append(time.perf_counter())
            for step in range(self._steps):
                with window.step() if isinstance(window, Window) else nullcontext():
                    loss = self._workload.step(next(self._batches))
                if self._is_watched:
                    self._write(step, loss)
                ends_s.append(time.perf_counter())
        return median(end - start for start, end in pairwise(ends_s))

    def close(self) -> None:
        """End the loader."""
        self._batches.close()

    def _phase(self, name: str) -> AbstractContextManager[None]:
        return self._clock.phase(name) if self._is_watched else nullcontext()

    def _watch(self, kind: Kind) -> AbstractContextManager[Window | None]:
        if kind == "traced":
            return Window(DEVICE)
        if kind == "bare":
            return nullcontext()
        node = self._folder / "node0.jsonl"
        return polling(open_collectors(), node, run="r", node=0, trial=0, on_problem=print)

    def _write(self, step: int, loss: torch.Tensor | None) -> None:
        self._clock.end_step(loss)
        samples = allocator.step_samples(DEVICE)
        for finished in self._clock.finished():
            samples.append(STEP_SECONDS.at(finished.step_s))
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
