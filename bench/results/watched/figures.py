"""The figures of a watched job, with intervals by batch means, since consecutive steps are correlated.

A job is a single trial. Its measured steps are cut into ten equal stretches, and the figure of each stretch takes the
place of a trial's. Stretches much longer than the correlation between steps are nearly independent; their own
correlation is tested before an interval is given. The interval covers only the noise within this run; another run may
differ by more.
Source: Law 2015, Simulation Modeling and Analysis, section 9.5.3 (batch means); Conway 1963.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from bench.results.estimate import Estimate, estimate, estimate_share, per_second, spread
from bench.results.watched.job import Job
from bench.results.watched.rank_files import PHASES
from collectors.metrics import results
from collectors.metrics.metric import Metric
from workloads.cost_models.absent import Absent

BLOCKS = 10
LEAST_BLOCK = 10
"""Fewest steps of a block; a job of fewer than `BLOCKS` times as many measured steps has no interval."""
MOST_CORRELATION = 0.5
"""Highest correlation of consecutive blocks. Independent ones exceed it in 2 % of runs, drifting ones nearly always."""
QUANTILES = {"p90": 0.9, "p99": 0.99}


def estimates_of(job: Job) -> tuple[tuple[Estimate, ...], tuple[float, ...], tuple[str, ...]]:
    """Return a job's figures, the spread of its steps in each block, and notes on absent figures with the reason."""
    steps_s = job.step_s
    if not len(steps_s):
        return (), (), (f"all figures are absent: {why_no_step(job)}",)
    blocks, why = _blocks(steps_s)
    notes = [] if why is None else [f"intervals are absent: {why}"]
    estimates = [
        _of_blocks(results.RUN_STEP_SECONDS, steps_s, blocks, _median),
        _of_blocks(results.RUN_MEAN_STEP_SECONDS, steps_s, blocks, _mean),
        *(
            _of_blocks(results.RUN_STEP_QUANTILE_SECONDS, steps_s, blocks, _quantile(share), quantile=name)
            for name, share in QUANTILES.items()
        ),
    ]
    tokens = job.tokens
    if isinstance(tokens, Absent):
        notes.append(f"tokens per second are absent: {tokens.reason}")
    else:
        estimates += _rates(job, tokens, blocks)
    estimates += _phases(job, blocks, notes)
    estimates += _memory(job)
    if job.known("own"):
        # Both by the host's clock, summed over a stretch; on the rank with the largest share.
        shares = [
            float((job.rank_s["own"][:, block].sum(axis=1) / job.rank_s["step"][:, block].sum(axis=1)).max())
            for block in blocks
        ]
        if all(0 <= share <= 1 for share in shares):
            estimates.append(estimate_share(results.RUN_OBSERVER_RATIO, shares))
    return tuple(estimates), tuple(spread([float(step) for step in steps_s[block]]) for block in blocks), tuple(notes)


def rank_estimates(means: Sequence[tuple[int, dict[str, float | None]]]) -> Iterator[Estimate]:
    """Yield the mean time of each known phase on each rank. means: each rank with its phases in seconds."""
    for rank, phases in means:
        for phase, mean_s in phases.items():
            if mean_s is not None and mean_s > 0:
                yield estimate(results.RUN_RANK_PHASE_SECONDS, [mean_s], rank=str(rank), phase=phase)


def why_no_step(job: Job) -> str:
    if not job.files:
        return "no process reported; it may have no rank, no torch, or a Python that reads no sitecustomize"
    if not any(attempt.steps for file in job.files for attempt in file.attempts):
        return "no steps seen; the program may end within its first step, use no optimizer, or replay CUDA graphs"
    if not job.common:
        return "no step was reported by all ranks"
    return "all steps are warm-up"


def _blocks(steps_s: NDArray[np.float64]) -> tuple[list[slice], str | None]:
    """Return the stretches of the steps, and the reason if there is only one."""
    whole = [slice(0, len(steps_s))]
    if len(steps_s) < BLOCKS * LEAST_BLOCK:
        return whole, f"{len(steps_s)} measured steps are fewer than {BLOCKS * LEAST_BLOCK}, which make ten stretches"
    ends = [len(steps_s) * number // BLOCKS for number in range(BLOCKS + 1)]
    blocks = [slice(begin, end) for begin, end in pairwise(ends)]
    means = [float(steps_s[block].mean()) for block in blocks]
    # The correlation of means with their successors (lag 1); 0 if all are equal.
    middle = fmean(means)
    around = [mean - middle for mean in means]
    squares = sum(value * value for value in around)
    correlation = sum(a * b for a, b in pairwise(around)) / squares if squares > 0 else 0.0
    if correlation > MOST_CORRELATION:
        return whole, "the step drifted over the run, so its ten stretches are not repetitions"
    return blocks, None


def _of_blocks(
    metric: Metric,
    values: NDArray[np.float64],
    blocks: Sequence[slice],
    figure: Callable[[NDArray[np.float64]], float],
    **labels: str,
) -> Estimate:
    """Return the figure of all values, with the interval of the blocks' figures, widened to contain it."""
    of_blocks = [figure(values[block]) for block in blocks]
    return _with_middle(estimate(metric, of_blocks, **labels), figure(values))


def _with_middle(interval: Estimate, middle: float) -> Estimate:
    low = None if interval.low is None else min(interval.low, middle)
    high = None if interval.high is None else max(interval.high, middle)
    return replace(interval, median=middle, low=low, high=high)


def _median(values: NDArray[np.float64]) -> float:
    return float(np.median(values))


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean())


def _quantile(share: float) -> Callable[[NDArray[np.float64]], float]:
    return lambda values: float(np.quantile(values, share))


def _rates(job: Job, tokens: NDArray[np.float64], blocks: Sequence[slice]) -> Iterator[Estimate]:
    """Yield tokens per second: a stretch's total tokens over its total time, which weights unequal steps correctly."""
    times_s = [float(job.step_s[block].sum() / tokens[block].sum()) for block in blocks]
    whole_s = float(job.step_s.sum() / tokens.sum())
    for metric, devices in (
        (results.RUN_TOKENS_PER_SECOND, 1),
        (results.RUN_TOKENS_PER_SECOND_PER_DEVICE, job.world_size),
    ):
        yield _with_middle(per_second(metric, 1.0, [devices * time_s for time_s in times_s]), 1 / (devices * whole_s))


def _phases(job: Job, blocks: Sequence[slice], notes: list[str]) -> Iterator[Estimate]:
    """Yield the mean time of each phase on the rank that spends most in it.

    On a GPU the host only enqueues forward, backward and optimizer: these times are not the device's, so only the table
    of ranks shows them.
    """
    is_gpu = any(begin.device.startswith("cuda") for begin in job.begins)
    unknown = [name for name in PHASES if not job.known(name)]
    if unknown:
        are = "is" if len(unknown) == 1 else "are"
        notes.append(f"{', '.join(unknown)} {are} absent: not every rank knows its time in each step")
    if is_gpu:
        notes.append("phases on the device are absent: hosts only enqueue them; a trace of torch.profiler shows them")
    for name in PHASES:
        if name in unknown or (is_gpu and name != "data"):
            continue
        means = job.rank_s[name].mean(axis=1)
        worst = job.rank_s[name][int(means.argmax())]
        if min(float(worst[block].mean()) for block in blocks) <= 0:
            continue  # Nothing was loaded, or no optimizer's step ran: there is no such phase.
        if is_gpu:
            yield _of_blocks(results.RUN_DATA_WAIT_SECONDS, worst, blocks, _mean)
        else:
            yield _of_blocks(results.RUN_PHASE_SECONDS, worst, blocks, _mean, phase=name)


def _memory(job: Job) -> Iterator[Estimate]:
    """Yield the most memory of any rank, one number for the whole run."""
    for account, sizes in (
        ("allocator", [attempt.peak_bytes for attempt in job.attempts]),
        ("resident", [attempt.rss_bytes for attempt in job.attempts]),
    ):
        if known := [size for size in sizes if size]:
            yield estimate(results.RUN_PEAK_MEMORY_BYTES, [float(max(known))], account=account)
