"""A curve over numbers of ranks, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from bench.curve import Point
from bench.reports.console import open_console, print_figures, print_words
from bench.reports.figures import little, percent
from bench.reports.formats import print_json
from bench.reports.headline import headline
from bench.reports.run_notes import little_notes


def print_curve(points: Sequence[Point], console: Console | None = None) -> None:
    """Print a row for each number of ranks: its throughput, and its efficiency against the first."""
    console = console or open_console()
    first = points[0].summary
    is_training = first.case.model is not None
    table = Table(box=None, pad_edge=False)
    for column in ("ranks", "throughput", *(("efficiency",) if is_training else ()), "outcome"):
        table.add_column(column, justify="left" if column == "outcome" else "right")
    for point in points:
        summary, found = point.summary, point.efficiency
        efficiency = "-" if found is None else percent(found)
        cells = [str(summary.case.ranks), headline(summary), *([efficiency] if is_training else [])]
        table.add_row(*cells, summary.outcome.replace("_", " "))
    console.print()
    print_figures(console, table, keys=1)
    if first.case.model is None:
        return
    print_words(
        console,
        f"efficiency: tokens/s and rank over those on {first.case.ranks}, all of batch {first.case.model.batch}"
        " (strong scaling), measured in turn",
    )
    for why in dict.fromkeys(_whys(points)):
        print_words(console, why)
    if not little_notes([point.summary for point in points]):  # Else it stands above.
        for line in little(point.efficiency for point in points if point.efficiency is not None):
            print_words(console, line)


def print_curve_json(points: Sequence[Point]) -> None:
    """Print a list of all runs, each as ever, with its place on the curve."""
    print_json(
        [
            {
                **msgspec.to_builtins(point.summary),
                "curve": {
                    "ranks": point.summary.case.ranks,
                    "against": points[0].summary.run,
                    "efficiency": None if point.efficiency is None else msgspec.to_builtins(point.efficiency),
                    "reason": point.reason,
                },
            }
            for point in points
        ]
    )


def _whys(points: Sequence[Point]) -> list[str]:
    """Why a row has no efficiency, or none with an interval."""
    missing = [
        f"efficiency on {point.summary.case.ranks} is absent: {point.reason}" for point in points[1:] if point.reason
    ]
    return missing + [
        f"intervals of efficiency are absent: {point.efficiency.why_no_interval}"
        for point in points
        if point.efficiency is not None and point.efficiency.why_no_interval
    ]
