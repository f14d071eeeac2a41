"""Prints the doctor's page as tables, JSON or CSV."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from bench.analysis.mfu import Absent
from bench.doctor.page import RUNS_SEARCHED, Ceiling, Comparison, Entry, GpuFields, Page
from bench.reports.format import TELLS_LITTLE, figure, open_console, print_csv, print_figures, print_json, tells_little
from collectors.nvml.library import Answer, FieldSupport

# The section "fields": what each GPU answers to each question, as a table of questions by GPUs and as rows of CSV.

HEADING = "fields: what the last answer of each GPU took, by the driver or by our clock"
LEGEND = "no: not told of this GPU by this driver; denied: not told to this process; fails: no answer at times"
_WORDS: dict[Answer, str] = {"not supported": "no", "not permitted": "denied", "not always": "fails"}


def print_fields(fields: GpuFields, console: Console) -> None:
    """Print the table, its legend, and what is left out."""
    if fields.standings:
        console.print(Padding(Text(LEGEND), _INDENT))
        print_figures(console, _table(fields))
    for reason in fields.left_out:
        console.print(Padding(Text(reason if fields.standings else f"unknown: {reason}"), _INDENT))


def field_rows(fields: GpuFields) -> Iterator[dict[str, object]]:
    """Yield a row for each question to each GPU: the seconds that the answer took, or why there was none."""
    for standing in fields.standings:
        row: dict[str, object] = {"section": "fields", "name": standing.question, "setting": f"GPU {standing.gpu}"}
        if standing.cost_s is not None:
            row |= {"value": standing.cost_s, "unit": "seconds"}
        if standing.reason is not None:
            row["reason"] = f"{standing.answer}: {standing.reason}"
        yield row
    for reason in fields.left_out:
        yield {"section": "fields", "name": "left out", "reason": reason}


def _table(fields: GpuFields) -> Table:
    gpus = tuple(dict.fromkeys(standing.gpu for standing in fields.standings))
    table = Table("", Column("question", no_wrap=True), box=None, pad_edge=False)
    for gpu in gpus:
        table.add_column(f"GPU {gpu}", justify="right", no_wrap=True)
    by_question: dict[str, dict[str, FieldSupport]] = {}
    for standing in fields.standings:
        by_question.setdefault(standing.question, {})[standing.gpu] = standing
    for question, standings in by_question.items():
        cells = (_cell(standings[gpu]) if gpu in standings else "" for gpu in gpus)
        table.add_row("", Text(question), *(Text(cell) for cell in cells))
    return table


def _cell(standing: FieldSupport) -> str:
    if standing.answer != "answers" or standing.cost_s is None:
        return _WORDS.get(standing.answer, "")
    return _duration(standing.cost_s)


def _duration(elapsed_s: float) -> str:
    elapsed_us = elapsed_s * 1e6
    if elapsed_us < 1:
        return "< 1 us"
    return f"{elapsed_us:.0f} us" if elapsed_us < 1000 else f"{elapsed_us / 1000:.1f} ms"


# The page.

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
