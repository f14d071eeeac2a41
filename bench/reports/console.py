"""The console that tables are printed on: as wide as the terminal, or as a pipe's reader can bear."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

PIPED_WIDTH = 120
_NO_EDGE = 10_000


def open_console() -> Console:
    """Standard output, without guesses at what to colour."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def print_figures(console: Console, table: Table) -> None:
    """Print a table of figures: one line a row, however long, except where a terminal's edge folds its cells."""
    if not console.is_terminal:
        table.width = Measurement.get(console, console.options.update_width(_NO_EDGE), table).maximum
    console.print(table, crop=False)
