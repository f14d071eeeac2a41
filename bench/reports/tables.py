"""Writes what an analysis of traces found, as tables for people, JSON or CSV."""

from __future__ import annotations

import csv
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console

from bench.errors import Misuse
from bench.reports.format import (
    NAME_WIDTH,
    merge_ranks,
    on_one_line,
    open_console,
    print_figures,
    print_words,
    readable,
    shortened,
    table_of,
)
from bench.traces.inputs import TraceSet
from collectors.traces.table import Table, Unit

# A table drawn for people, as wide as their terminal; columns that do not fit continue below.

LEAST_NAME_WIDTH = 20
PROSE = frozenset({"reason", "why"})
"""Columns that hold sentences, which are folded instead of shortened."""
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
    print_words(console, *merge_ranks(table.notes))
    if len(table.rows) > limit:
        print_words(console, f"{len(table.rows) - limit} more rows; --limit {len(table.rows)} shows them")


def _name_width(console: Console) -> int:
    """Return how many letters of a name are shown."""
    return min(NAME_WIDTH, max(LEAST_NAME_WIDTH, console.width // 3)) if console.is_terminal else NAME_WIDTH


def shortens(table: Table, console: Console, *, limit: int) -> bool:
    """Return whether a name in the shown rows is shortened."""
    letters = _name_width(console)
    return any(
        isinstance(cell, str) and len(cell) > letters and column.name not in PROSE
        for row in table.rows[:limit]
        for cell, column in zip(row, table.columns, strict=True)
    )


def _draw_rows(table: Table, console: Console, limit: int) -> None:
    shown = table.rows[:limit]
    letters = _name_width(console)
    # By column: its cells as text, its heading, and the letters that it takes.
    cells, headings, widths = [], [], []
    for place, column in enumerate(table.columns):
        values = [row[place] for row in shown]
        names = [value for value in values if isinstance(value, str) and column.name not in PROSE]
        short = shortened(names, letters)
        cells.append(
            [
                short[value] if isinstance(value, str) and value in short else readable(value, column.unit)
                for value in values
            ]
        )
        # A heading's words stand one below the other where they would widen the column.
        words = column.name.split("_")
        heading = textwrap.wrap(" ".join(words), max(map(len, (*words, *cells[-1]))))
        headings.append("\n".join(heading))
        width = max(map(len, (*heading, *cells[-1])))
        widths.append(min(width, letters) if console.is_terminal else width)
    edge = console.width if console.is_terminal else sum(widths) + _BETWEEN * len(widths)
    # The first columns, before the first with a unit, name what a row is of: how many, and how many tell rows apart.
    keys = next((place for place, column in enumerate(table.columns) if column.unit), 0)
    names_of_rows = list(zip(*cells[:keys], strict=True))
    telling = next(
        (count for count in range(keys) if len({row[:count] for row in names_of_rows}) == len(names_of_rows)), keys
    )
    # One drawn table for each block of columns that fits, one below the other.
    for number, places in enumerate(_blocks(widths, keys, telling, edge)):
        if number:
            console.print()
        texts = {block for block, place in enumerate(places) if any(isinstance(row[place], str) for row in shown)}
        rows = zip(*(cells[place] for place in places), strict=True)
        drawn = table_of([headings[place] for place in places], rows, words=texts)
        for drawn_column, place in zip(drawn.columns, places, strict=True):
            drawn_column.max_width = widths[place]
        print_figures(console, drawn)


def _blocks(widths: Sequence[int], keys: int, telling: int, edge: int) -> Iterator[list[int]]:
    """Yield the columns of each block that fits: the first has all keys, the others those that tell rows apart.

    Widths 5, 5, 9 and 9 with one key in 25 letters: [0, 1, 2] and [0, 3].
    """
    block, first_figure = list(range(keys)), keys
    for place in range(keys, len(widths)):
        used = sum(widths[other] + _BETWEEN for other in block)
        if len(block) > first_figure and used + widths[place] > edge:
            yield block
            block, first_figure = list(range(telling)), telling
        block.append(place)
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
    tables = tuple(table for table in found.tables if table_name in (None, table.name))
    if not tables:
        raise Misuse(f'--table is "{table_name}"; {found.analysis} has {_names(found.tables)}')
    if format_name == "table":
        _write_for_people(found, tables, file, limit)
        return
    notices = found.notices()
    if format_name == "json":
        _write_json(found, tables, file)
    else:
        _write_csv(found, tables, file)
        notices = [*tables[0].notes, *found.notes, *notices]
    for line in notices:
        on_notice(on_one_line(line))


def _write_for_people(found: AnalysisReport, tables: Sequence[Table], file: TextIO, limit: int) -> None:
    console = open_console(file)
    for table in tables:
        draw(table, console, limit=limit)
        console.print()
    lines = [*found.notes, *found.notices()]
    if any(shortens(table, console, limit=limit) for table in tables):
        lines.append("some names are shortened in the middle; --format json has them whole")
    print_words(console, *merge_ranks(lines))


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
