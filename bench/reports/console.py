"""The console that tables are printed on: as wide as the terminal, or as a pipe's reader can bear."""

from __future__ import annotations

import sys
from collections.abc import Iterable
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


def print_figures(console: Console, table: Table) -> None:
    """Print a table of figures: one line a row, however long, except where a terminal's edge folds its cells."""
    if not console.is_terminal:
        table.width = widest(console, table)
    console.print(table, crop=False)


def widest(console: Console, table: Table) -> int:
    """The width at which no cell of the table is folded, in letters."""
    return Measurement.get(console, console.options.update_width(_NO_EDGE), table).maximum


def print_words(console: Console, line: str, *, style: str = "") -> None:
    """Print a sentence: one line, however long, except that a terminal breaks it between words."""
    console.print(Text(line, style=style), soft_wrap=not console.is_terminal)
