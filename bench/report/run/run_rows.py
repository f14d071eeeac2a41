"""Rows of the tables of runs: the list of the history, and the figures of runs, all or the fifteen most important."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple, TypeAlias, TypeVar

from rich.console import Console

from bench.errors import plural
from bench.report.format import figure, percent, wide_interval_notes
from bench.report.table import Table, open_console, print_page
from bench.results.estimate import Estimate, of_metric
from bench.store.hardware_baselines import PredictedStep
from bench.store.summary import Summary, settings_words
from collectors.metrics import probes as probes_metrics
from collectors.metrics import results
from collectors.metrics.metric import Metric
from workloads.cost_models.absent import Absent
from workloads.cost_models.shape import DIMENSIONS, FIELDS, Shape

T = TypeVar("T")

# The headline: the figure of each run in a list of runs

_HEADLINES: tuple[tuple[Metric, str], ...] = (
    (results.RUN_TOKENS_PER_SECOND, "tokens/s"),
    (probes_metrics.RUN_MATMUL_FLOPS, "at best"),
    (probes_metrics.RUN_COPY_BANDWIDTH, "at best"),
    (probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH, "busbw at best"),
    (results.RUN_STEP_SECONDS, "median step"),
)
"""In order of preference: the headline is the highest estimate of the first of these metrics that a run has."""


def headline(summary: Summary) -> str:
    """Return the run's headline and its meaning; a dash if nothing was measured."""
    estimate = headline_estimate(summary)
    if estimate is None:
        return "-"
    words = next(words for metric, words in _HEADLINES if metric.name == estimate.metric)
    labels = [estimate.labels.get(label) for label in ("collective", "kind")]
    return " ".join(part for part in (figure(estimate), words, *labels) if part)


def shape_words(shape: Shape) -> str:
    """Return everything that a run records of its model and sequence, for people; a `config.json` may set any of it."""
    others = ", ".join(f"{name} {shape.word(name)}" for name in FIELDS if name not in DIMENSIONS)
    return (
        f"{shape.layers} layers, width {shape.width}, heads {shape.heads} ({shape.kv_heads} for keys and values), MLP"
        f" {shape.mlp_width}, vocabulary {shape.vocabulary}, sequence {shape.sequence}: {shape.parameters():,}"
        f" parameters, {others}"
    )


def headline_estimate(summary: Summary) -> Estimate | None:
    """Return the estimate of the headline; None if nothing was measured.

    For a probe it is the highest of many estimates, which has no interval of its own, so the interval is left out.
    """
    for metric, _ in _HEADLINES:
        if estimates := of_metric(summary.estimates, metric):
            best = max(estimates, key=lambda estimate: estimate.median)
            is_probe = summary.case.model is None and summary.case.watched_name is None
            return replace(best, low=None, high=None) if is_probe else best
    return None


# The history as a list of runs: all columns if they fit, the most useful ones on a narrow terminal

_LEFT_OUT_FIRST = ("started", "batch", "precision", "device", "settings", "ranks", "outcome")
"""Columns to leave out on a narrow terminal, the least useful first: a run's name already contains its start."""
_LEAST_SHOWN, _MOST_SHOWN = 12, 60
"""Width of a run's settings that are not defaults; `observatory show RUN` has all."""


def print_list(summaries: Sequence[Summary], console: Console | None = None) -> None:
    """Print runs, newest first, on one line each; a narrow terminal shows fewer columns, and says which are missing."""
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
        if _table(columns).width() <= console.width:
            break
        if name == "settings":  # First drop the headlines' intervals, and shorten it.
            if _room(columns, console.width) < _LEAST_SHOWN:
                columns["result"] = [re.sub(r" \[[^]]*\]", "", cell) for cell in columns["result"]]
                left_out.append("intervals")
            if (room := _room(columns, console.width)) >= _LEAST_SHOWN:
                columns[name] = [_shortened(cell, room) for cell in columns[name]]
        if _table(columns).width() > console.width:
            del columns[name]
            left_out.append(name)
    lines = [f"not shown at this width: {', '.join(left_out)} (--format json has all)"] if left_out else []
    if "intervals" not in left_out:
        shown = map(headline_estimate, summaries)
        lines += wide_interval_notes(estimate for estimate in shown if estimate is not None)
    print_page([_table(columns), *lines], console)


def _table(columns: Mapping[str, Sequence[str]]) -> Table:
    # The terminal breaks lines that are still too long, which is easier to read than folded cells.
    every = range(len(columns))
    return Table(list(columns), list(zip(*columns.values(), strict=True)), words=every, unbroken=every, folds="never")


def _room(columns: Mapping[str, Sequence[str]], width: int) -> int:
    """Return the width that the other columns leave for the settings."""
    return width - _table({name: cells for name, cells in columns.items() if name != "settings"}).width() - 2


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


# Rows of the table of training runs: each maker of rows takes the runs that are side by side


class Row(NamedTuple):
    """One row of the table, with a cell for each run."""

    title: str
    cells: tuple[str, ...]


_Rows: TypeAlias = Callable[[Sequence[Summary]], list[Row]]


def _row(title: str, summaries: Iterable[Summary], cell: Callable[[Summary], str | None]) -> Row:
    return Row(title, tuple(cell(summary) or "-" for summary in summaries))


def _figures(title: str, metric: Metric, only: tuple[str, ...] | None = None) -> _Rows:
    """Make a row for each combination of label values in some run; or for `only` one, without its name."""

    def rows(summaries: Sequence[Summary]) -> list[Row]:
        by_run = [_by_shown_labels(summary, metric) for summary in summaries]
        if only is None:
            return _by_labels(title, by_run)
        cells = tuple(figure(estimates.get(only)) for estimates in by_run)
        return [] if set(cells) == {"-"} else [Row(title, cells)]

    return rows


def _by_labels(title: str, by_run: Sequence[Mapping[tuple[str, ...], Estimate]]) -> list[Row]:
    shown = dict.fromkeys(labels for estimates in by_run for labels in estimates)
    names = {labels: " ".join([title, *labels]).replace("_", " ") for labels in shown}
    return [Row(name, tuple(figure(each.get(labels)) for each in by_run)) for labels, name in names.items()]


def _by_shown_labels(summary: Summary, metric: Metric) -> dict[tuple[str, ...], Estimate]:
    """Return the run's estimates of the metric by label values; a mesh axis is named only if there are several."""
    estimates = of_metric(summary.estimates, metric)
    is_axis_named = len({estimate.labels.get("axis") for estimate in estimates}) > 1
    return {
        tuple(
            f"over {value}" if name == "axis" else value
            for name, value in estimate.labels.items()
            if name != "axis" or is_axis_named
        ): estimate
        for estimate in estimates
    }


def _ranks(summaries: Sequence[Summary]) -> list[Row]:
    rows = [_row("ranks", summaries, lambda summary: str(summary.case.ranks))]
    if any(summary.case.nodes > 1 for summary in summaries):
        rows.append(_row("nodes", summaries, lambda summary: str(summary.case.nodes)))
    return rows


def _batches(summaries: Sequence[Summary]) -> list[Row]:
    def cell(summary: Summary) -> str:
        batch = summary.effective_batch
        microbatches = batch.get("parts", batch.get("accumulate", 1))  # Runs from before pipelines have `accumulate`.
        split = f" x {microbatches} parts" if microbatches > 1 else ""
        return f"{batch['total']} = {batch['local']} local x {plural(batch['data_ranks'], 'rank')}{split}"

    return [_row("effective batch", summaries, cell)]


def _spreads(summaries: Sequence[Summary]) -> list[Row]:
    ratios = [summary.step_spread_ratio for summary in summaries]
    return [Row("  spread of steps", tuple("-" if ratio is None else f"{100 * ratio:.1f} %" for ratio in ratios))]


def _phases(summaries: Sequence[Summary]) -> list[Row]:
    """Make a row for each phase of a step, and for the rest of the mean step.

    Each phase shows the rank that spent most in it. If these ranks differ, phases may add up to more than the step; the
    rows are then called "worst rank's", and there is no rest.
    """
    by_run = [_by_shown_labels(summary, results.RUN_PHASE_SECONDS) for summary in summaries]
    rests: list[Estimate | None] = []
    for summary, phases in zip(summaries, by_run, strict=True):
        mean = of_metric(summary.estimates, results.RUN_MEAN_STEP_SECONDS)
        left_s = mean[0].median - sum(phase.median for phase in phases.values()) if mean and phases else None
        rests.append(None if left_s is None else replace(mean[0], median=left_s, low=None, high=None))
    if any(rest is not None and rest.median < 0 for rest in rests):
        return _by_labels("  worst rank's", by_run)
    rows = _by_labels("  of it", by_run)
    return [*rows, Row("  of it the rest", tuple(map(figure, rests)))] if rows else []


Predicted = Mapping[str, PredictedStep | Absent]
"""The predicted step, or why it is absent, by the run's id."""
NOTHING_PREDICTED: Predicted = {}


def _predicted_steps(summaries: Sequence[Summary], predicted: Predicted) -> list[Row]:
    """Make the row of predicted steps, with the measured ones relative to them: `9.85 ms, measured +24.3 %`."""

    def cell(summary: Summary) -> str | None:
        step, measured = predicted.get(summary.run), of_metric(summary.estimates, results.RUN_STEP_SECONDS)
        if not isinstance(step, PredictedStep) or not measured:
            return None
        off = 100 * (measured[0].median / step.step_s - 1)
        words = figure(replace(measured[0], median=step.step_s, low=None, high=None))
        return f"{words}, measured {off:+z.1f} %"

    row = _row("  predicted", summaries, cell)
    return [] if set(row.cells) == {"-"} else [row]


def _efficiencies(summaries: Sequence[Summary]) -> list[Row]:
    """Make a row for each kind of scaling in some run, and one for the cost model's prediction."""
    rows = []
    for scaling in dict.fromkeys(each.scaling for summary in summaries for each in summary.scaling):
        cells, expected = [], []
        for summary in summaries:
            measured = next((each for each in summary.scaling if each.scaling == scaling), None)
            # A baseline that was measured at another time is labelled.
            apart = "" if measured is None or measured.is_beside else ", baseline measured at another time"
            cells.append("-" if measured is None else f"{percent(measured.ratio)}{apart}")
            predictions = of_metric(summary.estimates, results.RUN_EXPECTED_EFFICIENCY)
            expected.append(figure(next((each for each in predictions if each.labels["scaling"] == scaling), None)))
        rows.append(Row(f"{scaling} scaling efficiency", tuple(cells)))
        if set(expected) != {"-"}:
            rows.append(Row("  predicted", tuple(expected)))
    return rows


_MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "other", "unexplained", "total")
_RARE_PARTS = ("other", "unexplained")
"""Left out if no run has any: tensors that outlive a step, and tensors that no cost model explains."""


def _memory(summaries: Sequence[Summary]) -> list[Row]:
    rows = [
        Row(f"memory: {part}", tuple(memory_cell(summary, part) for summary in summaries)) for part in _MEMORY_PARTS
    ]
    rare = {f"memory: {part}" for part in _RARE_PARTS}
    return [row for row in rows if row.title not in rare or set(row.cells) != {"-"}]


def memory_cell(summary: Summary, part: str) -> str:
    """Return a cell, for example `3.50 MiB, predicted +0.0 %, paper 1.75 MiB`; a dash if nothing is known."""
    accounts, ratios = (
        [estimate for estimate in of_metric(summary.estimates, metric) if estimate.labels["part"] == part]
        for metric in (results.RUN_MEMORY_ACCOUNT_BYTES, results.RUN_MEMORY_PREDICTED_RATIO)
    )
    sizes = {estimate.labels["account"]: figure(estimate) for estimate in accounts}
    words = [sizes["measured"]] if "measured" in sizes else []
    if ratios:
        words.append(f"predicted {100 * (ratios[0].median - 1):+z.1f} %")
    elif "implementation" in sizes:
        words.append(f"predicted {sizes['implementation']}")
    if "paper" in sizes:
        words.append(f"paper {sizes['paper']}")
    return ", ".join(words) or "-"


_STEP = _figures("median step", results.RUN_STEP_SECONDS)
"""`_rows_of` adds the row of predicted steps below it."""
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
    _figures("checkpoint: training paused", results.RUN_CHECKPOINT_STALL_SECONDS),
    _figures("checkpoint: on disk after", results.RUN_CHECKPOINT_WRITE_SECONDS),
    _figures("checkpoint: a rank wrote", results.RUN_CHECKPOINT_RANK_BYTES),
    _figures("checkpoint: all ranks", results.RUN_CHECKPOINT_BYTES_PER_SECOND),
    _figures("step while saving", results.RUN_SAVING_STEP_SECONDS),
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
    (3, _figures("checkpoint: training paused", results.RUN_CHECKPOINT_STALL_SECONDS)),
    (11, _figures("loss, last step", results.RUN_LOSS)),
)
"""In the order of the screen, each with its priority.

If there are too many rows, those with the lowest numbers stay.
"""
MOST_ROWS = 15


def all_rows(summaries: Sequence[Summary], predicted: Predicted = NOTHING_PREDICTED) -> list[Row]:
    """Return all rows of these training runs. predicted: their steps by the cost model."""
    return [row for make in _ALL for row in _rows_of(make, summaries, predicted)]


def first_rows(summaries: Sequence[Summary], predicted: Predicted = NOTHING_PREDICTED) -> list[Row]:
    """Return the most important rows of these training runs, at most `MOST_ROWS`.

    predicted: their steps by the cost model.
    """
    numbered = ((number, row) for number, make in _FIRST for row in _rows_of(make, summaries, predicted))
    return most_important(numbered, MOST_ROWS)


def _rows_of(make: _Rows, summaries: Sequence[Summary], predicted: Predicted) -> list[Row]:
    return make(summaries) + (_predicted_steps(summaries, predicted) if make is _STEP else [])


def most_important(numbered: Iterable[tuple[int, T]], count: int) -> list[T]:
    """Return the `count` items with the lowest numbers, in their order; ties go to the earlier item."""
    items = list(numbered)
    places = sorted(range(len(items)), key=lambda place: items[place][0])[:count]
    return [items[place][1] for place in sorted(places)]
