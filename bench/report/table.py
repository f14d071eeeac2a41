"""Writes results as tables and lines for people, as Markdown, and as JSON or CSV for programs."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Literal, TextIO, TypeAlias

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as DrawnTable
from rich.text import Text

from bench.errors import CONTROL
from bench.errors import on_one_line as escaped

PIPED_WIDTH = 120
_BETWEEN = 2
"""Blanks between two columns."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells for people, in rows under headings. A heading may have several lines; a cell has one.

    words: columns of words, aligned left; the others hold figures and are aligned right.
    keys: number of first columns that name a row. On a narrow terminal, the other columns continue below, after the
    keys that distinguish the rows. None folds cells instead, like a column that is too wide on its own.
    folds: where cells that do not fit are folded: only on a terminal, everywhere, or nowhere.
    unbroken: columns whose cells are never folded. styles: of the rows. indent: blanks before each line.
    least_width: letters of the first column. most_widths: letters of each column.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    _: KW_ONLY
    words: Container[int] = (0,)
    keys: int | None = None
    folds: Literal["terminal", "always", "never"] = "terminal"
    unbroken: Container[int] = ()
    styles: Sequence[str] = ()
    has_heading: bool = True
    indent: int = 0
    least_width: int = 0
    most_widths: Sequence[int] = ()

    def widths(self) -> list[int]:
        """Return the width of each column when no cell is folded."""
        widths = []
        for place, column in enumerate(self.columns):
            lines = column.split("\n") if self.has_heading else []
            width = max(map(cell_len, (*lines, *(_plain(row[place]) for row in self.rows))), default=0)
            width = max(width, 0 if place else self.least_width)
            widths.append(min(width, self.most_widths[place]) if self.most_widths else width)
        return widths

    def width(self) -> int:
        """Return the width of a row when no cell is folded."""
        widths = self.widths()
        return sum(widths) + _BETWEEN * (len(widths) - 1)


Block: TypeAlias = Table | Padding | Text | str
"""A part of a page: a table or a line; an empty line is a gap."""


def whole(line: str) -> Text:
    """Return a line that is not broken on a terminal, for example a path to copy."""
    return Text(line, no_wrap=True)


def indented(line: str) -> Padding:
    """Return a line that is indented by two blanks, also where it is broken."""
    return Padding(Text(line), (0, 0, 0, 2))


def write(
    format_name: str,
    page: Iterable[Block],
    document: Callable[[], object],
    rows: Iterable[Mapping[str, object]],
    columns: Sequence[str],
    console: Console | None = None,
) -> None:
    """Print a result in the requested format; the reader may close the pipe early: `observatory run ddp | head -3`.

    page: for people, to the console; None for standard output. document: for JSON. rows, columns: for CSV.
    """
    with to_reader():
        if format_name == "json":
            print_json(document())
        elif format_name == "csv":
            print_csv(rows, columns)
        else:
            print_page(page, console)


@contextmanager
def to_reader() -> Iterator[None]:
    """Print to standard output, and continue if its reader closes the pipe."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich raises SystemExit if the pipe is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


# For programs


def print_json(value: object, file: TextIO | None = None) -> None:
    """Print the value, which may contain dataclasses and structs, as indented JSON; NaN floats stay NaN."""
    print(json.dumps(msgspec.to_builtins(value), indent=2), file=file)


def print_csv(rows: Iterable[Mapping[str, object]], columns: Sequence[str], file: TextIO | None = None) -> None:
    """Print the rows under the columns' names. Labels form one field: `account=measured,rank=0`."""
    writer = csv.DictWriter(file or sys.stdout, fieldnames=columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _field(value) for name, value in row.items()})


def _field(value: object) -> object:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={each}" for name, each in value.items())
    return escaped(value) if isinstance(value, str) else value


def markdown(table: Table) -> list[str]:
    """Return the table as lines of Markdown."""
    rules = ["---" if place in table.words else "--:" for place in range(len(table.columns))]
    rows = [" | ".join(markdown_text(str(cell)) for cell in row) for row in table.rows]
    return [f"| {' | '.join(table.columns)} |", f"|{'|'.join(rules)}|", *(f"| {row} |" for row in rows)]


def markdown_text(text: str) -> str:
    """Escape the text for Markdown, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", CONTROL.sub("?", " ".join(text.split())))


# For people


def open_console(file: TextIO | None = None) -> Console:
    """Return a console for this file; None for standard output."""
    is_terminal = (sys.stdout if file is None else file).isatty()
    return Console(file=file, width=None if is_terminal else PIPED_WIDTH, highlight=False)


def print_page(page: Iterable[Block], console: Console | None = None) -> None:
    """Print tables and lines. In a pipe, lines and rows are whole; on a terminal, lines are broken between words.

    Names of runs, hosts, folders and events may come from anywhere: texts are printed without markup or emoji codes,
    and "?" replaces each control character and newline, so that a name cannot forge a line.
    """
    console = console or open_console()
    for block in page:
        if isinstance(block, Table):
            _print_table(block, console)
        elif isinstance(block, Padding):
            assert isinstance(block.renderable, Text), "what is indented is a line"
            console.print(Padding(_on_one_line(block.renderable), (0, 0, 0, block.left)))
        else:
            line = _on_one_line(block)
            console.print(line, soft_wrap=bool(line.no_wrap) or not console.is_terminal)


def _plain(text: str | Text) -> str:
    """Return the plain text of a cell or line, on one line."""
    return CONTROL.sub("?", str(text).replace("\n", "?"))


def _on_one_line(text: str | Text) -> Text:
    text = Text(text) if isinstance(text, str) else text
    return Text(_plain(text), text.style, no_wrap=text.no_wrap)


def _print_table(table: Table, console: Console) -> None:
    blocks: Iterable[Sequence[int]] = [range(len(table.columns))]
    if console.is_terminal and table.keys is not None:
        blocks = _blocks(table, table.keys, console.width)
    for number, places in enumerate(blocks):
        if number:
            console.print()
        drawn = DrawnTable(box=None, pad_edge=False, show_header=table.has_heading)
        for place in places:
            drawn.add_column(
                Text(CONTROL.sub("?", table.columns[place])),
                justify="left" if place in table.words else "right",
                overflow="fold",
                no_wrap=place in table.unbroken,
                min_width=table.least_width if place == 0 else None,
                max_width=table.most_widths[place] if table.most_widths else None,
            )
        for row, style in zip(table.rows, table.styles or [""] * len(table.rows), strict=True):
            drawn.add_row(*(_on_one_line(row[place]) for place in places), style=style)
        if table.folds == "never" or (table.folds == "terminal" and not console.is_terminal):
            drawn.width = table.width()
        console.print(Padding(drawn, (0, 0, 0, table.indent)) if table.indent else drawn, crop=False)


def _blocks(table: Table, keys: int, edge: int) -> Iterator[list[int]]:
    """Yield the columns of each block that fits: the first has all keys, the others only those that distinguish rows.

    Example: widths 5, 5, 9 and 9 with one key in 25 letters give [0, 1, 2] and [0, 3].
    """
    widths = table.widths()
    names = [tuple(map(_plain, row[:keys])) for row in table.rows]
    telling = next((count for count in range(1, keys) if len({name[:count] for name in names}) == len(names)), keys)
    block, first_figure = list(range(keys)), keys
    for place in range(keys, len(widths)):
        used = sum(widths[other] + _BETWEEN for other in block)
        if len(block) > first_figure and used + widths[place] > edge:
            yield block
            block, first_figure = list(range(telling)), telling
        block.append(place)
    if block:
        yield block
