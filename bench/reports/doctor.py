"""The doctor's page on a terminal, as JSON and as CSV."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from bench.doctor.ceilings import RUNS_SEARCHED
from bench.doctor.page import Ceiling, Comparison, Entry, Page
from bench.peaks import Absent
from bench.reports.console import open_console, print_figures
from bench.reports.figures import TELLS_LITTLE, figure, tells_little
from bench.reports.formats import print_csv, print_json
from bench.reports.gpu_fields import HEADING, field_rows, print_fields

COLUMNS = ("section", "name", "value", "unit", "low", "high", "setting", "run", "before", "reason")
COMPARED = (
    "compared: versions, host, CPU, memory, GPUs, their links and the environment; not clocks, PCIe, network or the"
    " kernel's settings, which no run keeps"
)
_INDENT = (0, 0, 0, 2)


def print_page(page: Page, format_name: str, console: Console | None = None) -> None:
    """Print the page; a table goes to the console, standard output unless another is given."""
    if format_name == "json":
        print_json(msgspec.to_builtins(page))
    elif format_name == "csv":
        print_csv(list(_rows(page)), COLUMNS)
    else:
        _print_tables(page, console or open_console())


def _print_tables(page: Page, console: Console) -> None:
    widest = max(len(entry.name) for section in page.sections for entry in section.entries)
    for section in page.sections:
        _print_title(console, section.title)
        table = _plain_table(widest)
        for entry in section.entries:
            table.add_row(Text(entry.name), Text(_words(entry)))
        console.print(Padding(table, _INDENT))
    _print_title(console, HEADING)
    print_fields(page.fields, console)
    _print_title(console, f"ceilings: the best of the newest {RUNS_SEARCHED} runs of each probe")
    _print_ceilings(page.ceilings, widest, console)
    _print_title(console, "what differs from the last good run")
    if isinstance(page.comparison, Comparison):
        console.print(Padding(Text(COMPARED), _INDENT))
    console.print(Padding(_comparison(page), _INDENT))


def _print_title(console: Console, title: str) -> None:
    console.print(Text(title, style="bold"))


def _plain_table(widest: int) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(min_width=widest, no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _words(entry: Entry) -> str:
    if entry.value is None:
        return f"unknown: {entry.reason}" if entry.reason else "unknown"
    if isinstance(entry.value, str):
        return entry.value
    match entry.unit:
        case "bytes":
            return f"{entry.value / 2**30:,.1f} GiB"
        case "hertz":
            return f"{entry.value / 1e9:.2f} GHz"
        case "bits_per_second":
            return f"{entry.value / 1e9:g} Gbit/s"
        case None:
            return str(entry.value)


def _print_ceilings(ceilings: tuple[Ceiling, ...] | Absent, widest: int, console: Console) -> None:
    if isinstance(ceilings, Absent):
        console.print(Padding(Text(f"unknown: {ceilings.reason}"), _INDENT))
        return
    measured = Table("", "what", "best", "in", Column("run", no_wrap=True), box=None, pad_edge=False, show_header=False)
    for column in measured.columns[1:]:
        column.overflow = "fold"
    missing = _plain_table(widest)
    for ceiling in ceilings:
        if ceiling.best is None:
            missing.add_row(Text(ceiling.what), Text(f"unknown: {ceiling.reason}"))
        else:
            cells = ("", ceiling.what, figure(ceiling.best), ceiling.setting or "", ceiling.run or "")
            measured.add_row(*(Text(cell) for cell in cells))
    if measured.row_count:
        print_figures(console, measured)
    if any(ceiling.best is not None and tells_little(ceiling.best) for ceiling in ceilings):
        console.print(Padding(Text(TELLS_LITTLE), _INDENT))
    if missing.row_count:
        console.print(Padding(missing, _INDENT))


def _comparison(page: Page) -> Table | Text:
    comparison = page.comparison
    if isinstance(comparison, Absent):
        return Text("unknown, for the same reason" if comparison == page.ceilings else f"unknown: {comparison.reason}")
    of = f"{comparison.run} ({comparison.strategy}, {_when(comparison.started_ns)})"
    if not comparison.differences:
        return Text(f"nothing differs from {of}")
    table = Table(box=None, pad_edge=False)
    for column in ("what", f"in {of}", "now"):
        table.add_column(column, overflow="fold")
    for difference in comparison.differences:
        table.add_row(*(Text(cell) for cell in (difference.field, difference.before, difference.now)))
    return table


def _when(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns / 1e9):%Y-%m-%d %H:%M}"


def _rows(page: Page) -> Iterator[dict[str, object]]:
    for section in page.sections:
        for entry in section.entries:
            yield {"section": section.title, **msgspec.to_builtins(entry)}
    yield from field_rows(page.fields)
    yield from _ceiling_rows(page.ceilings)
    yield from _comparison_rows(page.comparison)


def _ceiling_rows(ceilings: tuple[Ceiling, ...] | Absent) -> Iterator[dict[str, object]]:
    if isinstance(ceilings, Absent):
        yield {"section": "ceilings", "reason": ceilings.reason}
        return
    for ceiling in ceilings:
        row: dict[str, object] = {"section": "ceilings", "name": ceiling.what, "reason": ceiling.reason}
        if ceiling.best is not None:
            best = ceiling.best
            row |= {"value": best.median, "unit": best.metric, "low": best.low, "high": best.high}
        yield {**row, "setting": ceiling.setting, "run": ceiling.run}


def _comparison_rows(comparison: Comparison | Absent) -> Iterator[dict[str, object]]:
    if isinstance(comparison, Absent):
        yield {"section": "differences", "reason": comparison.reason}
        return
    for found in comparison.differences:
        yield {
            "section": "differences",
            "name": found.field,
            "before": found.before,
            "value": found.now,
            "run": comparison.run,
        }
