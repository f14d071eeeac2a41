"""What an analysis found, as tables for people, as JSON and as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from bench.errors import Misuse
from bench.reports.cells import on_one_line, said_of_ranks
from bench.reports.console import open_console, print_words
from bench.reports.drawn_tables import draw, shortens
from bench.trace_sides import TraceSide
from collectors.traces.table import Table, Unit

SCHEMA_VERSION = 1
_SUFFIXES: dict[Unit, str] = {"": "", "ns": "_ns", "ratio": "_ratio", "bytes": "_bytes", "bytes/s": "_bytes_per_second"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an analysis found of these sides. notes: of the analysis, and so of each of its tables."""

    analysis: str
    sides: tuple[TraceSide, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]

    def notices(self) -> list[str]:
        """What is missing of the traces, a line each, which names its side where there are several."""
        if len(self.sides) == 1:
            return list(self.sides[0].notices)
        return [f"{side.name}: {line}" for side in self.sides for line in side.notices]


def write(
    found: Found,
    file: TextIO,
    format_name: str,
    *,
    table_name: str | None,
    limit: int,
    on_notice: Callable[[str], None],
) -> None:
    """Write all tables, or the one of this name, with the analysis's notes. limit: rows of a table for people.

    on_notice: is told notes, and what is missing of the traces, where the form has no place for them.

    Raises:
        Misuse: there is no such table; or there are several, and the form takes one.
    """
    tables = _chosen(found, table_name)
    if format_name == "table":
        _write_for_people(found, tables, file, limit)
        return
    if format_name == "json":
        _write_json(found, tables, file)
    else:
        _write_csv(found, tables, file)
        for line in (*tables[0].notes, *found.notes):
            on_notice(on_one_line(line))
    for line in found.notices():
        on_notice(on_one_line(line))


def _chosen(found: Found, name: str | None) -> tuple[Table, ...]:
    tables = tuple(table for table in found.tables if name in (None, table.name))
    if not tables:
        raise Misuse(f'--table is "{name}"; {found.analysis} has {_names(found.tables)}')
    return tables


def _write_for_people(found: Found, tables: Sequence[Table], file: TextIO, limit: int) -> None:
    console = open_console(file)
    for table in tables:
        draw(table, console, limit=limit)
        console.print()
    lines = [*found.notes, *found.notices()]
    if any(shortens(table, console, limit=limit) for table in tables):
        lines.append("some names are shortened in the middle; --format json has them whole")
    for line in said_of_ranks(lines):
        print_words(console, on_one_line(line))


def _write_json(found: Found, tables: Sequence[Table], file: TextIO) -> None:
    """All cells in base units, with the files that they are of."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "analysis": found.analysis,
        "traces": [
            {
                "side": side.name,
                "rank": trace.timeline.rank,
                "file": str(trace.path),
                "left_out": list(trace.timeline.about.left_out),
            }
            for side in found.sides
            for trace in side.traces
        ],
        "tables": [
            {
                "name": table.name,
                "title": table.title,
                "columns": [{"name": column.name, "unit": column.unit} for column in table.columns],
                "rows": table.rows,
                "notes": table.notes,
            }
            for table in tables
        ],
        "notes": found.notes,
    }
    json.dump(document, file, indent=2, allow_nan=False)
    file.write("\n")


def _write_csv(found: Found, tables: Sequence[Table], file: TextIO) -> None:
    """The cells of one table in base units, which the columns' names bear."""
    if len(tables) > 1:
        raise Misuse(f"--format csv writes one table, and {found.analysis} has {_names(tables)}; choose with --table")
    (table,) = tables
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(f"{column.name}{_SUFFIXES[column.unit]}" for column in table.columns)
    writer.writerows(table.rows)


def _names(tables: Sequence[Table]) -> str:
    return ", ".join(table.name for table in tables)
