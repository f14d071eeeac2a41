"""Runs by strategy and outcome at /metrics, counted by the store of the history."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import get_args

from bench.errors import InfrastructureFailed, Misuse
from bench.rank.messages import TrialOutcome
from bench.runs.history import History
from collectors.errors import in_words
from collectors.metrics.run_counts import RUNS
from collectors.prometheus.exposition import Owned

AGAIN_S = 60.0
"""Time from one count to the next where neither the number of runs nor the newest has changed: an outcome may have."""

_OUTCOMES: tuple[TrialOutcome, ...] = get_args(TrialOutcome)


class RunOutcomes:
    """How many runs of each strategy ended in which way; `ask` is called again and again by one thread.

    What was counted stays when the store goes away, of which `NewestResults` tells in the same thread. on_notice: is
    told what else cannot be counted. clock_s: a monotonic clock.
    """

    def __init__(
        self,
        store_url: str | None,
        *,
        on_notice: Callable[[str], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store_url = store_url
        self._on_notice, self._clock_s = on_notice, clock_s
        self._extent: tuple[int, int | None] | None = None
        self._counted_s = 0.0
        self._samples: tuple[Owned, ...] = ()

    def samples(self) -> tuple[Owned, ...]:
        """Return the counts as last made by the store."""
        return self._samples

    def ask(self) -> None:
        """Count, where the history may have changed."""
        try:
            with History(self._store_url, writable=False) as history:
                extent, now_s = history.extent(), self._clock_s()
                if extent != self._extent or now_s - self._counted_s >= AGAIN_S:
                    self._take(history.outcomes())
                    self._extent, self._counted_s = extent, now_s
        except (InfrastructureFailed, Misuse):
            pass  # The store cannot be reached.
        except Exception as error:  # noqa: BLE001  # Whatever it is, it must not end the thread, which results share.
            self._on_notice(f"runs are no longer counted: {in_words(error)}")

    def _take(self, counted: dict[tuple[str, str], int]) -> None:
        """Show the counts; 0 where no run of a strategy ended so, since a rate needs a value to grow from."""
        strategies = sorted({strategy for strategy, _ in counted})
        shown = {(strategy, outcome): 0 for strategy in strategies for outcome in _OUTCOMES} | counted
        self._samples = tuple(
            (RUNS.at(number, strategy=strategy, outcome=outcome), {}) for (strategy, outcome), number in shown.items()
        )
