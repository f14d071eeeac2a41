"""A table of an analysis drawn for people: as wide as they see, its columns in several rows where they do not fit."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from bench.reports.cells import NAME_WIDTH, on_one_line, readable, said_of_ranks, shortened
from bench.reports.console import print_figures, print_words
from collectors.traces.table import Cell, Column, Table

LEAST_NAME_WIDTH = 20
PROSE = frozenset({"reason", "why"})
"""Columns that hold sentences, which are folded and not shortened."""
_WHOLE = 10_000
_BETWEEN = 2
"""Blanks between two columns."""


def draw(table: Table, console: Console, *, limit: int) -> None:
    """Print the title, at most so many rows, and the notes.

    The first columns, which say what a row is of, are repeated where the others continue below, as far as needed.
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
    """How many letters of a name are shown."""
    if not console.is_terminal:
        return NAME_WIDTH
    return min(NAME_WIDTH, max(LEAST_NAME_WIDTH, console.width // 3))


def shortens(table: Table, console: Console, *, limit: int) -> bool:
    """Whether a name of the shown rows is longer than what is shown of it."""
    letters = name_width(console)
    return any(
        isinstance(cell, str) and len(cell) > letters and column.name not in PROSE
        for row in table.rows[:limit]
        for cell, column in zip(row, table.columns, strict=True)
    )


def _draw_rows(table: Table, console: Console, limit: int) -> None:
    shown = table.rows[:limit]
    letters = name_width(console)
    cells = [_cells(column, [row[place] for row in shown], letters) for place, column in enumerate(table.columns)]
    headings = [_heading(column, column_cells) for column, column_cells in zip(table.columns, cells, strict=True)]
    widths = [
        min(max(map(len, (*heading.splitlines(), *column_cells))), letters if console.is_terminal else _WHOLE)
        for heading, column_cells in zip(headings, cells, strict=True)
    ]
    edge = console.width if console.is_terminal else sum(widths) + _BETWEEN * len(widths)
    keys = _keys(table.columns)
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
    """Its words, above each other as far as they would widen the column."""
    words = column.name.split("_")
    return "\n".join(textwrap.wrap(" ".join(words), max(map(len, (*words, *cells)))))


def _keys(columns: Sequence[Column]) -> int:
    """How many columns at the beginning name what a row is of."""
    return next((place for place, column in enumerate(columns) if column.unit), 0)


def _telling(cells: Sequence[Sequence[str]]) -> int:
    """How many of these first columns tell all rows apart."""
    rows = list(zip(*cells, strict=True))
    return next((count for count in range(len(cells)) if len({row[:count] for row in rows}) == len(rows)), len(cells))


def _blocks(widths: Sequence[int], keys: int, telling: int, edge: int) -> Iterator[list[int]]:
    """The columns of each block that fits: the keys first, and again in the others as far as they tell rows apart."""
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
