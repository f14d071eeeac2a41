"""Rows of the tables of runs: the list of the history, and the figures of runs, all or the fifteen wanted first."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple, TypeAlias, TypeVar

from rich.console import Console

from bench.analysis.estimate import Estimate, of_metric
from bench.reports.format import (
    figure,
    open_console,
    percent,
    print_figures,
    print_words,
    table_of,
    wide_interval_notes,
)
from bench.runs.hardware_baselines import PredictedStep
from bench.runs.summary import Summary, settings_words
from collectors.metrics import probes as probes_metrics
from collectors.metrics import results
from collectors.metrics.metric import Metric
from workloads.cost_models.absent import Absent

T = TypeVar("T")

# The headline: the one figure that a list of runs shows of each.

_HEADLINES: tuple[tuple[Metric, str], ...] = (
    (results.RUN_TOKENS_PER_SECOND, "tokens/s"),
    (probes_metrics.RUN_MATMUL_FLOPS, "at best"),
    (probes_metrics.RUN_COPY_BANDWIDTH, "at best"),
    (probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH, "busbw at best"),
)
"""In order of preference: the headline is the highest estimate of the first metric that a run has."""


def headline(summary: Summary) -> str:
    """Return the run's headline, and what it is of; a dash where nothing was measured."""
    estimate = headline_estimate(summary)
    if estimate is None:
        return "-"
    words = next(words for metric, words in _HEADLINES if metric.name == estimate.metric)
    labels = [estimate.labels.get(label) for label in ("collective", "kind")]
    return " ".join(part for part in (figure(estimate), words, *labels) if part)


def headline_estimate(summary: Summary) -> Estimate | None:
    """Return the estimate behind the headline, None where nothing was measured.

    A probe's is the highest of many, which has no interval of its own: its interval is left out.
    """
    for metric, _ in _HEADLINES:
        if found := of_metric(summary.estimates, metric):
            best = max(found, key=lambda estimate: estimate.median)
            return best if summary.case.model is not None else replace(best, low=None, high=None)
    return None


# The history as a list of runs: all columns where they fit, the most useful on a narrow terminal.

_LEFT_OUT_FIRST = ("started", "batch", "precision", "device", "settings", "ranks", "outcome")
"""Columns that a narrow terminal goes without, the least useful first: a run's name already says when it started."""
_LEAST_SHOWN, _MOST_SHOWN = 12, 60
"""Letters of what a run has that is not the default; `observatory show RUN` has all."""


def print_list(summaries: Sequence[Summary], console: Console | None = None) -> None:
    """Print runs, newest first, one line each; a narrow terminal shows fewer columns, and which are missing."""
    console = console or open_console()
    most = _MOST_SHOWN if console.is_terminal else sys.maxsize
    columns: dict[str, list[str]] = {
        "run": [summary.run for summary in summaries],
        "started": [f"{datetime.fromtimestamp(summary.started_ns / 1e9):%Y-%m-%d %H:%M}" for summary in summaries],
        "ranks": [str(summary.case.ranks) for summary in summaries],
        "device": [str(summary.case.device) for summary in summaries],
        "precision": [str(summary.case.precision) for summary in summaries],
        "batch": ["-" if summary.case.model is None else str(summary.case.model.batch) for summary in summaries],
        "result": [headline(summary) for summary in summaries],
        "outcome": [summary.outcome.replace("_", " ") for summary in summaries],
        "settings": [_shortened(" ".join(settings_words(summary)), most) or "-" for summary in summaries],
    }
    left_out: list[str] = []
    for name in _LEFT_OUT_FIRST if console.is_terminal else ():
        if _width(columns) <= console.width:
            break
        if name == "settings":  # Drop the headlines' intervals before the last columns, and shorten this one first.
            if _room(columns, console.width) < _LEAST_SHOWN:
                columns["result"] = [re.sub(r" \[[^]]*\]", "", cell) for cell in columns["result"]]
                left_out.append("intervals")
            if (room := _room(columns, console.width)) >= _LEAST_SHOWN:
                columns[name] = [_shortened(cell, room) for cell in columns[name]]
        if _width(columns) > console.width:
            del columns[name]
            left_out.append(name)
    every = range(len(columns))
    table = table_of(list(columns), list(zip(*columns.values(), strict=True)), words=every, unbroken=every)
    for column, (name, cells) in zip(table.columns, columns.items(), strict=True):
        column.min_width = max(map(len, (name, *cells)))
    table.width = _width(columns)  # The terminal breaks lines that are still too long; rich would fold cells.
    print_figures(console, table)
    if left_out:
        print_words(console, f"not shown at this width: {', '.join(left_out)} (--format json has all)")
    if "intervals" not in left_out:
        shown = map(headline_estimate, summaries)
        print_words(console, *wide_interval_notes(estimate for estimate in shown if estimate is not None))


def _room(columns: Mapping[str, Sequence[str]], width: int) -> int:
    """Return the letters that the others leave to the column of settings."""
    return width - _width({name: cells for name, cells in columns.items() if name != "settings"}) - 2


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    """Return the letters that the columns take, with two blanks between each."""
    return sum(max(map(len, (name, *cells))) for name, cells in columns.items()) + 2 * (len(columns) - 1)


# Rows of the table of training runs. What makes rows takes the runs that stand side by side.


class Row(NamedTuple):
    """One row of the table, with a cell for each run."""

    title: str
    cells: tuple[str, ...]


_Rows: TypeAlias = Callable[[Sequence[Summary]], list[Row]]


def _figures(title: str, metric: Metric, only: tuple[str, ...] | None = None) -> _Rows:
    """Make a row for each value of the metric's labels that some run has; or for `only` these, without naming them."""

    def rows(summaries: Sequence[Summary]) -> list[Row]:
        by_run = [_by_shown_labels(summary, metric) for summary in summaries]
        return [
            Row(
                title if only else " ".join([title, *labels]).replace("_", " "),
                tuple(figure(found[labels]) if labels in found else "-" for found in by_run),
            )
            for labels in dict.fromkeys(labels for found in by_run for labels in found)
            if only in (None, labels)
        ]

    return rows


def _by_shown_labels(summary: Summary, metric: Metric) -> dict[tuple[str, ...], Estimate]:
    """Return the run's estimates of the metric by label values; a mesh axis is named where there are several."""
    found = of_metric(summary.estimates, metric)
    is_axis_named = len({estimate.labels.get("axis") for estimate in found}) > 1
    return {
        tuple(
            f"over {value}" if name == "axis" else value
            for name, value in estimate.labels.items()
            if name != "axis" or is_axis_named
        ): estimate
        for estimate in found
    }


def _ranks(summaries: Sequence[Summary]) -> list[Row]:
    rows = [Row("ranks", tuple(str(summary.case.ranks) for summary in summaries))]
    if any(summary.case.nodes > 1 for summary in summaries):
        rows.append(Row("nodes", tuple(str(summary.case.nodes) for summary in summaries)))
    return rows


def _batches(summaries: Sequence[Summary]) -> list[Row]:
    cells = []
    for batch in (summary.effective_batch for summary in summaries):
        microbatches = batch.get("parts", batch.get("accumulate", 1))  # Runs from before pipelines have the latter.
        split = f" x {microbatches} parts" if microbatches > 1 else ""
        cells.append(f"{batch['total']} = {batch['local']} local x {batch['data_ranks']} ranks{split}")
    return [Row("effective batch", tuple(cells))]


def _spreads(summaries: Sequence[Summary]) -> list[Row]:
    ratios = [summary.step_spread_ratio for summary in summaries]
    return [Row("  spread of steps", tuple("-" if ratio is None else f"{100 * ratio:.1f} %" for ratio in ratios))]


def _phases(summaries: Sequence[Summary]) -> list[Row]:
    """Make a row for each phase of a step, and what of the mean step is in none.

    Each phase is of the rank that spent most in it. Where these ranks differ, phases may add up to more than the step:
    then they are no parts of it, and the rows say so.
    """
    by_run = [_by_shown_labels(summary, results.RUN_PHASE_SECONDS) for summary in summaries]
    names = list(dict.fromkeys(labels for found in by_run for labels in found))
    rests: list[Estimate | None] = []
    for summary, found in zip(summaries, by_run, strict=True):
        mean = of_metric(summary.estimates, results.RUN_MEAN_STEP_SECONDS)
        left_s = mean[0].median - sum(one.median for one in found.values()) if mean and found else None
        rests.append(None if left_s is None else replace(mean[0], median=left_s, low=None, high=None))
    are_parts = all(rest is None or rest.median >= 0 for rest in rests)
    title = "  of it" if are_parts else "  worst rank's"
    rows = [
        Row(
            " ".join([title, *labels]).replace("_", " "),
            tuple(figure(found[labels]) if labels in found else "-" for found in by_run),
        )
        for labels in names
    ]
    if are_parts and names:
        rows.append(Row("  of it the rest", tuple("-" if rest is None else figure(rest) for rest in rests)))
    return rows


Predicted = Mapping[str, PredictedStep | Absent]
"""The predicted steps of runs by the run's id, or why one is absent."""
NOTHING_PREDICTED: Predicted = {}


def _predicted_steps(summaries: Sequence[Summary], predicted: Predicted) -> list[Row]:
    """Make the row of predicted steps, and how far the measured ones are off: `9.85 ms, measured +24.3 %`."""
    cells = []
    for summary in summaries:
        step, measured = predicted.get(summary.run), of_metric(summary.estimates, results.RUN_STEP_SECONDS)
        if isinstance(step, PredictedStep) and measured:
            off = 100 * (measured[0].median / step.step_s - 1)
            words = figure(replace(measured[0], median=step.step_s, low=None, high=None))
            cells.append(f"{words}, measured {off:+z.1f} %")
        else:
            cells.append("-")
    return [] if set(cells) == {"-"} else [Row("  predicted", tuple(cells))]


def _efficiencies(summaries: Sequence[Summary]) -> list[Row]:
    """Make a row for each kind of scaling that some run has."""
    rows = []
    for scaling in dict.fromkeys(found.scaling for summary in summaries for found in summary.scaling):
        by_run = ([found for found in summary.scaling if found.scaling == scaling] for summary in summaries)
        # A baseline that was measured at another time is labelled.
        cells = tuple(
            percent(found[0].ratio) + ("" if found[0].is_beside else ", baseline not beside it") if found else "-"
            for found in by_run
        )
        rows.append(Row(f"{scaling} scaling efficiency", cells))
        expected = [
            [
                one
                for one in of_metric(summary.estimates, results.RUN_EXPECTED_EFFICIENCY)
                if one.labels["scaling"] == scaling
            ]
            for summary in summaries
        ]
        if any(expected):
            rows.append(Row("  predicted", tuple(figure(found[0]) if found else "-" for found in expected)))
    return rows


_MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "other", "unexplained", "total")
_RARE_PARTS = ("other", "unexplained")
"""Left out where no run has any: tensors that outlive a step, and those of them that no cost model knows."""


def _memory(summaries: Sequence[Summary]) -> list[Row]:
    rows = [Row(f"memory: {part}", tuple(memory_cell(one, part) for one in summaries)) for part in _MEMORY_PARTS]
    rare = {f"memory: {part}" for part in _RARE_PARTS}
    return [row for row in rows if row.title not in rare or set(row.cells) != {"-"}]


def memory_cell(summary: Summary, part: str) -> str:
    """Return a cell such as `3.50 MiB, predicted +0.0 %, paper 1.75 MiB`; a dash where nothing is known."""
    accounts, ratios = (
        [found for found in of_metric(summary.estimates, metric) if found.labels["part"] == part]
        for metric in (results.RUN_MEMORY_ACCOUNT_BYTES, results.RUN_MEMORY_PREDICTED_RATIO)
    )
    sizes = {found.labels["account"]: figure(found) for found in accounts}
    words = [sizes["measured"]] if "measured" in sizes else []
    if ratios:
        words.append(f"predicted {100 * (ratios[0].median - 1):+z.1f} %")
    elif "implementation" in sizes:
        words.append(f"predicted {sizes['implementation']}")
    if "paper" in sizes:
        words.append(f"paper {sizes['paper']}")
    return ", ".join(words) or "-"


_STEP = _figures("median step", results.RUN_STEP_SECONDS)
"""The predicted step stands below it."""
_ALL: tuple[_Rows, ...] = (
    _ranks,
    _batches,
    _STEP,
    _spreads,
    _figures("mean step", results.RUN_MEAN_STEP_SECONDS),
    _phases,
    _figures("host waits for data", results.RUN_DATA_WAIT_SECONDS),
    _figures("tokens/s", results.RUN_TOKENS_PER_SECOND),
    _figures("tokens/s/device", results.RUN_TOKENS_PER_SECOND_PER_DEVICE),
    _figures("model FLOP/s/device (PaLM)", results.RUN_FLOPS),
    _figures("MFU, data sheet", results.RUN_MFU),
    _figures("MFU, measured ceiling", results.RUN_MEASURED_MFU),
    _figures("peak memory", results.RUN_PEAK_MEMORY_BYTES),
    _memory,
    _figures("power of a GPU", results.RUN_GPU_POWER_WATTS),
    _figures("energy of a token", results.RUN_TOKEN_ENERGY_JOULES),
    _figures("loss, last step", results.RUN_LOSS),
    _figures("observer's share", results.RUN_OBSERVER_RATIO),
    _figures("traced step", results.RUN_TRACED_STEP_SECONDS),
    _figures("traced", results.RUN_TRACED_RATIO),
    _figures("overlap / communication", results.RUN_OVERLAP_RATIO),
    _figures("overlap /", results.RUN_COLLECTIVE_OVERLAP_RATIO),
    _figures("attention pairs of a rank:", results.RUN_ATTENTION_PAIRS),
    _figures("payload", results.RUN_PAYLOAD_BYTES),
    _figures("communication", results.RUN_COMMUNICATION_SECONDS),
    _figures("waiting / time in collectives", results.RUN_WAITING_RATIO),
    _figures("  wait of one", results.RUN_COLLECTIVE_WAIT_SECONDS),
    _figures("  transfer of one", results.RUN_COLLECTIVE_TRANSFER_SECONDS),
    _figures("  busbw of", results.RUN_TRACED_BUS_BANDWIDTH),
    _figures("straggler rank", results.RUN_STRAGGLER_RATIO),
    _figures("clocks agree within", results.RUN_CLOCK_RESIDUAL_SECONDS),
)

_FIRST: tuple[tuple[int, _Rows], ...] = (
    (0, _ranks),
    (8, _batches),
    (0, _figures("tokens/s", results.RUN_TOKENS_PER_SECOND)),
    (9, _figures("tokens/s/device", results.RUN_TOKENS_PER_SECOND_PER_DEVICE)),
    (1, _STEP),
    (3, _figures("mean step", results.RUN_MEAN_STEP_SECONDS)),
    (3, _phases),
    (4, _figures("exposed communication", results.RUN_TRACED_RATIO, ("exposed_communication",))),
    (10, _figures("waiting / time in collectives", results.RUN_WAITING_RATIO)),
    (2, _figures("straggler rank", results.RUN_STRAGGLER_RATIO)),
    (2, _figures("bubble", results.RUN_BUBBLE_RATIO, ("measured",))),
    (5, _figures("peak memory", results.RUN_PEAK_MEMORY_BYTES)),
    (1, _efficiencies),
    (6, _figures("MFU, data sheet", results.RUN_MFU)),
    (7, _figures("MFU, measured ceiling", results.RUN_MEASURED_MFU)),
    (11, _figures("loss, last step", results.RUN_LOSS)),
)
"""In the order of the screen: throughput, the step, where its time went, memory, efficiency, what they rest on.

Where there are more rows than fit, those with the lowest numbers stay.
"""
MOST_ROWS = 15


def all_rows(summaries: Sequence[Summary], predicted: Predicted = NOTHING_PREDICTED) -> list[Row]:
    """Return every figure of these training runs. predicted: their steps by the cost model."""
    return [row for make in _ALL for row in _made(make, summaries, predicted)]


def first_rows(summaries: Sequence[Summary], predicted: Predicted = NOTHING_PREDICTED) -> list[Row]:
    """Return the rows of these training runs that a person wants first: at most `MOST_ROWS`.

    predicted: their steps by the cost model.
    """
    numbered = ((number, row) for number, make in _FIRST for row in _made(make, summaries, predicted))
    return most_important(numbered, MOST_ROWS)


def _made(make: _Rows, summaries: Sequence[Summary], predicted: Predicted) -> list[Row]:
    return make(summaries) + (_predicted_steps(summaries, predicted) if make is _STEP else [])


def most_important(numbered: Iterable[tuple[int, T]], count: int) -> list[T]:
    """Return `count` items with the lowest numbers, in the order given; of items with the same number the first."""
    found = list(numbered)
    kept = sorted(range(len(found)), key=lambda place: found[place][0])[:count]
    return [found[place][1] for place in sorted(kept)]
