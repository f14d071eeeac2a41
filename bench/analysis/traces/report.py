"""Writes the result of a trace analysis as tables for people, JSON or CSV."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.text import Text

from bench.analysis.traces.inputs import TraceSet
from bench.errors import Misuse
from bench.report.format import NAME_WIDTH, merge_ranks, on_one_line, readable, shortened
from bench.report.table import Block, Table, open_console, print_csv, print_json, print_page
from collectors.traces.table import Table as AnalysisTable
from collectors.traces.table import Unit

LEAST_NAME_WIDTH = 20
PROSE = frozenset({"reason", "why"})
"""Columns that hold sentences, which are folded instead of shortened."""
SCHEMA_VERSION = 1
_SUFFIXES: dict[Unit, str] = {"": "", "ns": "_ns", "ratio": "_ratio", "bytes": "_bytes", "bytes/s": "_bytes_per_second"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisReport:
    """The result of an analysis of these sides. notes: apply to all of its tables."""

    analysis: str
    sides: tuple[TraceSet, ...]
    tables: tuple[AnalysisTable, ...]
    notes: tuple[str, ...]

    def notices(self) -> list[str]:
        """Return a line for each gap in the traces; it names the side if there are several."""
        if len(self.sides) == 1:
            return list(self.sides[0].notices)
        return [f"{side.name}: {line}" for side in self.sides for line in side.notices]


def write(
    report: AnalysisReport,
    file: TextIO,
    format_name: str,
    *,
    table_name: str | None,
    limit: int,
    on_notice: Callable[[str], None],
) -> None:
    """Write all tables, or only `table_name`, with the analysis's notes. limit: rows of a table for people.

    on_notice: takes the notes and the gaps in the traces if the format has no place for them.

    Raises:
        Misuse: there is no such table, or there are several and the format takes only one.
    """
    tables = [table for table in report.tables if table_name in (None, table.name)]
    if not tables:
        raise Misuse(f'--table is "{table_name}"; {report.analysis} has {_names(report.tables)}')
    if format_name == "table":
        console = open_console(file)
        print_page(_page(report, tables, console, limit), console)
        return
    notices = report.notices()
    if format_name == "json":
        print_json(_document(report, tables), file)
    else:
        if len(tables) > 1:
            raise Misuse(
                f"--format csv writes one table, and {report.analysis} has {_names(tables)}; choose with --table"
            )
        (table,) = tables
        columns = [f"{column.name}{_SUFFIXES[column.unit]}" for column in table.columns]
        print_csv((dict(zip(columns, row, strict=True)) for row in table.rows), columns, file)
        notices = [*table.notes, *report.notes, *notices]
    for line in notices:
        on_notice(on_one_line(line))


def _names(tables: Sequence[AnalysisTable]) -> str:
    return ", ".join(table.name for table in tables)


def _document(report: AnalysisReport, tables: Sequence[AnalysisTable]) -> dict[str, object]:
    """Return all cells in base units, and the files that they come from."""
    return {
        "schema_version": SCHEMA_VERSION,
        "analysis": report.analysis,
        "traces": [
            {
                "side": side.name,
                "rank": trace.timeline.rank,
                "file": str(trace.path),
                "left_out": trace.timeline.about.left_out,
            }
            for side in report.sides
            for trace in side.traces
        ],
        "tables": [
            {
                "name": table.name,
                "title": table.title,
                "columns": table.columns,
                "rows": table.rows,
                "notes": table.notes,
            }
            for table in tables
        ],
        "notes": report.notes,
    }


def _page(report: AnalysisReport, tables: Sequence[AnalysisTable], console: Console, limit: int) -> Iterator[Block]:
    for table in tables:
        yield from blocks(table, console, limit=limit)
        yield ""
    lines = [*report.notes, *report.notices()]
    if any(shortens(table, console, limit=limit) for table in tables):
        lines.append("some names are shortened in the middle; --format json has the full names")
    yield from merge_ranks(lines)


def blocks(table: AnalysisTable, console: Console, *, limit: int) -> Iterator[Block]:
    """Yield the title, at most `limit` rows, and the notes."""
    is_empty = not table.rows and not table.notes
    yield Text(f"{table.title}: nothing" if is_empty else table.title, style="bold")
    if table.rows:
        yield _console_table(table, console, limit)
    yield from merge_ranks(table.notes)
    if len(table.rows) > limit:
        yield f"{len(table.rows) - limit} more rows; --limit {len(table.rows)} shows them"


def _name_width(console: Console) -> int:
    """Return the number of letters shown of a name."""
    return min(NAME_WIDTH, max(LEAST_NAME_WIDTH, console.width // 3)) if console.is_terminal else NAME_WIDTH


def shortens(table: AnalysisTable, console: Console, *, limit: int) -> bool:
    """Return whether a name in the shown rows is shortened."""
    letters = _name_width(console)
    return any(
        isinstance(cell, str) and len(cell) > letters and column.name not in PROSE
        for row in table.rows[:limit]
        for cell, column in zip(row, table.columns, strict=True)
    )


def _console_table(table: AnalysisTable, console: Console, limit: int) -> Table:
    rows = table.rows[:limit]
    letters = _name_width(console)
    columns, headings, words = [], [], set()
    for place, column in enumerate(table.columns):
        values = [row[place] for row in rows]
        texts = [value for value in values if isinstance(value, str)]
        short = {} if column.name in PROSE else shortened(texts, letters)
        cells = [
            short[value] if isinstance(value, str) and value in short else readable(value, column.unit)
            for value in values
        ]
        columns.append(cells)
        if texts:
            words.add(place)
        # A heading that would widen its column is wrapped.
        names = column.name.split("_")
        headings.append("\n".join(textwrap.wrap(" ".join(names), max(map(len, (*names, *cells))))))
    return Table(
        headings,
        list(zip(*columns, strict=True)),
        words=words,
        # The columns before the first one with a unit identify the row.
        keys=next((place for place, column in enumerate(table.columns) if column.unit), 0),
        most_widths=[letters] * len(columns) if console.is_terminal else (),
    )
