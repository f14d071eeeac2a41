"""Simulate how often the steps of a watched job are said to be slower, with and without a slowdown.

`python -m tests.bench.results.watched.slower_steps [JOBS]` prints the jobs of six hours without a change in which a
window is requested, and after how many blocks a slowdown is seen; JOBS of each kind, by default 40 (10 minutes).
docs/measured/watched.md has the figures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from scipy.stats import beta

from bench.session.watched.slower import LEAST_STEPS
from tests.bench.results.watched import made_jobs
from tests.bench.results.watched.made_jobs import Times

JOBS, FIRST_SEED = 40, 100
SIX_HOURS = 720
"""Blocks of half a minute."""
UNCHANGED: tuple[Callable[[int, int], Times], ...] = (
    made_jobs.steady,
    made_jobs.resembling,
    made_jobs.correlated,
    made_jobs.heavy_tailed,
    made_jobs.two_modes,
    made_jobs.noisy,
)
CHANGED: tuple[tuple[Callable[[int, int], Times], float], ...] = (
    (made_jobs.steady, 1.07),
    (made_jobs.steady, 1.2),
    (made_jobs.heavy_tailed, 1.2),
    (made_jobs.noisy, 1.2),
    (made_jobs.noisy, 1.5),
    (made_jobs.noisy, 3.0),
)
WITHIN = (3, 4, 6, 9, 30)


def _changed(make: Callable[[int, int], Times], ratio: float, seed: int) -> Times:
    steps = make(seed, made_jobs.SLOW_FROM + max(WITHIN))
    steps[made_jobs.SLOW_FROM * LEAST_STEPS :] *= ratio
    return steps


def _print_seen(name: str, seen: list[int | None]) -> None:
    counts = [sum(blocks is not None and blocks <= most for blocks in seen) for most in WITHIN]
    print(f"{name:32}" + "".join(f"{count:>6} of {len(seen)}" for count in counts), flush=True)


def main(jobs: int) -> None:
    """Print both tables."""
    seeds = range(FIRST_SEED, FIRST_SEED + jobs)
    print(f"slower, seen within {', '.join(map(str, WITHIN))} blocks:")
    for make, ratio in CHANGED:
        steps = [_changed(make, ratio, seed) for seed in seeds]
        seen = [made_jobs.blocks_until_seen(each, made_jobs.SLOW_FROM) for each in steps]
        _print_seen(f"{make.__name__}, x{ratio:g}", seen)
    noisy = [made_jobs.blocks_until_seen(made_jobs.noisy_from_its_start(seed), 14) for seed in seeds]
    _print_seen("noisy_from_its_start, about x4", noisy)
    print("jobs of six hours without a change, in which a window was requested:")
    windows = 0
    for unchanged in UNCHANGED:
        found = sum(bool(made_jobs.slowdowns(unchanged(seed, SIX_HOURS))) for seed in seeds)
        print(f"{unchanged.__name__:32}{found:>6} of {jobs}", flush=True)
        windows += found
    trials = jobs * len(UNCHANGED)
    upper = beta.ppf(0.95, windows + 1, trials - windows)
    print(f"with 95 % confidence fewer than one in {0.25 / upper:.1f} days")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS)
