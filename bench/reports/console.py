"""The console that tables are printed on: as wide as the terminal, or as a pipe's reader can bear."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from bench.notices import CONTROL

PIPED_WIDTH = 120
_NO_EDGE = 10_000


class PlainConsole(Console):
    """Prints texts as they are: no word in brackets or between colons means anything, and no letter moves the cursor.

    Names of runs, hosts, folders and events may come from anywhere; a "?" stands for each letter that a terminal obeys.
    """

    def __init__(
        self, file: TextIO | None = None, *, width: int | None = None, force_terminal: bool | None = None
    ) -> None:
        super().__init__(
            file=file, width=width, force_terminal=force_terminal, highlight=False, markup=False, emoji=False
        )

    def render_str(self, text: str, **options: Any) -> Text:
        # A cell of a table is measured before it is rendered, so that its letters are replaced before that.
        return super().render_str(CONTROL.sub("?", text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or CONTROL.search(segment.text) is None:
                yield segment
            else:
                yield Segment(CONTROL.sub("?", segment.text), segment.style)


def open_console(file: TextIO | None = None) -> Console:
    """A console for this file, standard output unless another is given."""
    is_terminal = (sys.stdout if file is None else file).isatty()
    return PlainConsole(file, width=None if is_terminal else PIPED_WIDTH)


def print_figures(console: Console, table: Table, *, keys: int = 0) -> None:
    """Print a table of figures: one line a row, however long, except on a terminal that is narrower.

    keys: so many first columns say what a row is of. On a narrow terminal the others continue below, after these again;
    without them, and where one column alone is too wide, cells are folded.
    """
    if not console.is_terminal:
        table.width = widest(console, table)
    parts = [table]
    if console.is_terminal and keys and widest(console, table) > console.width:
        parts = list(_parts(console, table, keys))
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(part, crop=False)


def _parts(console: Console, table: Table, keys: int) -> Iterator[Table]:
    """The table's columns in as many tables as fit, each with the keys."""
    places = list(range(keys))
    for place in range(keys, len(table.columns)):
        if len(places) > keys and widest(console, part_of(table, [*places, place])) > console.width:
            yield part_of(table, places)
            places = list(range(keys))
        places.append(place)
    yield part_of(table, places)


def part_of(table: Table, columns: Sequence[int], rows: Sequence[int] | None = None) -> Table:
    """Some columns of the table, and some rows, or all."""
    part = Table(box=None, pad_edge=False)
    for place in columns:
        column = table.columns[place]
        part.add_column(column.header, justify=column.justify, overflow=column.overflow, no_wrap=column.no_wrap)
    cells = [list(table.columns[place].cells) for place in columns]
    for row in range(table.row_count) if rows is None else rows:
        part.add_row(*(of_column[row] for of_column in cells))
    return part


def widest(console: Console, table: Table) -> int:
    """The width at which no cell of the table is folded, in letters."""
    return Measurement.get(console, console.options.update_width(_NO_EDGE), table).maximum


def print_words(console: Console, line: str, *, style: str = "") -> None:
    """Print a sentence: one line, however long, except that a terminal breaks it between words."""
    console.print(Text(line, style=style), soft_wrap=not console.is_terminal)
