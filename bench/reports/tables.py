"""Writes what an analysis of traces found, as tables for people, JSON or CSV."""

from __future__ import annotations

import csv
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from bench.errors import Misuse
from bench.reports.format import (
    NAME_WIDTH,
    on_one_line,
    open_console,
    print_figures,
    print_words,
    readable,
    said_of_ranks,
    shortened,
)
from bench.traces.inputs import TraceSet
from collectors.traces.table import Cell, Column, Table, Unit

# A table drawn for people, as wide as their terminal; columns that do not fit continue below.

LEAST_NAME_WIDTH = 20
PROSE = frozenset({"reason", "why"})
"""Columns that hold sentences, which are folded instead of shortened."""
_WHOLE = 10_000
_BETWEEN = 2
"""Blanks between two columns."""


def draw(table: Table, console: Console, *, limit: int) -> None:
    """Print the title, at most `limit` rows, and the notes.

    Where columns continue below, the first ones, which say what a row is of, are repeated as far as needed.
    """
    if not table.rows and not table.notes:
        print_words(console, f"{table.title}: nothing", style="bold")
        return
    print_words(console, table.title, style="bold")
    if table.rows:
        _draw_rows(table, console, limit)
    for line in said_of_ranks(table.notes):
        print_words(console, on_one_line(line))
    if len(table.rows) > limit:
        print_words(console, f"{len(table.rows) - limit} more rows; --limit {len(table.rows)} shows them")


def name_width(console: Console) -> int:
    """Return how many letters of a name are shown."""
    if not console.is_terminal:
        return NAME_WIDTH
    return min(NAME_WIDTH, max(LEAST_NAME_WIDTH, console.width // 3))


def shortens(table: Table, console: Console, *, limit: int) -> bool:
    """Return whether a name in the shown rows is shortened."""
    letters = name_width(console)
    return any(
        isinstance(cell, str) and len(cell) > letters and column.name not in PROSE
        for row in table.rows[:limit]
        for cell, column in zip(row, table.columns, strict=True)
    )


def _draw_rows(table: Table, console: Console, limit: int) -> None:
    shown = table.rows[:limit]
    letters = name_width(console)
    # Texts of all cells and headings by column, and the letters that each column takes.
    cells = [_cells(column, [row[place] for row in shown], letters) for place, column in enumerate(table.columns)]
    headings = [_heading(column, column_cells) for column, column_cells in zip(table.columns, cells, strict=True)]
    widths = [
        min(max(map(len, (*heading.splitlines(), *column_cells))), letters if console.is_terminal else _WHOLE)
        for heading, column_cells in zip(headings, cells, strict=True)
    ]
    edge = console.width if console.is_terminal else sum(widths) + _BETWEEN * len(widths)
    keys = _keys(table.columns)
    # One drawn table for each block of columns that fits, one below the other.
    for number, places in enumerate(_blocks(widths, keys, _telling(cells[:keys]), edge)):
        if number:
            console.print()
        drawn = Drawn(box=None, pad_edge=False)
        for place in places:
            is_text = any(isinstance(row[place], str) for row in shown)
            drawn.add_column(
                Text(headings[place]),
                justify="left" if is_text else "right",
                overflow="fold",
                max_width=widths[place],
            )
        for row_cells in zip(*(cells[place] for place in places), strict=True):
            drawn.add_row(*map(Text, row_cells))
        print_figures(console, drawn)


def _cells(column: Column, cells: Sequence[Cell], letters: int) -> list[str]:
    if column.name in PROSE:
        return [readable(cell, column.unit) for cell in cells]
    short = shortened((cell for cell in cells if isinstance(cell, str)), letters)
    return [short[cell] if isinstance(cell, str) else readable(cell, column.unit) for cell in cells]


def _heading(column: Column, cells: Sequence[str]) -> str:
    """Return the column's words, one below the other where they would widen the column."""
    words = column.name.split("_")
    return "\n".join(textwrap.wrap(" ".join(words), max(map(len, (*words, *cells)))))


def _keys(columns: Sequence[Column]) -> int:
    """Return how many first columns name what a row is of: those before the first with a unit."""
    return next((place for place, column in enumerate(columns) if column.unit), 0)


def _telling(cells: Sequence[Sequence[str]]) -> int:
    """Return how many of these first columns are enough to tell all rows apart."""
    rows = list(zip(*cells, strict=True))
    return next((count for count in range(len(cells)) if len({row[:count] for row in rows}) == len(rows)), len(cells))


def _blocks(widths: Sequence[int], keys: int, telling: int, edge: int) -> Iterator[list[int]]:
    """Yield the columns of each block that fits: the first has all keys, the others those that tell rows apart.

    Widths 5, 5, 9 and 9 with one key in 25 letters: [0, 1, 2] and [0, 3].
    """
    block, again = list(range(keys)), list(range(telling))
    used = sum(widths[place] + _BETWEEN for place in block)
    has_figures = False
    for place in range(keys, len(widths)):
        if has_figures and used + widths[place] > edge:
            yield block
            block, used = list(again), sum(widths[key] + _BETWEEN for key in again)
        block.append(place)
        used += widths[place] + _BETWEEN
        has_figures = True
    if block:
        yield block


# What an analysis found, in the requested format.

SCHEMA_VERSION = 1
_SUFFIXES: dict[Unit, str] = {"": "", "ns": "_ns", "ratio": "_ratio", "bytes": "_bytes", "bytes/s": "_bytes_per_second"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisReport:
    """What an analysis found in these sides. notes: of the analysis, and so of each of its tables."""

    analysis: str
    sides: tuple[TraceSet, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]

    def notices(self) -> list[str]:
        """Return what is missing in the traces, a line each, which names its side where there are several."""
        if len(self.sides) == 1:
            return list(self.sides[0].notices)
        return [f"{side.name}: {line}" for side in self.sides for line in side.notices]


def write(
    found: AnalysisReport,
    file: TextIO,
    format_name: str,
    *,
    table_name: str | None,
    limit: int,
    on_notice: Callable[[str], None],
) -> None:
    """Write all tables, or the one of this name, with the analysis's notes. limit: rows of a table for people.

    on_notice: is told notes, and what is missing in the traces, where the format has no place for them.

    Raises:
        Misuse: there is no such table; or there are several, and the format takes one.
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


def _chosen(found: AnalysisReport, name: str | None) -> tuple[Table, ...]:
    tables = tuple(table for table in found.tables if name in (None, table.name))
    if not tables:
        raise Misuse(f'--table is "{name}"; {found.analysis} has {_names(found.tables)}')
    return tables


def _write_for_people(found: AnalysisReport, tables: Sequence[Table], file: TextIO, limit: int) -> None:
    console = open_console(file)
    for table in tables:
        draw(table, console, limit=limit)
        console.print()
    lines = [*found.notes, *found.notices()]
    if any(shortens(table, console, limit=limit) for table in tables):
        lines.append("some names are shortened in the middle; --format json has them whole")
    for line in said_of_ranks(lines):
        print_words(console, on_one_line(line))


def _write_json(found: AnalysisReport, tables: Sequence[Table], file: TextIO) -> None:
    """Write all cells in base units, with the files that they come from."""
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


def _write_csv(found: AnalysisReport, tables: Sequence[Table], file: TextIO) -> None:
    """Write the cells of one table in base units, which the columns' names state."""
    if len(tables) > 1:
        raise Misuse(f"--format csv writes one table, and {found.analysis} has {_names(tables)}; choose with --table")
    (table,) = tables
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(f"{column.name}{_SUFFIXES[column.unit]}" for column in table.columns)
    writer.writerows(table.rows)


def _names(tables: Sequence[Table]) -> str:
    return ", ".join(table.name for table in tables)
