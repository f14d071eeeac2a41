"""Prints the doctor's page, the check of several nodes, and the removed leftovers, as tables, JSON or CSV."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from bench.errors import plural
from bench.machine.doctor.fleet import Fleet, in_units, lines_of
from bench.machine.doctor.page import RUNS_SEARCHED, Entry, GpuFields, MachineComparison, Page, ReachedCeiling
from bench.machine.temporary_folders import Swept
from bench.report.format import figure, wide_interval_notes
from bench.report.table import Block, Table, indented, write
from collectors.nvml.library import FieldSupport, SupportState
from workloads.cost_models.absent import Absent

# The page of this machine.

COLUMNS = ("section", "name", "value", "unit", "low", "high", "setting", "run", "before", "reason")
HEADING = "fields: duration of each GPU's last answer, by the driver's clock or ours"
LEGEND = (
    "no: not reported by this driver for this GPU; denied: not permitted to this process; fails: sometimes no answer"
)
COMPARED = (
    "compared: versions, host, CPU, memory, GPUs, their links and the environment; not clocks, PCIe, network or"
    " kernel settings, which runs do not record"
)
_WORDS: dict[SupportState, str] = {"not supported": "no", "not permitted": "denied", "not always": "fails"}


def print_page(page: Page, format_name: str, console: Console | None = None) -> None:
    """Print the page; a table goes to the console, standard output unless another is given."""
    write(format_name, _page(page), lambda: page, _page_rows(page), COLUMNS, console)


def _page(page: Page) -> Iterator[Block]:
    width = max(len(entry.name) for section in page.sections for entry in section.entries)
    for section in page.sections:
        yield _heading(section.title)
        yield _named([(entry.name, _words(entry)) for entry in section.entries], width)
    yield _heading(HEADING)
    yield from field_blocks(page.fields)
    yield _heading(f"ceilings: the best of the newest {RUNS_SEARCHED} runs of each probe")
    if isinstance(page.ceilings, Absent):
        yield indented(f"unknown: {page.ceilings.reason}")
    else:
        yield from _ceilings(page.ceilings, width)
    yield _heading("what differs from the last good run")
    if isinstance(page.comparison, MachineComparison):
        yield indented(COMPARED)
    yield _compared(page)


def _heading(title: str) -> Text:
    return Text(title, style="bold")


def _named(rows: Sequence[tuple[str, str]], width: int) -> Table:
    """Return names and values; the values of all sections form one column."""
    look: dict[str, Any] = {"words": (0, 1), "unbroken": (0,), "has_heading": False, "folds": "always"}
    return Table(("", ""), rows, **look, least_width=width, indent=2)


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


def field_blocks(fields: GpuFields) -> Iterator[Block]:
    """Yield what each GPU answers to each question, the legend of these words, and what is left out."""
    if fields.standings:
        gpus = tuple(dict.fromkeys(standing.gpu for standing in fields.standings))
        answers = {(standing.question, standing.gpu): _answer(standing) for standing in fields.standings}
        rows = [
            ("", question, *(answers.get((question, gpu), "") for gpu in gpus))
            for question in dict.fromkeys(standing.question for standing in fields.standings)
        ]
        columns = ["", "question", *(f"GPU {gpu}" for gpu in gpus)]
        yield indented(LEGEND)
        yield Table(columns, rows, words=(0, 1), unbroken=range(1, len(columns)))
    for reason in fields.left_out:
        yield indented(reason if fields.standings else f"unknown: {reason}")


def _answer(standing: FieldSupport) -> str:
    """Return how long the answer took, or why there was none."""
    if standing.answer != "answers" or standing.cost_s is None:
        return _WORDS.get(standing.answer, "")
    elapsed_us = standing.cost_s * 1e6
    if elapsed_us < 1:
        return "< 1 us"
    return f"{elapsed_us:.0f} us" if elapsed_us < 1000 else f"{elapsed_us / 1000:.1f} ms"


def _ceilings(ceilings: Sequence[ReachedCeiling], width: int) -> Iterator[Block]:
    measured = [(ceiling, ceiling.best) for ceiling in ceilings if ceiling.best is not None]
    missing = [(ceiling.what, f"unknown: {ceiling.reason}") for ceiling in ceilings if ceiling.best is None]
    if measured:
        rows = [("", known.what, figure(best), known.setting or "", known.run or "") for known, best in measured]
        columns = ("", "what", "best", "in", "run")
        yield Table(columns, rows, words=range(5), unbroken=(4,), has_heading=False)
    yield from map(indented, wide_interval_notes(best for _, best in measured))
    if missing:
        yield _named(missing, width)


def _compared(page: Page) -> Block:
    comparison = page.comparison
    if isinstance(comparison, Absent):
        is_same_reason = comparison == page.ceilings
        return indented("unknown, for the same reason" if is_same_reason else f"unknown: {comparison.reason}")
    started = datetime.fromtimestamp(comparison.started_ns / 1e9)
    run = f"{comparison.run} ({comparison.strategy}, {started:%Y-%m-%d %H:%M})"
    if not comparison.differences:
        return indented(f"nothing differs from {run}")
    rows = [(difference.field, difference.before, difference.now) for difference in comparison.differences]
    return Table(("what", f"in {run}", "now"), rows, words=range(3), folds="always", indent=2)


def _page_rows(page: Page) -> Iterator[dict[str, object]]:
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
        for changed in page.comparison.differences:
            row = {"section": "differences", "name": changed.field, "before": changed.before, "value": changed.now}
            yield {**row, "run": page.comparison.run}


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


# The check of several nodes.

FLEET_COLUMNS = ("node", "name", "what", "value", "unit", "low", "high", "fatal", "text")
RATES = "rates: median over trials of the node's slowest rank; brackets: lowest and highest trial"


def print_fleet(fleet: Fleet, format_name: str, console: Console | None = None) -> None:
    """Print what is known about the nodes; a table goes to the console, standard output unless another is given."""
    write(format_name, _fleet(fleet), lambda: fleet, _fleet_rows(fleet), FLEET_COLUMNS, console)


def _fleet(fleet: Fleet) -> Iterator[Block]:
    whats = list(dict.fromkeys(rate.what for rate in fleet.rates))
    rates = {(rate.node, rate.what): rate for rate in fleet.rates}
    rows = []
    for node in fleet.nodes:
        now, check = node.check.now, node.check
        cells = [node.name, node.machine.hostname, node.machine.hardware("cuda") if node.machine.gpus else "none"]
        cells += [f"{now.memory_bytes / 2**30:.1f}", "-" if now.disk_bytes is None else f"{now.disk_bytes / 2**30:.1f}"]
        cells.append(f"{1e3 * check.offset_s:+.1f} +- {1e3 * check.offset_error_s:.1f}")
        measured = (rates.get((node.number, what)) for what in whats)
        cells += ["-" if rate is None else _bracketed(rate.value, rate.trials, rate.unit) for rate in measured]
        rows.append(cells)
    columns = ["node", "host", "GPUs", "memory (GiB)", "disk (GiB)", "clock (ms)", *whats]
    yield Table(columns, rows, words=range(3), keys=1)
    if fleet.pairs:
        pairs = [(_names(fleet, pair.nodes), _bracketed(pair.value, pair.trials, "bytes/s")) for pair in fleet.pairs]
        yield Table(("between", "both ways at once, each"), pairs, keys=1)
    if fleet.rates or fleet.pairs:
        yield RATES
    yield from lines_of(fleet)


def _bracketed(value: float, trials: tuple[float, ...], unit: str) -> str:
    return f"{in_units(value, unit)} [{in_units(min(trials), '').strip()}, {in_units(max(trials), '').strip()}]"


def _names(fleet: Fleet, nodes: Sequence[int]) -> str:
    return " and ".join(map(fleet.name, nodes))


def _fleet_rows(fleet: Fleet) -> Iterator[dict[str, Any]]:
    for node in fleet.nodes:
        named = {"node": node.number, "name": node.name}
        now, check = node.check.now, node.check
        yield {**named, "what": "memory_available", "value": now.memory_bytes, "unit": "bytes"}
        reason = now.absent.get("disk_bytes")
        yield {**named, "what": "disk_free", "value": now.disk_bytes, "unit": "bytes", "text": reason}
        low, high = check.offset_s - check.offset_error_s, check.offset_s + check.offset_error_s
        yield {**named, "what": "clock_offset", "value": check.offset_s, "unit": "seconds", "low": low, "high": high}
        for changed in node.changed:
            text = f"{changed.field} was {changed.before}"
            yield {**named, "what": "changed", "value": changed.now, "text": text}
    for rate in fleet.rates:
        row = {"node": rate.node, "name": fleet.name(rate.node), "what": rate.what, "value": rate.value}
        yield {**row, "unit": rate.unit, "low": min(rate.trials), "high": max(rate.trials)}
    for pair in fleet.pairs:
        row = {"name": _names(fleet, pair.nodes), "what": "pair", "value": pair.value, "unit": "bytes/s"}
        yield {**row, "low": min(pair.trials), "high": max(pair.trials)}
    for finding in fleet.findings:
        name = None if finding.node is None else fleet.name(finding.node)
        yield {"node": finding.node, "name": name, "what": "finding", "fatal": finding.is_fatal, "text": finding.text}
    for text in fleet.absent:
        yield {"what": "absent", "text": text}


# Leftovers.

SWEPT_SCHEMA_VERSION = 1
SWEPT_COLUMNS = ("action", "folder", "content", "reason")


def print_swept(swept: Sequence[Swept], format_name: str, *, is_dry: bool) -> None:
    """Print the folders that a sweep removed, or would remove, and those that it left and why."""
    removed = "would be removed" if is_dry else "removed"
    rows = [
        {
            "action": removed if folder.left is None else "left",
            "folder": str(folder.path),
            "content": folder.content,
            "reason": folder.left or "its process has ended",
        }
        for folder in swept
    ]
    cells = [[str(row[name]) for name in SWEPT_COLUMNS] for row in rows]
    page: list[Block] = [Table(SWEPT_COLUMNS, cells, words=range(4), unbroken=(1,)), ""] if rows else []
    count = sum(folder.left is None for folder in swept)
    summary = f"{tempfile.gettempdir()}: {plural(count, 'folder')} {removed}, {len(swept) - count} left"
    document = {"schema_version": SWEPT_SCHEMA_VERSION, "is_dry_run": is_dry, "folders": rows}
    write(format_name, [*page, summary], lambda: document, rows, SWEPT_COLUMNS)
