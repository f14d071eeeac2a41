"""Runs as tables on a terminal: figures down, runs across, and below them what the figures rest on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.case import known_options
from bench.reports.console import open_console, print_figures, print_words, widest
from bench.reports.formats import print_csv, print_json
from bench.reports.pipeline import print_pipeline
from bench.reports.probes import print_probe
from bench.reports.run_list import print_list
from bench.reports.run_notes import all_notes, first_notes, little_notes
from bench.reports.run_rows import MOST_ROWS, all_rows, first_rows
from bench.summary import Summary
from collectors.catalogue import results
from workloads.parts.shape import Shape

RUNS_ABREAST = 3


def print_summaries(
    summaries: Sequence[Summary],
    format_name: str,
    console: Console | None = None,
    *,
    has_details: bool = False,
    has_stages: bool = False,
) -> None:
    """Print measured runs, side by side; a table goes to the console, standard output unless another is given.

    has_details: all rows and notes of the table, in place of those that a person wants first.
    has_stages: what is known of a pipeline's bubble and stages, where the details are left out.
    """
    if format_name == "json":
        print_json([msgspec.to_builtins(summary) for summary in summaries])
        return
    if format_name == "csv":
        print_csv([row for summary in summaries for row in _rows(summary)], COLUMNS)
        return
    console = console or open_console()
    trained = [summary for summary in summaries if summary.case.model is not None]
    _print_abreast(trained, console, has_details)
    for summary in summaries:
        if summary.case.model is None:
            print_probe(summary, console, most_rows=None if has_details else MOST_ROWS)
    if has_details or has_stages:
        for summary in summaries:
            print_pipeline(summary, console)
    if has_details:
        for summary in summaries:
            console.print()
            for line in all_notes(summary):
                print_words(console, line)
        for line in little_notes(summaries):
            print_words(console, line)
    elif summaries:
        console.print()
        for line in first_notes(summaries):
            print_words(console, line)
    console.print()
    for summary in summaries:
        console.print(f"run folder: {summary.folder}", soft_wrap=True)


def _print_abreast(summaries: Sequence[Summary], console: Console, has_details: bool) -> None:
    """As many runs beside each other as a terminal is wide for."""
    abreast = RUNS_ABREAST
    while abreast > 1 and console.is_terminal:
        tables = [
            _table(summaries[first : first + abreast], has_details) for first in range(0, len(summaries), abreast)
        ]
        if all(widest(console, table) <= console.width for table in tables):
            break
        abreast -= 1
    for first in range(0, len(summaries), abreast):
        print_figures(console, _table(summaries[first : first + abreast], has_details))


def cause_lines(summary: Summary) -> list[str]:
    """Why the run did not end well, and the last lines of the rank that is blamed; nothing where it did."""
    if summary.cause is None:
        return []
    outcome = summary.outcome.replace("_", " ")
    first = f"{summary.case.strategy} on {summary.case.ranks}: {outcome}: {summary.cause.text}"
    return [first, *(f"    {line}" for line in summary.cause.last_lines)]


def print_history(summaries: Sequence[Summary], format_name: str) -> None:
    """Print runs as a list, newest first."""
    if format_name != "table":
        print_summaries(summaries, format_name)
        return
    print_list(summaries)


def print_whole(summary: Summary, format_name: str, *, has_details: bool = False) -> None:
    """Print one run with its settings; those that say what it is, and with details all."""
    if format_name == "table":
        console = open_console()
        settings = Table(box=None, pad_edge=False, show_header=False)
        for name, value in _settings(summary, has_details).items():
            settings.add_row(name, Text(value))  # A note may look like markup.
        console.print(settings)
        console.print()
    print_summaries([summary], format_name, has_details=has_details)
    if format_name == "table":
        for line in cause_lines(summary):
            open_console().print(Text(line), soft_wrap=True)


def _settings(summary: Summary, has_details: bool) -> dict[str, str]:
    case = summary.case
    defaults = {option.name: option.default for option in known_options(case.strategy)}
    options = {name: value for name, value in case.options.items() if has_details or defaults.get(name) != value}
    told = ", ".join(f"{name}={value}" for name, value in options.items())
    measured = (
        f"{summary.trials_done} of {case.trials} trials, {case.steps}"
        f" {'steps' if case.model is not None else 'calls of each'} after {case.warm_up} of warm-up"
    )
    note = {} if summary.purpose.note is None else {"note": summary.purpose.note}
    run, outcome = summary.run, summary.outcome.replace("_", " ")
    if not has_details:
        return {"run": f"{run}: {outcome}, {measured}", **({"options": told} if told else {}), **note}
    return {
        "run": run,
        "outcome": outcome,
        "hardware": summary.hardware,
        **({} if case.model is None else {"shape": _shape(case.model)}),
        "setting": f"{case.device}, {case.backend}, {case.precision}, {case.threads} thread(s) a rank,"
        f" seed {case.seed}",
        "options": told,
        "measured": measured,
        **note,
    }


def _shape(shape: Shape) -> str:
    return (
        f"{shape.layers} layers, width {shape.width}, heads {shape.heads} ({shape.kv_heads} for keys and values),"
        f" MLP {shape.mlp_width}, vocabulary {shape.vocabulary}, sequence {shape.sequence}:"
        f" {shape.parameters():,} parameters"
    )


def _table(summaries: Sequence[Summary], has_details: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for summary in summaries:
        table.add_column(summary.case.strategy, justify="right")
    for row in all_rows(summaries) if has_details else first_rows(summaries):
        table.add_row(row.title, *row.cells)
    return table


COLUMNS = ("run", "strategy", "ranks", "outcome", "metric", "labels", "median", "low", "high", "trials")


def _rows(summary: Summary) -> list[dict[str, object]]:
    run = {
        "run": summary.run,
        "strategy": summary.case.strategy,
        "ranks": summary.case.ranks,
        "outcome": summary.outcome,
    }
    figures = [
        {
            "metric": estimate.metric,
            "labels": " ".join(f"{name}={value}" for name, value in estimate.labels.items()),
            "median": estimate.median,
            "low": estimate.low,
            "high": estimate.high,
            "trials": len(estimate.trials),
        }
        for estimate in summary.estimates
    ]
    efficiencies = [
        {
            "metric": results.RUN_SCALING_EFFICIENCY.name,
            "labels": f"scaling={found.scaling}",
            "median": found.ratio.value,
            "low": found.ratio.low,
            "high": found.ratio.high,
            "trials": found.ratio.numerator_trials,
        }
        for found in summary.scaling
    ]
    return [{**run, **row} for row in (*figures, *efficiencies)] or [run]
