"""One source reads the history for all readers, and the trouble of one is not that of the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.errors import InfrastructureFailed, Misuse
from bench.serve.history_source import HistorySource, Reader, of_history
from bench.store.history import History
from collectors.metrics.metric import Sample
from collectors.prometheus.exposition import Owned


class Counting:
    """Counts its reads, of which some fail."""

    what = "numbers"

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.reads = 0
        self.is_read = threading.Event()

    def read(self, history: History) -> None:
        if self._failures:
            raise self._failures.pop(0)
        self.reads += history.extent()[0] + 1
        self.is_read.set()

    def samples(self) -> Iterator[Owned]:
        yield Sample("reads", self.reads), {}


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/history.sqlite"
    with History(url):
        return url


def _values(source: HistorySource) -> list[float]:
    return [sample.value for sample, _ in source.samples()]


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (Misuse("a row is odd"), "a row is odd"),
        (InfrastructureFailed("a table is locked"), "a table is locked"),
        (ZeroDivisionError("no"), "a bug of ours, ZeroDivisionError: no"),
    ],
)
def test_a_reader_that_fails_is_named_and_the_others_go_on(url: str, failure: Exception, said: str) -> None:
    notices: list[str] = []
    source = HistorySource(url, [Counting(failure), Counting()], on_notice=notices.append)
    source.ask()
    assert (_values(source), notices) == ([0, 1], [f"numbers are no longer updated: {said}"])
    source.ask()
    assert (_values(source), len(notices)) == ([1, 2], 1)


class Nameless(Counting):
    """Fails, and then cannot say what it reads, either."""

    @property
    def what(self) -> str:  # type: ignore[override]
        raise LookupError("no name")


def test_a_bug_outside_of_any_reader_is_told_and_ends_nothing(url: str) -> None:
    notices: list[str] = []
    nameless: Reader = Nameless(ZeroDivisionError("no"))  # type: ignore[assignment]
    source = HistorySource(url, [nameless, Counting()], on_notice=notices.append)
    source.ask()
    (notice,) = notices
    assert notice.startswith("results are no longer updated: a bug of ours, LookupError: no name")
    source.ask()
    assert (_values(source), len(notices)) == ([1, 1], 1)


def test_a_store_that_is_not_there_is_said_once_for_all_readers(tmp_path: Path) -> None:
    notices: list[str] = []
    url = f"sqlite:///{tmp_path}/history.sqlite"
    source = of_history(url, on_notice=notices.append)
    source.ask()
    assert (source.samples(), [notice.partition(": ")[0] for notice in notices]) == ((), ["no results are shown yet"])
    with History(url):
        source.ask()
    (tmp_path / "history.sqlite").unlink()
    source.ask()
    assert [notice.partition(": ")[0] for notice in notices[1:]] == ["results are no longer updated"]


def test_a_thread_reads_while_the_context_is_open(url: str) -> None:
    reader = Counting()
    with HistorySource(url, [reader], on_notice=pytest.fail):
        assert reader.is_read.wait(60)
    assert not any(thread.name == "history" for thread in threading.enumerate())
