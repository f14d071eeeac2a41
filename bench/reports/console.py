"""The console that tables are printed on: as wide as the terminal, or as a pipe's reader can bear."""

from __future__ import annotations

import sys

from rich.console import Console

PIPED_WIDTH = 120


def open_console() -> Console:
    """Standard output, without guesses at what to colour."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
