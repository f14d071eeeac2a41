"""Made steps of watched jobs, and the slowdowns that are seen in them.

A job is (steps,), as shares of its usual step; each block has as few steps as it may have.
"""

from __future__ import annotations

import json

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.results.watched.rank_files import Begin, Steps
from bench.session.watched.slower import LEAST_STEPS, Slowdown, SlowerSteps
from tests.bench.results.watched.made_ranks import begin_line

Times = NDArray[np.float64]
STEP_NS = 50_000_000
BLOCKS, SLOW_FROM = 40, 20
FLUSHED = 20
"""Steps that a rank writes at once."""
NOISE = 0.05


def steady(seed: int, blocks: int = BLOCKS) -> Times:
    return np.exp(np.random.default_rng(seed).normal(0, NOISE, blocks * LEAST_STEPS))


def _with_memory(seed: int, blocks: int, share: float) -> Times:
    """Steps that differ by 10 %, and keep this share of the last one's difference."""
    random = np.random.default_rng(seed)
    steps = np.zeros(blocks * LEAST_STEPS)
    for place in range(1, steps.size):
        steps[place] = share * steps[place - 1] + random.normal(0, 0.1 * (1 - share**2) ** 0.5)
    return np.exp(steps)


def correlated(seed: int, blocks: int = BLOCKS) -> Times:
    """Steps that resemble the hundred before them."""
    return _with_memory(seed, blocks, 0.99)


def resembling(seed: int, blocks: int = BLOCKS) -> Times:
    """Steps that resemble the one before them."""
    return _with_memory(seed, blocks, 0.5)


def heavy_tailed(seed: int, blocks: int = BLOCKS) -> Times:
    """Student's t with two degrees of freedom: one step in a hundred is longer by half."""
    return np.exp(NOISE * np.random.default_rng(seed).standard_t(2, blocks * LEAST_STEPS))


def two_modes(seed: int, blocks: int = BLOCKS) -> Times:
    return steady(seed, blocks) * np.where(np.random.default_rng(seed + 1).random(blocks * LEAST_STEPS) < 0.3, 1.35, 1)


def noisy(seed: int, blocks: int = BLOCKS) -> Times:
    """Steps that differ by 20 %, each from the others."""
    return np.exp(np.random.default_rng(seed).normal(0, 0.2, blocks * LEAST_STEPS))


def noisy_from_its_start(seed: int) -> Times:
    """14 blocks between 13 and 60 ms, then 30 blocks of 113 to 128 ms."""
    random = np.random.default_rng(seed)
    blocks_ms = np.exp(np.r_[random.uniform(np.log(13), np.log(60), 14), random.uniform(np.log(113), np.log(128), 30)])
    steps = np.repeat(blocks_ms * 1e6 / STEP_NS, LEAST_STEPS)
    return steps * np.exp(random.normal(0, 0.03, steps.size))


def single_slow_step(seed: int) -> Times:
    steps = steady(seed)
    steps[SLOW_FROM * LEAST_STEPS] *= 100
    return steps


def with_checkpoints(seed: int) -> Times:
    steps = steady(seed)
    steps[::10] *= 8
    return steps


def with_evaluations(seed: int) -> Times:
    """An evaluation before each hundredth step, after which some steps fill caches again."""
    steps = steady(seed)
    steps[::100] *= 200
    steps[1::100] *= 2
    return steps


def warming_up(seed: int) -> Times:
    steps = steady(seed)
    steps[:30] *= np.linspace(0.2, 5, 30)
    return steps


def pausing(seed: int) -> Times:
    """A neighbour on the machine that disturbs two blocks now and then."""
    steps = steady(seed)
    for block in (12, 21, 33):
        steps[block * LEAST_STEPS : (block + 2) * LEAST_STEPS] *= 1.3
    return steps


def rank_lines(steps: Times, *, first: int = 0, tokens: Times | None = None) -> list[Steps]:
    """Return the steps as a rank writes them."""
    times_ns = np.round(STEP_NS * steps).astype(int).tolist()
    ends_ns = np.cumsum(times_ns).tolist()
    return [
        Steps(
            rule="optimizer",
            first=first + at,
            end_ns=ends_ns[at : at + FLUSHED],
            step_ns=times_ns[at : at + FLUSHED],
            tokens=None if tokens is None else tokens[at : at + FLUSHED].tolist(),
        )
        for at in range(0, len(times_ns), FLUSHED)
    ]


def begin_of(rank: int = 0, world_size: int = 1) -> Begin:
    return msgspec.json.decode(json.dumps(begin_line(rank, world_size)), type=Begin)


def blocks_until_seen(steps: Times, slow_from: int) -> int | None:
    """How many slow blocks had ended when the slowdown was seen, the first at `slow_from`; None if it was not seen."""
    slower = SlowerSteps(block_ns=1)
    slower.begin(begin_of())
    for line in rank_lines(steps):
        slower.take(0, line)
        slower.judge()
        if slower.slowdown is not None and (blocks := line.first // LEAST_STEPS + 1 - slow_from) > 0:
            return blocks
    return None


def follow(slower: SlowerSteps, lines: list[Steps], traced: tuple[tuple[int, int], ...] = ()) -> list[Slowdown]:
    """Return the slowdowns that were seen on the way, each once."""
    seen: list[Slowdown] = []
    for line in lines:
        slower.take(0, line)
        slower.judge(traced)
        if slower.slowdown is not None:
            seen.append(slower.slowdown)
            slower.slowdown = None
    return seen


def slowdowns(steps: Times, tokens: Times | None = None, traced: tuple[tuple[int, int], ...] = ()) -> list[Slowdown]:
    slower = SlowerSteps(block_ns=1)
    slower.begin(begin_of())
    return follow(slower, rank_lines(steps, tokens=tokens), traced)
