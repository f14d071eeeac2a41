"""What each GPU answers to which question, as a table of questions by GPUs and as rows of CSV."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from bench.doctor.page import GpuFields
from bench.reports.console import print_figures
from collectors.nvml.standing import Answer, Standing

HEADING = "fields: what the last answer of each GPU took, by the driver or by our clock"
LEGEND = "no: not told of this GPU by this driver; denied: not told to this process; fails: no answer at times"
_WORDS: dict[Answer, str] = {"not supported": "no", "not permitted": "denied", "not always": "fails"}
_INDENT = (0, 0, 0, 2)


def print_fields(fields: GpuFields, console: Console) -> None:
    """Print the table, what its words mean, and what is left out."""
    if fields.standings:
        console.print(Padding(Text(LEGEND), _INDENT))
        print_figures(console, _table(fields))
    for reason in fields.left_out:
        console.print(Padding(Text(reason if fields.standings else f"unknown: {reason}"), _INDENT))


def field_rows(fields: GpuFields) -> Iterator[dict[str, object]]:
    """A row for each question to each GPU: what the answer took in seconds, or why there was none."""
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
    by_question: dict[str, dict[str, Standing]] = {}
    for standing in fields.standings:
        by_question.setdefault(standing.question, {})[standing.gpu] = standing
    for question, standings in by_question.items():
        cells = (_cell(standings[gpu]) if gpu in standings else "" for gpu in gpus)
        table.add_row("", Text(question), *(Text(cell) for cell in cells))
    return table


def _cell(standing: Standing) -> str:
    if standing.answer != "answers" or standing.cost_s is None:
        return _WORDS.get(standing.answer, "")
    return _duration(standing.cost_s)


def _duration(elapsed_s: float) -> str:
    elapsed_us = elapsed_s * 1e6
    if elapsed_us < 1:
        return "< 1 us"
    return f"{elapsed_us:.0f} us" if elapsed_us < 1000 else f"{elapsed_us / 1000:.1f} ms"
