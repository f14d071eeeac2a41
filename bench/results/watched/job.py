"""The steps of a watched job: those that all ranks reported, in order, without warm-up and traced steps.

A job's step takes as long as its slowest rank's; docs/reference/watched.md has every rule with its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench.results.watched.details import Work
from bench.results.watched.rank_files import (
    MOST_NS,
    OF_A_STEP,
    PHASES,
    Attempt,
    Begin,
    RankFile,
    rank_paths,
    read_columns,
    scan,
)
from collectors.watch.observatory_watch import stride
from collectors.watch.observatory_watch_window import MOST_STEPS
from workloads.cost_models.absent import Absent

WARM_UP = 10
"""First steps that are left out, since they compile, fill caches and allocate; in a short job, at most a tenth."""
MOST_CELLS = 1_000_000
"""Most steps of all ranks together in memory, 80 bytes each; longer jobs are thinned out: see `Job.each`."""
LEAST_STEPS = 20
"""Fewest measured steps from which even work or a late rank is judged."""
UNEVEN_RATIO = 0.1
"""Relative median deviation of the steps above which the work of a job without tokens counts as uneven."""
EVEN_TOKENS = 1e-6
"""Relative difference of a step's tokens from their median up to which they count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job's ranks and its chosen steps.

    files: of all ranks that have one. ranks: those with steps, in order. attempts: the chosen one of each of `ranks`.
    restarts: how often ranks began again. number: of the chosen attempt, from 0.
    step_s (steps,): the slowest rank's. rank_s: (ranks, steps) for each column of `OF_A_STEP`, NaN if unknown.
    end_ns (ranks, steps): on each rank's own clock. calls (ranks, steps): calls of backward.
    common: number of steps that all ranks made. warm_up: how many of these are left out. each: one in so many runs of
    eight steps is used, since ranks write no more of a long job (`collectors.watch.observatory_watch.stride`), or to
    stay below `MOST_CELLS`. is_device_clock: whether `step_s` is by the devices' clocks.
    """

    files: tuple[RankFile, ...]
    ranks: tuple[int, ...]
    attempts: tuple[Attempt, ...]
    restarts: int
    number: int
    step_s: NDArray[np.float64]
    rank_s: dict[str, NDArray[np.float64]]
    end_ns: NDArray[np.int64]
    calls: NDArray[np.float64]
    common: int
    warm_up: int
    each: int
    is_device_clock: bool

    @property
    def begins(self) -> tuple[Begin, ...]:
        """The begin line of each rank."""
        return tuple(attempt.begin for attempt in self.attempts)

    @property
    def world_size(self) -> int:
        """Number of ranks in the job, as the ranks report it."""
        return max((begin.world_size for begin in self.begins), default=0)

    @property
    def tokens(self) -> NDArray[np.float64] | Absent:
        """Tokens of each step over all ranks, (steps,)."""
        if len(self.ranks) < self.world_size:
            return Absent(reason="ranks are missing, and with them their tokens")
        tokens: NDArray[np.float64] = self.rank_s["tokens"].sum(axis=0)
        if not len(tokens) or not np.all(tokens > 0):
            return Absent(reason="the program declares none; `with step(tokens=...)` does")
        return tokens

    def known(self, column: str) -> bool:
        """Whether every rank has a value of this column for every step."""
        return bool(self.rank_s[column].size) and not bool(np.isnan(self.rank_s[column]).any())


def read_job(folder: Path) -> Job:
    """Read the steps of a watched run's ranks; any content of the folder gives a job, possibly without steps.

    Of several attempts it takes the one with the most steps that all ranks have; of equal ones, the later.
    """
    files = tuple(scan(rank, path) for rank, path in rank_paths(folder).items())
    attempts = max((len(file.attempts) for file in files), default=0)
    number, _ = max(
        ((number, _common_length(files, number)) for number in range(attempts)),
        key=lambda pair: (pair[1], pair[0]),
        default=(0, 0),
    )
    having = [file for file in files if number < len(file.attempts) and file.attempts[number].steps]
    chosen = tuple(file.attempts[number] for file in having)
    restarts = max(0, attempts - 1)
    ranks = tuple(file.rank for file in having)
    first, length = _common(chosen)
    warm_up = min(WARM_UP, length // 10)
    if length and not first + warm_up:  # The very first step cannot be timed, since no step ended before it.
        warm_up = 1
    each = stride(first + length - 1) if length else 1
    while length * len(ranks) > each * MOST_CELLS:
        each *= 2
    columns = [read_columns(file, number, first=first + warm_up, each=each) for file in having]
    numbers = columns[0].numbers if columns else np.zeros(0, np.int64)
    for column in columns[1:]:
        numbers = np.intersect1d(numbers, column.numbers, assume_unique=True)
    numbers = numbers[~_is_traced(numbers, chosen)]
    places = [np.searchsorted(column.numbers, numbers) for column in columns]
    rank_s = {
        name: np.array([column.seconds[name][at] for column, at in zip(columns, places, strict=True)]).reshape(
            len(columns), len(numbers)
        )
        for name in OF_A_STEP
    }
    end_ns = np.array([column.end_ns[at] for column, at in zip(columns, places, strict=True)], dtype=np.int64)
    calls = np.array([column.calls[at] for column, at in zip(columns, places, strict=True)])
    is_device_clock = bool(len(numbers)) and not np.isnan(rank_s["device"]).any() and bool((rank_s["device"] > 0).all())
    steps_s = rank_s["device"] if is_device_clock else rank_s["step"]
    timed = ~np.isnan(steps_s).any(axis=0) if len(columns) else np.zeros(0, bool)
    return Job(
        files=files,
        ranks=ranks,
        attempts=chosen,
        restarts=restarts,
        number=number,
        step_s=steps_s[:, timed].max(axis=0) if len(columns) else np.zeros(0),
        rank_s={name: column[:, timed] for name, column in rank_s.items()},
        end_ns=end_ns.reshape(len(columns), len(numbers))[:, timed],
        calls=calls.reshape(len(columns), len(numbers))[:, timed],
        common=length,
        warm_up=warm_up,
        each=each,
        is_device_clock=is_device_clock,
    )


def _is_traced(numbers: NDArray[np.int64], attempts: Sequence[Attempt]) -> NDArray[np.bool_]:
    """Return for each step whether a profiler slowed it down: those of a window, the one before and the one after."""
    is_traced = np.zeros(numbers.size, dtype=np.bool_)
    for first, last in dict.fromkeys(window for attempt in attempts for window in attempt.windows):
        if not 0 <= first <= last < min(first + MOST_STEPS, MOST_NS):  # Not a window of ours.
            continue
        is_traced |= (numbers >= first - 1) & (numbers <= last + 1)
    return is_traced


def _common_length(files: Sequence[RankFile], number: int) -> int:
    return _common([file.attempts[number] for file in files if number < len(file.attempts)])[1]


def _common(attempts: Sequence[Attempt]) -> tuple[int, int]:
    """Return the first step that all attempts have, and how many they share; attempts without steps are ignored."""
    spans = [(each.first, each.last) for each in attempts if each.first is not None and each.last is not None]
    if not spans:
        return 0, 0
    first, last = max(first for first, _ in spans), min(last for _, last in spans)
    return first, max(0, last - first + 1)


def work_of(job: Job) -> tuple[Work, str]:
    """Return whether the steps do equal work, judged by tokens, else by times, and the reason."""
    tokens = job.tokens
    if not isinstance(tokens, Absent):
        middle = float(np.median(tokens))
        if float(np.abs(tokens - middle).max()) > EVEN_TOKENS * middle:
            return "by tokens", "the declared tokens differ from step to step"
        return "even", "each step declares the same tokens"
    if len(job.step_s) < LEAST_STEPS:
        return "unknown", f"{len(job.step_s)} measured steps are too few to tell"
    deviation = float(np.median(np.abs(job.step_s - np.median(job.step_s))) / np.median(job.step_s))
    if deviation > UNEVEN_RATIO:
        return (
            "uneven",
            f"half of the steps differ from their median by more than {100 * deviation:.0f} %, and no tokens are"
            " declared, so their work may differ as well",
        )
    return "even", f"half of the steps lie within {100 * deviation:.1f} % of their median"


def phase_means(job: Job, index: int) -> dict[str, float | None]:
    """Return the mean seconds of each phase on one of the job's ranks; None for a phase that some step lacks.

    data is also None if no step has a batch from a DataLoader of torch: the wait for data is unknown then, not 0.
    """
    of_rank = {name: job.rank_s[name][index] for name in PHASES}
    if not of_rank["data"].any():
        of_rank["data"] = of_rank["data"][:0]
    return {
        name: float(column.mean()) if column.size and not np.isnan(column).any() else None
        for name, column in of_rank.items()
    }


def middle(values: NDArray[np.float64]) -> float | None:
    """Return the median of the known values; None if there are none."""
    known = [float(value) for value in values if not np.isnan(value)]
    return median(known) if known else None
