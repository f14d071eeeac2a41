"""How a store comes to its schema, and which stores are refused."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier

import pytest
from sqlalchemy import Connection, Engine, inspect, text

from bench.errors import InfrastructureFailed
from bench.store.database import connect, parse_url
from bench.store.history import History
from bench.store.schema import METADATA, MIGRATIONS, Migration, OlderStore, check_version, upgrade
from tests.bench.made.examples import make_machine, make_summary


def _engine(url: str) -> Engine:
    return connect(parse_url(url), writable=True)


def _add_column(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE runs ADD COLUMN cluster TEXT"))


def _fail_after_a_change(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE half_done (id INTEGER)"))
    connection.execute(text("INSERT INTO nowhere VALUES (1)"))


def _versions(engine: Engine) -> list[int]:
    with engine.begin() as connection:
        return list(connection.execute(text("SELECT version FROM schema_version ORDER BY version")).scalars())


def test_the_migrations_make_the_schema_that_the_code_reads(store_url: str) -> None:
    engine = _engine(store_url)
    upgrade(engine)
    found = inspect(engine)
    assert set(found.get_table_names()) == set(METADATA.tables)
    for name, table in METADATA.tables.items():
        columns = {column["name"]: column["nullable"] for column in found.get_columns(name)}
        assert columns == {column.name: column.nullable for column in table.columns}
        keys = found.get_pk_constraint(name)["constrained_columns"]
        assert keys == [column.name for column in table.primary_key.columns]
        indexes = {index["name"]: index["column_names"] for index in found.get_indexes(name)}
        assert indexes == {index.name: [column.name for column in index.columns] for index in table.indexes}
    engine.dispose()


def test_an_older_store_is_migrated_and_keeps_its_runs(store_url: str) -> None:
    with History(store_url) as history:
        history.add(make_summary(), make_machine())
    engine = _engine(store_url)
    upgrade(engine, (*MIGRATIONS, _add_column))
    with engine.begin() as connection:
        assert connection.execute(text("SELECT id, cluster FROM runs")).all() == [("run-a", None)]
    assert _versions(engine) == list(range(1, len(MIGRATIONS) + 2))
    engine.dispose()


def test_upgrading_twice_changes_nothing(store_url: str) -> None:
    engine = _engine(store_url)
    upgrade(engine)
    upgrade(engine)
    assert _versions(engine) == list(range(1, len(MIGRATIONS) + 1))
    engine.dispose()


def test_a_migration_that_fails_leaves_nothing_of_itself(store_url: str) -> None:
    engine = _engine(store_url)
    with pytest.raises(Exception, match="nowhere"):
        upgrade(engine, (*MIGRATIONS, _fail_after_a_change))
    assert "half_done" not in inspect(engine).get_table_names()
    assert _versions(engine) == list(range(1, len(MIGRATIONS) + 1))
    engine.dispose()


@pytest.mark.parametrize("writable", [True, False])
def test_a_newer_store_is_refused_with_both_versions(store_url: str, writable: bool) -> None:
    engine = _engine(store_url)
    newer: tuple[Migration, ...] = (*MIGRATIONS, _add_column)
    upgrade(engine, newer)
    engine.dispose()
    expected = (
        rf"has schema version {len(newer)}, written by parallel-observatory .* reads up to {len(MIGRATIONS)}; use"
    )
    with pytest.raises(InfrastructureFailed, match=expected), History(store_url, writable=writable):
        pass


def test_an_older_store_is_not_read_unmigrated(store_url: str) -> None:
    engine = _engine(store_url)
    upgrade(engine, MIGRATIONS[:1])
    with (
        engine.begin() as connection,
        pytest.raises(OlderStore, match=f"schema version 1, this program reads {len(MIGRATIONS)}"),
    ):
        check_version(connection)
    engine.dispose()


def test_a_reader_brings_an_older_store_up_to_date(store_url: str) -> None:
    engine = _engine(store_url)
    upgrade(engine, MIGRATIONS[:1])
    with History(store_url, writable=False) as history:
        assert history.runs(9) == ()
    assert _versions(engine) == list(range(1, len(MIGRATIONS) + 1))
    engine.dispose()


def test_a_glance_changes_no_older_store(store_url: str) -> None:
    engine = _engine(store_url)
    upgrade(engine, MIGRATIONS[:1])
    with pytest.raises(OlderStore), History(store_url, writable=False, is_glance=True):
        pass
    assert _versions(engine) == [1]
    engine.dispose()


def _open_and_add(url: str, number: int, together: Barrier) -> None:
    together.wait(timeout=60)
    with History(url) as history:
        history.add(make_summary(f"run-{number}"), make_machine())


@pytest.mark.slow
def test_four_processes_may_open_a_new_store_at_once(store_url: str) -> None:
    context = multiprocessing.get_context("forkserver")
    together = context.Barrier(4)
    processes = [context.Process(target=_open_and_add, args=(store_url, number, together)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    with History(store_url) as history:
        assert history.known() == {"run-0", "run-1", "run-2", "run-3"}
