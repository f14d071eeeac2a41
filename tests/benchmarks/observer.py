"""What the always-on collectors cost a step: blocks of steps with and without them, in turn, in one rank.

One process, so that both kinds of blocks share its memory layout; a block's median step is one repetition. With: step
clock, memory samples, the log, and the node's sampler beside. Without: one reading of the clock a step.

    python -m tests.benchmarks.observer [--blocks N] [--steps N]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # Public, but in no __all__.

from bench.judgement.estimate import estimate, ratio
from collectors import allocator
from collectors.catalogue.results import RUN_STEP_SECONDS
from collectors.catalogue.step import LOSS, PHASE_SECONDS, STEP_SECONDS
from collectors.roster import open_collectors
from collectors.sample_log import Reading, SampleLog
from collectors.sampler import polling
from collectors.step_clock import make_clock
from tests.benchmarks.plain import benchmark_case
from workloads.parts.data import Batches
from workloads.parts.mesh import make_mesh
from workloads.single import build

PROMISE = 0.01
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
    torch.set_num_threads(case.threads)
    clock = make_clock(DEVICE)
    is_on = False
    workload = build(case, make_mesh({"data": 1}, "cpu"), lambda name: clock.phase(name) if is_on else nullcontext())
    batches = Batches(case, data_rank=0, data_ranks=1)
    log = SampleLog(folder / "rank0.jsonl")
    times_s: dict[bool, list[float]] = {True: [], False: []}
    for block in range(2 * blocks + 2):
        is_on = block % 2 == 0
        node = (
            polling(open_collectors(), folder / "node0.jsonl", run="r", node=0, trial=0, on_problem=print)
            if is_on
            else nullcontext()
        )
        with node:
            clock.start()
            ends_s = [time.perf_counter()]
            for step in range(steps):
                loss = workload.step(next(batches))
                if is_on:
                    clock.end_step(loss)
                    samples = allocator.step_samples(DEVICE)
                    for finished in clock.finished():
                        samples.append(STEP_SECONDS.at(finished.step_s))
                        samples += [PHASE_SECONDS.at(value, phase=name) for name, value in finished.phases_s.items()]
                        samples += [LOSS.at(finished.loss)] if finished.loss is not None else []
                    log.write(Reading(trial=0, time_ns=time.time_ns(), mark="measured", step=step, samples=samples))
                ends_s.append(time.perf_counter())
        if block >= 2:  # The first of each kind warms up.
            times_s[is_on].append(median(end - start for start, end in pairwise(ends_s)))
    batches.close()
    found = ratio(estimate(RUN_STEP_SECONDS, times_s[True]), estimate(RUN_STEP_SECONDS, times_s[False]))
    assert found.low is not None
    assert found.high is not None
    verdict = "kept" if found.high <= 1 + PROMISE else "broken" if found.low > 1 + PROMISE else "unsure"
    step_ms = 1e3 * median(times_s[False])
    return (
        f"always-on collectors: {100 * (found.value - 1):+.2f} % of the median step"
        f" [{100 * (found.low - 1):+.2f}, {100 * (found.high - 1):+.2f}]; steps of {step_ms:.1f} ms,"
        f" {blocks} blocks of {steps} steps each way; the promise of {100 * PROMISE:g} % is {verdict}"
    )


if __name__ == "__main__":
    main()
