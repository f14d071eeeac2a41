"""Runs by strategy and outcome at /metrics, counted by the store of the history."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import get_args

from bench.rank.messages import Outcome
from bench.runs.history import History
from collectors.metrics.run_counts import RUNS
from collectors.prometheus.exposition import Owned

AGAIN_S = 60.0
"""Time from one count to the next where neither the number of runs nor the newest has changed: an outcome may have."""


class RunOutcomes:
    """How many runs of each strategy ended in which way. clock_s: a monotonic clock."""

    what = "counts of runs"

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._extent: tuple[int, int | None] | None = None
        self._counted_s = 0.0
        self._counts: dict[tuple[str, str], int] = {}

    def samples(self) -> Iterator[Owned]:
        """Yield the counts; 0 where no run of a strategy ended so, since a rate needs a value to grow from."""
        strategies = sorted({strategy for strategy, _ in self._counts})
        zeros = {(strategy, outcome): 0 for strategy in strategies for outcome in get_args(Outcome)}
        for (strategy, outcome), number in (zeros | self._counts).items():
            yield RUNS.at(number, strategy=strategy, outcome=outcome), {}

    def read(self, history: History) -> None:
        """Count, where the history may have changed."""
        extent, now_s = history.extent(), self._clock_s()
        if extent != self._extent or now_s - self._counted_s >= AGAIN_S:
            self._counts = history.outcomes()
            self._extent, self._counted_s = extent, now_s
