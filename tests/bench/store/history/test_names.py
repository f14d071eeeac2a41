"""What the history lists without reading whole runs, and what it says of a store that breaks meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.case import Purpose, SuiteMember
from bench.errors import InfrastructureFailed, Misuse
from bench.store.history import History
from bench.store.schema import ESTIMATES, RUNS
from bench.store.suite_record import SuiteRecord
from tests.bench.made.examples import make_machine, make_summary


def test_the_newest_names_come_first_and_of_one_moment_the_last_by_name(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.sqlite") as history:
        for name, started_ns in (("c", 1), ("d", 2), ("b", 2), ("a", 3)):
            history.add(make_summary(name, started_ns=started_ns), make_machine())
        newest = ["a", "d", "b", "c"]
        assert [list(history.names(limit)) for limit in (1, 3, 9)] == [newest[:1], newest[:3], newest]
        assert [run.run for run in history.runs(9)] == newest
        assert [run.run for run in history.runs(2, skipped=1)] == newest[1:3]
        assert list(history.beginning_with("", 3)) == newest[:3]
        assert history.folders() == {name: f"/runs/{name}" for name in "abcd"}
        assert history.machine("nowhere") is None


def test_a_beginning_of_many_names_is_refused_with_the_six_newest(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.sqlite") as history:
        for number in range(1, 8):
            history.add(make_summary(f"run-{number}", started_ns=number), make_machine())
            if number == 6:
                with pytest.raises(Misuse, match="run-6, run-5, run-4, run-3, run-2, run-1; give more of its name"):
                    history.find("run")
        newest = "run-7, run-6, run-5, run-4, run-3, run-2"
        with pytest.raises(Misuse, match=f'run "run" may be any of {newest}, [.]{{3}}; give more of its name'):
            history.find("run")
        for unknown in ("nowhere", ""):
            with pytest.raises(Misuse, match=f'run "{unknown}" is unknown; the newest in the history are: {newest}$'):
                history.find(unknown)


def test_the_newest_suite_runs_of_one_moment_are_ordered_by_name(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.sqlite") as history:
        for name, suite in (("a", "nightly"), ("b", "smoke"), ("c", "nightly")):
            history.save_suite(SuiteRecord(id=name, suite=suite, started_ns=1, progress_ns=1, total=1, folder="/runs"))
        assert [record.id for record in history.suite_runs(9)] == ["c", "b", "a"]
        assert [record.id for record in history.suite_runs(9, "nightly")] == ["c", "a"]


def test_a_moved_run_has_its_new_folder_and_is_otherwise_the_same(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.sqlite") as history:
        for name in ("a", "b"):
            history.add(make_summary(name), make_machine())
        history.move("a", "/elsewhere/a")
        assert history.find("a") == make_summary("a", folder="/elsewhere/a")
        assert history.find("b") == make_summary("b")
        assert history.folders() == {"a": "/elsewhere/a", "b": "/runs/b"}


USES: dict[str, Callable[[History], object]] = {
    "add": lambda history: history.add(make_summary(), make_machine()),
    "runs": lambda history: history.runs(1),
    "save_suite": lambda history: history.save_suite(
        SuiteRecord(id="n", suite="nightly", started_ns=1, progress_ns=1, total=1, folder="/runs")
    ),
    "suite_runs": lambda history: history.suite_runs(1),
    "names": lambda history: history.names(1),
    "beginning_with": lambda history: history.beginning_with("a", 1),
    "machine": lambda history: history.machine("a"),
    "known": lambda history: history.known(),
    "outcomes": lambda history: history.outcomes(),
    "extent": lambda history: history.extent(),
    "folders": lambda history: history.folders(),
    "forget": lambda history: history.forget("a"),
    "move": lambda history: history.move("a", "/elsewhere"),
}


def test_each_use_of_a_broken_store_names_the_store(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    with History(f"sqlite:///{file}") as history:
        other = sqlite3.connect(file)
        for table in ("trial_values", "estimates", "runs", "suite_runs"):
            other.execute(f"DROP TABLE {table}")
        other.close()
        for name, use in USES.items():
            with pytest.raises(InfrastructureFailed) as refused:
                use(history)
            assert str(refused.value).startswith(f"store sqlite:///{file}: no such table: "), name


def test_a_baseline_is_never_a_rerun(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.sqlite") as history:
        for name, is_rerun in (("first", False), ("again", True)):
            member = SuiteMember(suite="nightly", id="night", case="ddp", is_rerun=is_rerun)
            history.add(make_summary(name, purpose=Purpose(origin="nightly", member=member)), make_machine())
        history.add(make_summary("alone", started_ns=1), make_machine())
        made = make_summary()
        assert [run.run for run in history.baselines(made.case.key(), made.hardware, 9)] == ["first", "alone"]


def test_an_estimate_is_a_row_with_its_interval(tmp_path: Path) -> None:
    summary = make_summary()
    with History(f"sqlite:///{tmp_path}/history.sqlite") as history:
        history.add(summary, make_machine())
        with history.transaction() as connection:
            rows = {(row.metric, row.median, row.low, row.high) for row in connection.execute(ESTIMATES.select())}
    assert rows == {(each.metric, each.median, each.low, each.high) for each in summary.estimates}


def test_a_run_that_cannot_be_read_is_named_with_its_store(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.sqlite") as history:
        history.add(make_summary("a"), make_machine())
        with history.transaction() as connection:
            connection.execute(RUNS.update().values(summary_json='{"schema_version": 99}'))
        with pytest.raises(Misuse, match=f"^run a in store sqlite:///{tmp_path}/history.sqlite"):
            history.find("a")
