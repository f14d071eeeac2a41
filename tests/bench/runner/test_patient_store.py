"""A history that is locked or gone for a while: what a suite measures meanwhile is taken in when it is back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.errors import InfrastructureFailed
from bench.runner.patient_store import AGAIN_S, PATIENCE_S, PatientStore
from bench.runs.history import History
from bench.runs.suite_record import SuiteRecord
from tests.bench.made.fake_runs import ddp_summary
from tests.bench.made.fake_suites import FakeClock, FakeNight, plan_of, planned

RECORD = SuiteRecord(id="night-1", suite="nightly", started_ns=1, progress_ns=1, total=2, folder="/runs")
GONE = InfrastructureFailed("store postgresql://host/name: connection refused")


class FakeGoneHistory(History):
    """A history that does not answer while it is gone. asked: how often it was."""

    is_gone = True
    asked = 0

    def names(self, limit: int) -> tuple[str, ...]:
        """The newest runs."""
        self._answer()
        return super().names(limit)

    def save_suite(self, record: SuiteRecord) -> None:
        """Keep the record."""
        self._answer()
        super().save_suite(record)

    def _answer(self) -> None:
        self.asked += 1
        if self.is_gone:
            raise GONE


@pytest.fixture
def history(tmp_path: Path) -> Iterator[FakeGoneHistory]:
    history = FakeGoneHistory(f"sqlite:///{tmp_path / 'history.sqlite'}")
    with history:
        yield history


def patient(history: History, folder: Path, clock: FakeClock, said: list[str]) -> PatientStore:
    return PatientStore(history, runs=folder, url=None, tell=said.append, clock_s=clock, sleep=clock.sleep)


def test_a_store_that_does_not_answer_is_waited_for_and_then_left_alone(
    tmp_path: Path, history: FakeGoneHistory
) -> None:
    said: list[str] = []
    clock = FakeClock()
    store = patient(history, tmp_path, clock, said)
    store.save(RECORD)
    assert (store.ready(), store.history) == (None, None)
    assert history.asked == 1  # It has just failed.
    clock.now_s += AGAIN_S
    begun_s = clock.now_s
    assert store.ready() is None
    assert clock.now_s - begun_s == PATIENCE_S
    assert said == [f"{GONE}; the suite goes on, and its results stay in the folders of their runs"]


def test_a_store_that_is_back_takes_in_what_was_measured_meanwhile(tmp_path: Path, history: FakeGoneHistory) -> None:
    said: list[str] = []
    store = patient(history, tmp_path / "runs", FakeClock(), said)
    store.save(RECORD)
    summary = ddp_summary(tmp_path / "runs")
    history.is_gone = False
    assert store.ready(is_last=True) is history
    assert history.known() == {summary.run}
    assert said[1:] == ["the store answers again; it took in 1 run(s)"]
    assert store.failure is None


def test_a_store_that_comes_back_within_its_time_is_waited_for(tmp_path: Path, history: FakeGoneHistory) -> None:
    class FakeReturn(FakeClock):
        def sleep(self, pause_s: float) -> None:
            super().sleep(pause_s)
            history.is_gone = self.now_s < 20

    said: list[str] = []
    store = patient(history, tmp_path, FakeReturn(), said)
    assert store.ready() is history
    assert said == []


def test_a_suite_goes_on_without_its_store_and_what_it_missed_is_in_it_at_the_end(tmp_path: Path) -> None:
    """A table is away, as a store that breaks, while the first of two cases is measured."""
    night = FakeNight(tmp_path)
    with History(night.url):
        pass

    def rename(before: str, after: str) -> None:
        with sqlite3.connect(tmp_path / "history.sqlite") as connection:
            connection.execute(f"ALTER TABLE {before} RENAME TO {after}")
        connection.close()

    class FakeBreak(dict[tuple[str, int], BaseException]):
        """Breaks nothing in the ranks, but the store before the first trial, and mends it before the last."""

        def get(self, order: tuple[str, int], default: object = None) -> None:  # type: ignore[override]
            if order == ("ddp", 0):
                rename("runs", "away")
            if order == ("fsdp", 2):
                rename("away", "runs")

    night.breaks = [FakeBreak({("nobody", 0): KeyboardInterrupt()})]
    end = night.run(plan_of(planned("ddp"), planned("fsdp")))
    assert (end.outcome, end.failure) == ("done", None)
    assert {found.case.strategy for found in night.stored()} == {"ddp", "fsdp"}
    assert [line.partition(";")[0].partition(":")[0] for line in night.display.lines][-2:] == [
        "store sqlite",
        "the store answers again",
    ]
