"""The schema of the history: its tables as this version reads and writes them, and the migrations that create them.

A run's summary and machine are stored whole as JSON; values that are searched or plotted have their own columns.
"""

from __future__ import annotations

import hashlib
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
from bench.store.database import NoStoreYet

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
    Column("is_rerun", Integer),
    Column("series", Text),
    Column("definition_version", Integer),
    Column("commit_id", Text),
    Column("environment", Text),
    Column("hosts", Text),
    Index("runs_by_key", "key", "hardware", "started_ns"),
    Index("runs_by_start", "started_ns"),
    Index("runs_by_suite", "suite", "started_ns"),
    Index("runs_by_suite_run", "suite_run"),
)
"""suite, suite_run, suite_case: NULL for a run outside of suites. is_rerun: 1 for a rerun that the gate requested.

series: see `bench.store.summary.series_of`. definition_version: of the strategy. environment: fingerprint of machine
and environment (`bench.machine.fingerprint`). hosts: names separated by spaces, in the order of ranks. Columns that an
older version did not write are NULL.
"""

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
    Column("spread_ratio", Double),
    Column("steps", Integer),
)
"""value: for step times, the trial's median step. spread_ratio: median absolute deviation of the steps, divided by the
median; NULL for metrics without steps. steps: measured steps of the trial, or calls of a probe.
"""

GATE_STATES = Table(
    "gate_states",
    METADATA,
    Column("suite", Text, primary_key=True),
    Column("suite_case", Text, primary_key=True),
    Column("series", Text, primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("labels", Text, primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("last_run", Text, nullable=False),
    Column("last_ns", BigInteger, nullable=False),
    Column("state_json", Text, nullable=False),
)
"""The detector's state of each series after its last night, so that a further night needs no replay. revision: counts
how often a row was written, so that the slower of two processes notices the other.
"""

GATE_VERDICTS = Table(
    "gate_verdicts",
    METADATA,
    Column("run", Text, primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("labels", Text, primary_key=True),
    Column("suite", Text, nullable=False),
    Column("suite_run", Text, nullable=False),
    Column("suite_case", Text, nullable=False),
    Column("series", Text, nullable=False),
    Column("started_ns", BigInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("verdict_json", Text, nullable=False),
    Index("gate_verdicts_by_night", "suite", "started_ns"),
    Index("gate_verdicts_by_suite_run", "suite_run"),
)

ACCEPTED_LEVELS = Table(
    "accepted_levels",
    METADATA,
    Column("suite", Text, primary_key=True),
    Column("suite_case", Text, primary_key=True),
    Column("series", Text, primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("labels", Text, primary_key=True),
    Column("accepted_ns", BigInteger, primary_key=True, autoincrement=False),
    Column("level", Double, nullable=False),
    Column("run", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("because", Text, nullable=False),
)
"""Levels that a person has accepted; the newest level of a series counts."""


# Migrations. A released migration never changes: it is SQL that SQLite and PostgreSQL share, and does not use the
# tables above, which follow the newest version.

Migration = Callable[[Connection], None]

# An arbitrary number; no other program may use the same lock in the same database.
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


def _add_gate(connection: Connection) -> None:
    for statement in (
        "ALTER TABLE runs ADD COLUMN is_rerun INTEGER",
        "ALTER TABLE runs ADD COLUMN series TEXT",
        "ALTER TABLE runs ADD COLUMN definition_version INTEGER",
        "ALTER TABLE runs ADD COLUMN commit_id TEXT",
        "ALTER TABLE runs ADD COLUMN environment TEXT",
        "ALTER TABLE runs ADD COLUMN hosts TEXT",
        "ALTER TABLE trial_values ADD COLUMN spread_ratio DOUBLE PRECISION",
        "ALTER TABLE trial_values ADD COLUMN steps INTEGER",
        """CREATE TABLE gate_states (
            suite TEXT NOT NULL, suite_case TEXT NOT NULL, series TEXT NOT NULL, metric TEXT NOT NULL,
            labels TEXT NOT NULL, revision INTEGER NOT NULL, last_run TEXT NOT NULL, last_ns BIGINT NOT NULL,
            state_json TEXT NOT NULL,
            PRIMARY KEY (suite, suite_case, series, metric, labels))""",
        """CREATE TABLE gate_verdicts (
            run TEXT NOT NULL, metric TEXT NOT NULL, labels TEXT NOT NULL, suite TEXT NOT NULL,
            suite_run TEXT NOT NULL, suite_case TEXT NOT NULL, series TEXT NOT NULL, started_ns BIGINT NOT NULL,
            outcome TEXT NOT NULL, verdict_json TEXT NOT NULL, PRIMARY KEY (run, metric, labels))""",
        "CREATE INDEX gate_verdicts_by_night ON gate_verdicts (suite, started_ns)",
        "CREATE INDEX gate_verdicts_by_suite_run ON gate_verdicts (suite_run)",
        """CREATE TABLE accepted_levels (
            suite TEXT NOT NULL, suite_case TEXT NOT NULL, series TEXT NOT NULL, metric TEXT NOT NULL,
            labels TEXT NOT NULL, accepted_ns BIGINT NOT NULL, level DOUBLE PRECISION NOT NULL, run TEXT NOT NULL,
            who TEXT NOT NULL, because TEXT NOT NULL,
            PRIMARY KEY (suite, suite_case, series, metric, labels, accepted_ns))""",
    ):
        connection.execute(text(statement))
    for id_, key, hardware in connection.execute(text("SELECT id, key, hardware FROM runs")).all():
        series = hashlib.sha256(f"{key}\n{hardware}".encode()).hexdigest()[:12]
        connection.execute(text("UPDATE runs SET series = :series WHERE id = :id"), {"series": series, "id": id_})


MIGRATIONS: tuple[Migration, ...] = (_make_runs, _add_suites, _add_gate)
"""In order: a store of version n has had the first n migrations."""


def upgrade(engine: Engine, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Run the migrations that the store has not had, each in its own transaction.

    Several processes may do so at once: each waits for the others' transactions. A store that needs no migration is
    also written to, without a change to its content, so that a read-only store is refused.

    Raises:
        InfrastructureFailed: the store has a newer version.
    """
    while not _is_one_step_the_last(engine, migrations):
        pass


class OlderStore(InfrastructureFailed):
    """The store has an older version, which `upgrade` can migrate."""


def check_version(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Refuse a store that cannot be read as it is.

    Raises:
        NoStoreYet: the database is empty.
        OlderStore: the store has an older version.
        InfrastructureFailed: the store has a newer version, or is another program's database.
    """
    version = _version(connection)
    _refuse_newer(connection, version, len(migrations))
    if not version:
        if inspect(connection).get_table_names():
            raise InfrastructureFailed("the store is another program's database; choose another with --store")
        raise NoStoreYet("the store is an empty database; `observatory run` with this store turns it into a history")
    if version < len(migrations):
        raise OlderStore(
            f"the store has schema version {version}, this program reads {len(migrations)};"
            " `observatory run` with this store brings it up to date"
        )


def _is_one_step_the_last(engine: Engine, migrations: Sequence[Migration]) -> bool:
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite locks with BEGIN IMMEDIATE, see `bench.store.database`.
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
