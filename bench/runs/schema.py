"""The schema of the history: its tables as this version reads and writes them, and the migrations that make them.

A run's summary and machine are kept whole as JSON; what is searched or plotted has columns of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Engine,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)

from bench.errors import InfrastructureFailed
from bench.runs.database import NoStoreYet

METADATA = MetaData()

SCHEMA_VERSION = Table(
    "schema_version",
    METADATA,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("written_by", Text, nullable=False),
)
"""One row for each migration done. written_by: the version of this program that did it."""

RUNS = Table(
    "runs",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("key", Text, nullable=False),
    Column("strategy", Text, nullable=False),
    Column("ranks", Integer, nullable=False),
    Column("device", Text, nullable=False),
    Column("precision", Text, nullable=False),
    Column("hardware", Text, nullable=False),
    Column("started_ns", BigInteger, nullable=False),
    Column("ended_ns", BigInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("folder", Text, nullable=False),
    Column("case_json", Text, nullable=False),
    Column("machine_json", Text, nullable=False),
    Column("summary_json", Text, nullable=False),
    Column("suite", Text),
    Column("suite_run", Text),
    Column("suite_case", Text),
    Index("runs_by_key", "key", "hardware", "started_ns"),
    Index("runs_by_start", "started_ns"),
    Index("runs_by_suite", "suite", "started_ns"),
    Index("runs_by_suite_run", "suite_run"),
)
"""suite, suite_run, suite_case: NULL for a run outside of suites."""

SUITE_RUNS = Table(
    "suite_runs",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("suite", Text, nullable=False),
    Column("started_ns", BigInteger, nullable=False),
    Column("record_json", Text, nullable=False),
    Index("suite_runs_by_suite", "suite", "started_ns"),
)

ESTIMATES = Table(
    "estimates",
    METADATA,
    Column("run", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("labels", Text, primary_key=True),
    Column("median", Double, nullable=False),
    Column("low", Double),
    Column("high", Double),
)
"""labels: JSON with sorted names, so that equal labels have equal text."""

TRIAL_VALUES = Table(
    "trial_values",
    METADATA,
    Column("run", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("labels", Text, primary_key=True),
    Column("trial", Integer, primary_key=True, autoincrement=False),
    Column("value", Double, nullable=False),
)


# Migrations. Once released, a migration never changes: it is SQL that SQLite and PostgreSQL share, and does not use the
# tables above, which follow the newest version.

Migration = Callable[[Connection], None]

# An arbitrary number; no other program may lock the same one in the same database.
_ADVISORY_LOCK = 7_206_114_508


def _make_runs(connection: Connection) -> None:
    for statement in (
        """CREATE TABLE runs (
            id TEXT NOT NULL PRIMARY KEY, key TEXT NOT NULL, strategy TEXT NOT NULL, ranks INTEGER NOT NULL,
            device TEXT NOT NULL, precision TEXT NOT NULL, hardware TEXT NOT NULL, started_ns BIGINT NOT NULL,
            ended_ns BIGINT NOT NULL, outcome TEXT NOT NULL, folder TEXT NOT NULL, case_json TEXT NOT NULL,
            machine_json TEXT NOT NULL, summary_json TEXT NOT NULL)""",
        "CREATE INDEX runs_by_key ON runs (key, hardware, started_ns)",
        "CREATE INDEX runs_by_start ON runs (started_ns)",
        """CREATE TABLE estimates (
            run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, metric TEXT NOT NULL, labels TEXT NOT NULL,
            median DOUBLE PRECISION NOT NULL, low DOUBLE PRECISION, high DOUBLE PRECISION,
            PRIMARY KEY (run, metric, labels))""",
        """CREATE TABLE trial_values (
            run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, metric TEXT NOT NULL, labels TEXT NOT NULL,
            trial INTEGER NOT NULL, value DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (run, metric, labels, trial))""",
    ):
        connection.execute(text(statement))


def _add_suites(connection: Connection) -> None:
    for statement in (
        "ALTER TABLE runs ADD COLUMN suite TEXT",
        "ALTER TABLE runs ADD COLUMN suite_run TEXT",
        "ALTER TABLE runs ADD COLUMN suite_case TEXT",
        "CREATE INDEX runs_by_suite ON runs (suite, started_ns)",
        "CREATE INDEX runs_by_suite_run ON runs (suite_run)",
        """CREATE TABLE suite_runs (
            id TEXT NOT NULL PRIMARY KEY, suite TEXT NOT NULL, started_ns BIGINT NOT NULL,
            record_json TEXT NOT NULL)""",
        "CREATE INDEX suite_runs_by_suite ON suite_runs (suite, started_ns)",
    ):
        connection.execute(text(statement))


MIGRATIONS: tuple[Migration, ...] = (_make_runs, _add_suites)
"""In order: a store of version n has had the first n."""


def upgrade(engine: Engine, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Do the migrations that the store has not had, each in a transaction of its own.

    Several processes may do so at once: each waits for the others' transactions. A store that needs no migration is
    written to all the same, without a change to its content, so that a read-only store is refused.

    Raises:
        InfrastructureFailed: the store is of a newer version.
    """
    while not _is_one_step_the_last(engine, migrations):
        pass


class OlderStore(InfrastructureFailed):
    """The store is of an older version, which `upgrade` brings up to date."""


def check_version(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Refuse a store that cannot be read as it is.

    Raises:
        NoStoreYet: the database is empty.
        OlderStore: the store is of an older version.
        InfrastructureFailed: the store is of a newer version, or is another program's database.
    """
    version = _version(connection)
    _refuse_newer(connection, version, len(migrations))
    if not version:
        if inspect(connection).get_table_names():
            raise InfrastructureFailed("the store is another program's database; choose another with --store")
        raise NoStoreYet("the store is an empty database; `observatory run` with this store makes a history of it")
    if version < len(migrations):
        raise OlderStore(
            f"the store has schema version {version}, this program reads {len(migrations)};"
            " `observatory run` with this store brings it up to date"
        )


def _is_one_step_the_last(engine: Engine, migrations: Sequence[Migration]) -> bool:
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite locks with BEGIN IMMEDIATE, see `bench.runs.database`.
            connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        SCHEMA_VERSION.create(connection, checkfirst=True)
        version = _version(connection)
        _refuse_newer(connection, version, len(migrations))
        if version == len(migrations):
            connection.execute(update(SCHEMA_VERSION).values(version=SCHEMA_VERSION.c.version))
            return True
        migrations[version](connection)
        connection.execute(insert(SCHEMA_VERSION).values(version=version + 1, written_by=_own_version()))
        return False


def _version(connection: Connection) -> int:
    if not inspect(connection).has_table(SCHEMA_VERSION.name):
        return 0
    return connection.scalar(select(func.max(SCHEMA_VERSION.c.version))) or 0


def _refuse_newer(connection: Connection, version: int, known: int) -> None:
    if version <= known:
        return
    writer = connection.scalar(select(SCHEMA_VERSION.c.written_by).where(SCHEMA_VERSION.c.version == version))
    raise InfrastructureFailed(
        f"the store has schema version {version}, written by parallel-observatory {writer}; this program"
        f" ({_own_version()}) reads up to {known}; use that version, or another --store"
    )


def _own_version() -> str:
    try:
        return metadata.version("parallel-observatory")
    except metadata.PackageNotFoundError:
        return "from its source tree"
