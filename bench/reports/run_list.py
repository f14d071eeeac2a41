"""The history as a list of runs: all columns where they fit, the most useful ones on a narrow terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.reports.console import open_console, print_figures, print_words
from bench.reports.figures import little
from bench.reports.headline import headline, headline_estimate
from bench.summary import Summary

_BETWEEN = 2
"""Blanks between two columns."""
_LEFT_OUT_FIRST = ("started", "batch", "precision", "device", "ranks", "outcome")
"""Columns that a narrow terminal goes without, the least useful first: a run's name bears when it was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    name: str
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        return max(map(len, (self.name, *self.cells)))


def print_list(summaries: Sequence[Summary], console: Console | None = None) -> None:
    """Print runs, newest first, a line each; a terminal narrower than that gets fewer columns, and is told which."""
    console = console or open_console()
    columns = _columns(summaries)
    left_out: list[str] = []
    if console.is_terminal:
        for name in _LEFT_OUT_FIRST:
            if _width(columns) <= console.width:
                break
            if name == "ranks":  # Before the last columns, the headlines go without their intervals.
                columns = [_shortened(column) if column.name == "result" else column for column in columns]
                left_out.append("intervals")
            if _width(columns) > console.width:
                columns = [column for column in columns if column.name != name]
                left_out.append(name)
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.name, no_wrap=True, min_width=column.width)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, cells))
    table.width = _width(columns)  # What is still too long is broken by the terminal, and not into letters.
    print_figures(console, table)
    if left_out:
        print_words(console, f"not shown at this width: {', '.join(left_out)} (--format json has all)")
    if "intervals" not in left_out:
        for line in little(one for summary in summaries if (one := headline_estimate(summary)) is not None):
            print_words(console, line)


def _columns(summaries: Sequence[Summary]) -> list[_Column]:
    cells: dict[str, list[str]] = {
        "run": [summary.run for summary in summaries],
        "started": [f"{datetime.fromtimestamp(summary.started_ns / 1e9):%Y-%m-%d %H:%M}" for summary in summaries],
        "ranks": [str(summary.case.ranks) for summary in summaries],
        "device": [summary.case.device for summary in summaries],
        "precision": [summary.case.precision for summary in summaries],
        "batch": ["-" if summary.case.model is None else str(summary.case.model.batch) for summary in summaries],
        "result": [headline(summary) for summary in summaries],
        "outcome": [summary.outcome.replace("_", " ") for summary in summaries],
    }
    return [_Column(name=name, cells=tuple(of_runs)) for name, of_runs in cells.items()]


def _shortened(column: _Column) -> _Column:
    """Without what stands in brackets."""
    return _Column(name=column.name, cells=tuple(re.sub(r" \[[^]]*\]", "", cell) for cell in column.cells))


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + _BETWEEN * (len(columns) - 1)
