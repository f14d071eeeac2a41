"""How steps are timed, traced and watched: phases, windows of the profiler, memory, and an agent that asks NVML."""

from __future__ import annotations

import pickle
from itertools import groupby
from statistics import median

import pytest

from collectors.metrics import results
from collectors.metrics.agent import AGENT_CPU_SECONDS
from collectors.metrics.rank import PHASE_SECONDS, STEP_SECONDS, TIMELINE_PEAK_BYTES, TRACED_STEP_SECONDS
from tests.gpu.readings import RunReader, run, sample, scraped
from tests.gpu.session import Session

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(60)]

PROMISED_CHANGE = 0.01
"""Of the median step, while an agent polls NVML. Source: docs/measured/costs.md."""
HOST = "host"
"""Part of the name of a phase that is time of the host and so no part of the device's step."""
TOTAL = "total"
"""The category of memory that is the sum of the others."""


def test_loader(gpu: Session) -> None:
    """A slow loader before a device that runs behind: phases add up to at most the step."""
    words = ("--precision", gpu.half, "--steps", gpu.count(20), "--trace-steps", "0", "--option", "loader_delay_ms=20")
    single = run(gpu, "single", *gpu.shape("125m", 8), *words)
    ratios = []
    for step in single.readings("measured"):
        phases = [row for row in step.samples if row.metric == PHASE_SECONDS.name and HOST not in row.labels["phase"]]
        ratios.append(sum(row.value for row in phases) / sample(step.samples, STEP_SECONDS))
    medians = {phase: seconds for (phase,), seconds in single.values(results.RUN_PHASE_SECONDS).items()}
    gpu.figure("phases", ", ".join(f"{phase} {1e3 * seconds:.3g} ms" for phase, seconds in medians.items()))
    source = "docs: phases add up to at most the step"
    gpu.within("sum of phases / step, at most", max(ratios), high=1.001, source=source)


def test_windows(gpu: Session) -> None:
    """Windows between measured steps: what the first costs, and whether later steps are as fast as before."""
    size = ("--steps", "6", "--trace-every", "2") if gpu.is_rehearsal else ("--steps", "20", "--trace-every", "5")
    single = run(gpu, "single", *gpu.shape("125m", 8), "--precision", gpu.half, *size, "--trace-steps", "3")
    stretches = stretches_of_steps(single)
    measured = [times_s for mark, times_s in stretches if mark == "measured"]
    traced = [times_s for mark, times_s in stretches if mark == "traced"]
    before_s, after_s = median(measured[0]), median(step_s for stretch in measured[1:] for step_s in stretch)
    source = "a window ends with itself; 2 % for clocks"
    gpu.within("steps after windows / before", after_s / before_s, high=1.02, source=source)
    gpu.figure("first traced step / the window's others", traced[0][0] / median(traced[0][1:] or traced[0]))
    gpu.figure("traced step / measured step", median(traced[-1]) / before_s, compare="a window may cost 5 %")


def stretches_of_steps(single: RunReader) -> list[tuple[str, list[float]]]:
    """Return stretches of steps of one mark, in the order in which rank 0 ran them, with each step's seconds."""
    metrics = {"measured": STEP_SECONDS, "traced": TRACED_STEP_SECONDS}
    return [
        (mark, [sample(step.samples, metrics[mark]) for step in stretch])
        for mark, stretch in groupby(single.readings("measured", "traced"), key=lambda step: str(step.mark))
    ]


def test_snapshot(gpu: Session) -> None:
    """A step's memory by category, compared with the allocator's peak, and torch's own history of it."""
    words = ("--precision", gpu.half, "--steps", "5", "--trace-steps", "0", "--memory-snapshot")
    single = run(gpu, "single", *gpu.shape("125m", 8), *words)
    samples = [row for step in single.readings("memory") for row in step.samples]
    categories = {row.labels["category"]: row.value for row in samples if row.metric == TIMELINE_PEAK_BYTES.name}
    total = categories.pop(TOTAL)
    gpu.figure("categories", ", ".join(f"{name} {value / 2**20:.4g} MiB" for name, value in categories.items()))
    source = "each block has one category"
    gpu.within("sum of categories / total", sum(categories.values()) / total, low=0.999, high=1.001, source=source)
    if gpu.is_rehearsal:
        return
    peak_bytes = single.value(results.RUN_PEAK_MEMORY_BYTES, account="allocator")
    source = "the same step, unmeasured"
    gpu.within("total / allocator's peak", total / peak_bytes, low=0.9, high=1.1, source=source)
    history = pickle.loads((single.folder / "rank0.memory.pickle").read_bytes())
    seen = ", ".join(history)
    source = "torch.cuda.memory._snapshot"
    gpu.holds("history", "segments" in history, seen=seen, expected="segments", source=source)


def test_polling(gpu: Session) -> None:
    """Steps with and without an agent that asks NVML ten times a second: NVML's lock is the driver's."""
    words = ("--precision", gpu.half, "--steps", gpu.count(20), "--trace-steps", "0")

    def step_s() -> float:
        return run(gpu, "single", *gpu.shape("125m", 8), *words).value(results.RUN_STEP_SECONDS)

    before_s = step_s()
    with gpu.during(gpu.server("--beat", "0.1")) as agent:
        url = agent.first_line().removeprefix("serving ").strip()
        polled_s = step_s()
        ((_, cpu_s),) = scraped(gpu.programs.get(url), AGENT_CPU_SECONDS)
    after_s = step_s()
    noise = abs(after_s / before_s - 1)
    gpu.within(
        "polled step / others, less 1",
        polled_s / median((before_s, after_s)) - 1,
        high=PROMISED_CHANGE + noise,
        source=f"the promise of {PROMISED_CHANGE:g}, and {noise:.2g} by which the two others differ",
    )
    gpu.figure("agent's CPU since its start", cpu_s, "s")
