"""A history that is locked or gone for a while: what a suite measures meanwhile is taken in when it is back."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.errors import InfrastructureFailed
from bench.session.patient_store import AGAIN_S, PATIENCE_S, PatientStore
from bench.store.history import History
from bench.store.suite_record import SuiteRecord
from tests.bench.made.fake_runs import ddp_summary
from tests.bench.made.fake_suites import TINY_SHAPE, FakeClock, FakeNight, plan_of, planned
from tests.support.servers import PostgresServer, run_postgres

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
    assert said == [f"{GONE}; the suite continues, and its results stay in the run folders"]


def test_a_store_that_is_back_takes_in_what_was_measured_meanwhile(tmp_path: Path, history: FakeGoneHistory) -> None:
    said: list[str] = []
    store = patient(history, tmp_path / "runs", FakeClock(), said)
    store.save(RECORD)
    summary = ddp_summary(tmp_path / "runs")
    history.is_gone = False
    assert store.ready(is_last=True) is history
    assert history.known() == {summary.run}
    assert said[1:] == ["the store answers again; added 1 run"]
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


# A real PostgreSQL that is down when measuring begins.


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, which is down."""
    with run_postgres() as server:
        server.stop()
        yield server


@pytest.mark.stack
def test_a_server_that_is_down_at_the_beginning_is_done_without_and_taken_in_later(
    tmp_path: Path, server: PostgresServer
) -> None:
    said: list[str] = []
    clock = FakeClock()
    with patient(History(server.url("postgres")), tmp_path / "runs", clock, said) as store:
        assert (store.history, clock.now_s) == (None, PATIENCE_S)
        assert "Connection refused" in said[0]
        assert said[0].endswith("; the suite continues, and its results stay in the run folders")
        assert server.password not in said[0]
        store.save(RECORD)
        summary = ddp_summary(tmp_path / "runs")
        server.start()
        history = store.ready(is_last=True)
        assert history is not None
        assert history.known() == {summary.run}
        assert said[1:] == ["the store answers again; added 1 run"]


@pytest.mark.stack
def test_a_server_that_comes_up_in_time_is_waited_for(tmp_path: Path, server: PostgresServer) -> None:
    class FakePause(FakeClock):
        def sleep(self, pause_s: float) -> None:
            super().sleep(pause_s)
            if self.now_s == 2:
                server.start()

    said: list[str] = []
    with patient(History(server.url("postgres")), tmp_path / "runs", FakePause(), said) as store:
        assert store.history is not None
    assert said == []


@pytest.mark.stack
@pytest.mark.parametrize("wrong", ["password", "database"])
def test_what_waiting_does_not_mend_is_refused_at_once(tmp_path: Path, server: PostgresServer, wrong: str) -> None:
    server.start()
    url = server.url("nowhere") if wrong == "database" else server.url("postgres").replace(server.password, "hunter2")
    clock = FakeClock()
    with pytest.raises(InfrastructureFailed), patient(History(url), tmp_path / "runs", clock, []):
        pass
    assert clock.now_s == 0


SUITE = f"""
schema_version = 1

[case.single]
strategy = "single"
device = "cpu"
ranks = 1
{TINY_SHAPE}batch = 2
trials = 1
steps = 3
warm_up = 1
trace_steps = 0
"""


@pytest.mark.stack
@pytest.mark.slow
def test_a_suite_and_a_run_that_begin_without_their_store_lose_nothing(tmp_path: Path, server: PostgresServer) -> None:
    (tmp_path / "night.toml").write_text(SUITE)
    places = [f"--runs={tmp_path / 'runs'}", f"--store={server.url('postgres')}"]
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "home")}

    def observatory(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "bench", *words, *places]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)

    case = ["--device=cpu", "--layers=1", "--width=16", "--heads=2", "--kv-heads=1", "--mlp-width=32"]
    small = [*case, "--vocabulary=32", "--sequence=8", "--batch=2", "--trials=1", "--steps=3", "--port=0"]
    run = observatory("run", "single", *small)
    assert run.returncode == 4
    assert "the run continues, and its results stay in the run folders" in run.stderr
    assert "tokens/s" in run.stdout
    suite = observatory("suite", "run", str(tmp_path / "night.toml"), "--port=0")
    assert suite.returncode == 4
    assert "single: done" in suite.stderr
    server.start()
    shown = observatory("show", "--format=csv")
    assert len({line.partition(",")[0] for line in shown.stdout.splitlines()[1:]}) == 2
