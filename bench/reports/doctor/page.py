"""Prints the doctor's page as tables, JSON or CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.analysis.mfu import Absent
from bench.doctor.page import RUNS_SEARCHED, Ceiling, Comparison, Entry, GpuFields, Page
from bench.reports.format import (
    figure,
    open_console,
    print_csv,
    print_figures,
    print_json,
    print_words,
    table_of,
    wide_interval_notes,
)
from collectors.nvml.library import FieldSupport, SupportState

_INDENT = (0, 0, 0, 2)

# The section "fields": what each GPU answers to each question, as a table of questions by GPUs and as rows of CSV.

HEADING = "fields: what the last answer of each GPU took, by the driver or by our clock"
LEGEND = (
    "no: not reported by this driver for this GPU; denied: not permitted to this process; fails: at times no answer"
)
_WORDS: dict[SupportState, str] = {"not supported": "no", "not permitted": "denied", "not always": "fails"}


def print_fields(fields: GpuFields, console: Console) -> None:
    """Print the table, its legend, and what is left out."""
    if fields.standings:
        gpus = tuple(dict.fromkeys(standing.gpu for standing in fields.standings))
        answers = {(standing.question, standing.gpu): _answer(standing) for standing in fields.standings}
        rows = [
            ("", question, *(answers.get((question, gpu), "") for gpu in gpus))
            for question in dict.fromkeys(standing.question for standing in fields.standings)
        ]
        columns = ["", "question", *(f"GPU {gpu}" for gpu in gpus)]
        console.print(Padding(Text(LEGEND), _INDENT))
        print_figures(console, table_of(columns, rows, words=(0, 1), unbroken=range(1, len(columns))))
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


def _answer(standing: FieldSupport) -> str:
    """Return how long the answer took, or why there was none."""
    if standing.answer != "answers" or standing.cost_s is None:
        return _WORDS.get(standing.answer, "")
    elapsed_us = standing.cost_s * 1e6
    if elapsed_us < 1:
        return "< 1 us"
    return f"{elapsed_us:.0f} us" if elapsed_us < 1000 else f"{elapsed_us / 1000:.1f} ms"


# The page.

COLUMNS = ("section", "name", "value", "unit", "low", "high", "setting", "run", "before", "reason")
COMPARED = (
    "compared: versions, host, CPU, memory, GPUs, their links and the environment; not clocks, PCIe, network or the"
    " kernel's settings, which no run keeps"
)


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
        print_words(console, section.title, style="bold")
        _print_named(console, [(entry.name, _words(entry)) for entry in section.entries], widest)
    print_words(console, HEADING, style="bold")
    print_fields(page.fields, console)
    print_words(console, f"ceilings: the best of the newest {RUNS_SEARCHED} runs of each probe", style="bold")
    if isinstance(page.ceilings, Absent):
        console.print(Padding(Text(f"unknown: {page.ceilings.reason}"), _INDENT))
    else:
        _print_ceilings(page.ceilings, widest, console)
    print_words(console, "what differs from the last good run", style="bold")
    if isinstance(page.comparison, Comparison):
        console.print(Padding(Text(COMPARED), _INDENT))
    console.print(Padding(_comparison(page), _INDENT))


def _print_named(console: Console, rows: Sequence[tuple[str, str]], widest: int) -> None:
    """Print names and values; the values of all sections stand below each other."""
    table = table_of(("", ""), rows, words=(0, 1), unbroken=(0,), has_heading=False)
    table.columns[0].min_width = widest
    console.print(Padding(table, _INDENT))


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


def _print_ceilings(ceilings: Sequence[Ceiling], widest: int, console: Console) -> None:
    measured = [
        ("", ceiling.what, figure(ceiling.best), ceiling.setting or "", ceiling.run or "")
        for ceiling in ceilings
        if ceiling.best is not None
    ]
    missing = [(ceiling.what, f"unknown: {ceiling.reason}") for ceiling in ceilings if ceiling.best is None]
    if measured:
        columns = ("", "what", "best", "in", "run")
        print_figures(console, table_of(columns, measured, words=range(5), unbroken=(4,), has_heading=False))
    for note in wide_interval_notes(ceiling.best for ceiling in ceilings if ceiling.best is not None):
        console.print(Padding(Text(note), _INDENT))
    if missing:
        _print_named(console, missing, widest)


def _comparison(page: Page) -> Table | Text:
    comparison = page.comparison
    if isinstance(comparison, Absent):
        return Text("unknown, for the same reason" if comparison == page.ceilings else f"unknown: {comparison.reason}")
    started = datetime.fromtimestamp(comparison.started_ns / 1e9)
    of = f"{comparison.run} ({comparison.strategy}, {started:%Y-%m-%d %H:%M})"
    if not comparison.differences:
        return Text(f"nothing differs from {of}")
    rows = [(difference.field, difference.before, difference.now) for difference in comparison.differences]
    return table_of(("what", f"in {of}", "now"), rows, words=range(3))


def _rows(page: Page) -> Iterator[dict[str, object]]:
    for section in page.sections:
        for entry in section.entries:
            yield {"section": section.title, **msgspec.to_builtins(entry)}
    yield from field_rows(page.fields)
    if isinstance(page.ceilings, Absent):
        yield {"section": "ceilings", "reason": page.ceilings.reason}
    else:
        for ceiling in page.ceilings:
            row: dict[str, object] = {"section": "ceilings", "name": ceiling.what, "reason": ceiling.reason}
            if (best := ceiling.best) is not None:
                row |= {"value": best.median, "unit": best.metric, "low": best.low, "high": best.high}
            yield {**row, "setting": ceiling.setting, "run": ceiling.run}
    if isinstance(page.comparison, Absent):
        yield {"section": "differences", "reason": page.comparison.reason}
    else:
        for one in page.comparison.differences:
            row = {"section": "differences", "name": one.field, "before": one.before, "value": one.now}
            yield {**row, "run": page.comparison.run}
