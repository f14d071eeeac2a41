"""Samples of the history for /metrics: results, counts of runs, suites and verdicts, each from its own reader."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from types import TracebackType
from typing import Protocol, get_args

from bench.errors import InfrastructureFailed, Misuse
from bench.rank.messages import TrialOutcome
from bench.serve.latest_results import NewestResults
from bench.serve.suite_status import SuiteStatus
from bench.serve.verdicts import StandingVerdicts
from bench.store.history import History
from collectors.background import BackgroundThread
from collectors.files import in_words
from collectors.metrics.run_counts import RUNS
from collectors.prometheus.exposition import Owned

PAUSE_S = 5.0
"""Pause between two reads of the history."""
AGAIN_S = 60.0
"""Time between counts if neither the number of runs nor the newest run has changed: an outcome may have changed."""


class Reader(Protocol):
    """Reads one kind of entry in the history. what: its name in notices, in the plural."""

    what: str

    def read(self, history: History) -> None:
        """Read what may have changed since the last read."""

    def samples(self) -> Iterable[Owned]:
        """Return the samples as last read."""


class RunOutcomes:
    """Counts the runs of each strategy by outcome. clock_s: a monotonic clock."""

    what = "counts of runs"

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._extent: tuple[int, int | None] | None = None
        self._counted_s = 0.0
        self._counts: dict[tuple[str, str], int] = {}

    def samples(self) -> Iterator[Owned]:
        """Yield the counts, including zeros for outcomes without a run, because a rate needs a value to grow from."""
        strategies = sorted({strategy for strategy, _ in self._counts})
        zeros = {(strategy, outcome): 0 for strategy in strategies for outcome in get_args(TrialOutcome)}
        for (strategy, outcome), number in (zeros | self._counts).items():
            yield RUNS.at(number, strategy=strategy, outcome=outcome), {}

    def read(self, history: History) -> None:
        """Count again if the history may have changed."""
        extent, now_s = history.extent(), self._clock_s()
        if extent != self._extent or now_s - self._counted_s >= AGAIN_S:
            self._counts = history.outcomes()
            self._extent, self._counted_s = extent, now_s


class HistorySource:
    """Samples of a history, which a thread reads repeatedly while the context is open.

    Scrapes do not wait for it, because a store may be slow or unavailable. If the store becomes unavailable, the
    samples stay.
    on_notice: called with each problem in reading, from the thread.
    """

    def __init__(self, store_url: str | None, readers: Sequence[Reader], *, on_notice: Callable[[str], None]) -> None:
        self._store_url, self._readers, self._on_notice = store_url, readers, on_notice
        self._is_read = False
        self._samples: tuple[Owned, ...] = ()
        self._thread = BackgroundThread("history", self._ask_until_stopped)

    def __enter__(self) -> HistorySource:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.stop(PAUSE_S)

    def samples(self) -> tuple[Owned, ...]:
        """Return the samples as last read from the history."""
        return self._samples

    def ask(self) -> None:
        """Read the history's changes with all readers."""
        try:
            with History(self._store_url, writable=False) as history:
                for reader in self._readers:
                    self._read(reader, history)
            self._is_read = True
        except (InfrastructureFailed, Misuse) as error:
            what = "results are no longer updated" if self._is_read else "no results are shown yet"
            self._on_notice(f"{what}: {error}")
        except Exception as error:  # noqa: BLE001  # No error may end the thread: all samples would freeze.
            self._on_notice(f"results are no longer updated: {in_words(error)}")
        self._samples = tuple(chain.from_iterable(reader.samples() for reader in self._readers))

    def _read(self, reader: Reader, history: History) -> None:
        try:
            reader.read(history)
        except (InfrastructureFailed, Misuse) as error:
            self._on_notice(f"{reader.what} are no longer updated: {error}")
        except Exception as error:  # noqa: BLE001  # The other readers continue after any error.
            self._on_notice(f"{reader.what} are no longer updated: {in_words(error)}")

    def _ask_until_stopped(self, stopping: threading.Event) -> None:
        self.ask()
        while not stopping.wait(PAUSE_S):
            self.ask()


def of_history(store_url: str | None, *, on_notice: Callable[[str], None]) -> HistorySource:
    """Return the source of all samples that /metrics shows from a history."""
    readers = (
        NewestResults(on_notice=on_notice),
        RunOutcomes(),
        SuiteStatus(),
        StandingVerdicts(on_notice=on_notice),
    )
    return HistorySource(store_url, readers, on_notice=on_notice)
