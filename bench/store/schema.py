"""The tables of the history, as this version reads and writes them; `migrations` makes them.

A run's summary and machine are kept whole as JSON, and what is searched or plotted in columns beside it.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, ForeignKey, Index, Integer, MetaData, Table, Text

METADATA = MetaData()

SCHEMA_VERSION = Table(
    "schema_version",
    METADATA,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("written_by", Text, nullable=False),
)
"""One row for each migration done; written_by: the version of this program that did it."""

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
    Index("runs_by_key", "key", "hardware", "started_ns"),
    Index("runs_by_start", "started_ns"),
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
"""labels: JSON with sorted names, so that equal labels are equal text."""

TRIAL_VALUES = Table(
    "trial_values",
    METADATA,
    Column("run", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("labels", Text, primary_key=True),
    Column("trial", Integer, primary_key=True, autoincrement=False),
    Column("value", Double, nullable=False),
)
