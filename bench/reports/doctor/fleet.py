"""Prints the check of several nodes as tables, JSON or CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Console

from bench.doctor.fleet import Fleet, in_units, lines_of
from bench.reports.format import open_console, print_csv, print_figures, print_json, print_words, table_of

COLUMNS = ("node", "name", "what", "value", "unit", "low", "high", "fatal", "text")
RATES = "rates are of a node's slowest rank, the median of the trials; the lowest and the highest trial are in brackets"


def print_fleet(fleet: Fleet, format_name: str, console: Console | None = None) -> None:
    """Print what is known of the nodes; a table goes to the console, standard output unless another is given."""
    if format_name == "json":
        print_json(msgspec.to_builtins(fleet))
    elif format_name == "csv":
        print_csv(list(_rows(fleet)), COLUMNS)
    else:
        _print_tables(fleet, console or open_console())


def _print_tables(fleet: Fleet, console: Console) -> None:
    whats = list(dict.fromkeys(rate.what for rate in fleet.rates))
    rates = {(rate.node, rate.what): rate for rate in fleet.rates}
    rows = []
    for node in fleet.nodes:
        now, check = node.check.now, node.check
        cells = [node.name, node.machine.hostname, node.machine.hardware("cuda") if node.machine.gpus else "none"]
        cells += [f"{now.memory_bytes / 2**30:.1f}", "-" if now.disk_bytes is None else f"{now.disk_bytes / 2**30:.1f}"]
        cells.append(f"{1e3 * check.offset_s:+.1f} +- {1e3 * check.offset_error_s:.1f}")
        cells += [
            _bracketed(one.value, one.trials, one.unit) if (one := rates.get((node.number, what))) else "-"
            for what in whats
        ]
        rows.append(cells)
    columns = ["node", "host", "GPUs", "memory (GiB)", "disk (GiB)", "clock (ms)", *whats]
    print_figures(console, table_of(columns, rows, words=range(3)), keys=1)
    if fleet.pairs:
        pairs = [
            (" and ".join(fleet.name(number) for number in pair.nodes), _bracketed(pair.value, pair.trials, "bytes/s"))
            for pair in fleet.pairs
        ]
        print_figures(console, table_of(("between", "both ways at once, each"), pairs), keys=1)
    if fleet.rates or fleet.pairs:
        print_words(console, RATES)
    print_words(console, *lines_of(fleet))


def _bracketed(value: float, trials: tuple[float, ...], unit: str) -> str:
    return f"{in_units(value, unit)} [{in_units(min(trials), '').strip()}, {in_units(max(trials), '').strip()}]"


def _rows(fleet: Fleet) -> Iterator[dict[str, Any]]:
    for node in fleet.nodes:
        one = {"node": node.number, "name": node.name}
        now, check = node.check.now, node.check
        yield {**one, "what": "memory_available", "value": now.memory_bytes, "unit": "bytes"}
        yield {
            **one,
            "what": "disk_free",
            "value": now.disk_bytes,
            "unit": "bytes",
            "text": now.absent.get("disk_bytes"),
        }
        low, high = check.offset_s - check.offset_error_s, check.offset_s + check.offset_error_s
        yield {**one, "what": "clock_offset", "value": check.offset_s, "unit": "seconds", "low": low, "high": high}
        for difference in node.changed:
            yield {
                **one,
                "what": "changed",
                "value": difference.now,
                "text": f"{difference.field} was {difference.before}",
            }
    for rate in fleet.rates:
        one = {"node": rate.node, "name": fleet.name(rate.node), "what": rate.what, "value": rate.value}
        yield {**one, "unit": rate.unit, "low": min(rate.trials), "high": max(rate.trials)}
    for pair in fleet.pairs:
        names = " and ".join(fleet.name(number) for number in pair.nodes)
        one = {"name": names, "what": "pair", "value": pair.value, "unit": "bytes/s"}
        yield {**one, "low": min(pair.trials), "high": max(pair.trials)}
    for found in fleet.findings:
        name = None if found.node is None else fleet.name(found.node)
        yield {"node": found.node, "name": name, "what": "finding", "fatal": found.is_fatal, "text": found.text}
    for text in fleet.absent:
        yield {"what": "absent", "text": text}
