"""Rows of the tables of runs: the list of the history, and the figures of runs, all or the fifteen wanted first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.analysis.estimate import Estimate
from bench.analysis.scaling import ScalingEfficiency
from bench.reports.format import figure, little, open_console, percent, print_figures, print_words
from bench.runs.summary import Summary
from collectors.metrics import probes as probes_metrics
from collectors.metrics import results
from collectors.metrics.metric import Metric
from collectors.metrics.results import RUN_MEMORY_ACCOUNT_BYTES, RUN_MEMORY_PREDICTED_RATIO

# The headline: the one figure that a list of runs shows of each.

_HEADLINES: tuple[tuple[Metric, str], ...] = (
    (results.RUN_TOKENS_PER_SECOND, "tokens/s"),
    (probes_metrics.RUN_MATMUL_FLOPS, "at best"),
    (probes_metrics.RUN_COPY_BANDWIDTH, "at best"),
    (probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH, "busbw at best"),
)
"""In order of preference: the headline is the highest estimate of the first metric that a run has."""


def best(summary: Summary, metric: Metric) -> Estimate | None:
    """Return the highest estimate of the metric over its labels, None where there is none."""
    found = [estimate for estimate in summary.estimates if estimate.metric == metric.name]
    return max(found, key=lambda estimate: estimate.median, default=None)


def headline(summary: Summary) -> str:
    """Return the run's headline, and what it is of; a dash where nothing was measured."""
    estimate = headline_estimate(summary)
    if estimate is None:
        return "-"
    words = next(words for metric, words in _HEADLINES if metric.name == estimate.metric)
    place = " ".join(estimate.labels.get(label, "") for label in ("collective", "kind")).strip()
    return " ".join(part for part in (figure(estimate), words, place) if part)


def headline_estimate(summary: Summary) -> Estimate | None:
    """Return the estimate behind the headline, None where nothing was measured.

    A probe's is the highest of many, which has no interval of its own: its interval is left out.
    """
    for metric, _ in _HEADLINES:
        estimate = best(summary, metric)
        if estimate is not None:
            return estimate if summary.case.model is not None else replace(estimate, low=None, high=None)
    return None


# A run's memory, one cell per part: what was measured, how far the cost model is off, and the paper's account.

MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "other", "unexplained", "total")
NOTHING = "-"
RARE_PARTS = ("other", "unexplained")
"""Parts left out where no run has any: tensors that outlive a step, and those of them that no cost model knows."""


def memory_cell(summary: Summary, part: str) -> str:
    """Return a cell such as `3.50 MiB, law +0.0 %, paper 1.75 MiB`; a dash where nothing is known."""
    accounts = {
        found.labels["account"]: figure(found)
        for found in summary.estimates
        if found.metric == RUN_MEMORY_ACCOUNT_BYTES.name and found.labels["part"] == part
    }
    ratios = [
        found.median
        for found in summary.estimates
        if found.metric == RUN_MEMORY_PREDICTED_RATIO.name and found.labels["part"] == part
    ]
    words = [accounts["measured"]] if "measured" in accounts else []
    if ratios:
        words.append(f"law {100 * (ratios[0] - 1):+z.1f} %")
    elif "implementation" in accounts:
        words.append(f"law {accounts['implementation']}")
    if "paper" in accounts:
        words.append(f"paper {accounts['paper']}")
    return ", ".join(words) or NOTHING


# The history as a list of runs: all columns where they fit, the most useful on a narrow terminal.

_BETWEEN = 2
"""Blanks between two columns."""
_LEFT_OUT_FIRST = ("started", "batch", "precision", "device", "ranks", "outcome")
"""Columns that a narrow terminal goes without, the least useful first: a run's name already says when it started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    name: str
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        return max(map(len, (self.name, *self.cells)))


def print_list(summaries: Sequence[Summary], console: Console | None = None) -> None:
    """Print runs, newest first, one line each; a narrow terminal shows fewer columns, and which are missing."""
    console = console or open_console()
    columns = _columns(summaries)
    left_out: list[str] = []
    if console.is_terminal:
        for name in _LEFT_OUT_FIRST:
            if _width(columns) <= console.width:
                break
            if name == "ranks":  # Drop the headlines' intervals before the last two columns.
                columns = [_shortened(column) if column.name == "result" else column for column in columns]
                left_out.append("intervals")
            if _width(columns) > console.width:
                columns = [column for column in columns if column.name != name]
                left_out.append(name)
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.name, no_wrap=True, min_width=column.width)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, cells))
    table.width = _width(columns)  # The terminal breaks lines that are still too long; rich would fold cells.
    print_figures(console, table)
    if left_out:
        print_words(console, f"not shown at this width: {', '.join(left_out)} (--format json has all)")
    if "intervals" not in left_out:
        for line in little(one for summary in summaries if (one := headline_estimate(summary)) is not None):
            print_words(console, line)


def _columns(summaries: Sequence[Summary]) -> list[_Column]:
    cells: dict[str, list[str]] = {
        "run": [summary.run for summary in summaries],
        "started": [f"{datetime.fromtimestamp(summary.started_ns / 1e9):%Y-%m-%d %H:%M}" for summary in summaries],
        "ranks": [str(summary.case.ranks) for summary in summaries],
        "device": [summary.case.device for summary in summaries],
        "precision": [summary.case.precision for summary in summaries],
        "batch": ["-" if summary.case.model is None else str(summary.case.model.batch) for summary in summaries],
        "result": [headline(summary) for summary in summaries],
        "outcome": [summary.outcome.replace("_", " ") for summary in summaries],
    }
    return [_Column(name=name, cells=tuple(of_runs)) for name, of_runs in cells.items()]


def _shortened(column: _Column) -> _Column:
    """Return the column without its intervals in brackets."""
    return _Column(name=column.name, cells=tuple(re.sub(r" \[[^]]*\]", "", cell) for cell in column.cells))


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + _BETWEEN * (len(columns) - 1)


# The table of training runs: a row for each figure, a cell for each run.

MOST_ROWS = 15
NOT_BESIDE = "baseline not beside it"

_RANKS, _BATCH, _SPREAD, _EFFICIENCY, _MEMORY_LAW = "ranks", "batch", "spread", "efficiency", "memory law"

_METRICS: tuple[tuple[str, Metric], ...] = (
    ("median step", results.RUN_STEP_SECONDS),
    ("mean step", results.RUN_MEAN_STEP_SECONDS),
    ("  of it", results.RUN_PHASE_SECONDS),
    ("host waits for data", results.RUN_DATA_WAIT_SECONDS),
    ("tokens/s", results.RUN_TOKENS_PER_SECOND),
    ("tokens/s/device", results.RUN_TOKENS_PER_SECOND_PER_DEVICE),
    ("model FLOP/s/device (PaLM)", results.RUN_FLOPS),
    ("MFU, data sheet", results.RUN_MFU),
    ("MFU, measured ceiling", results.RUN_MEASURED_MFU),
    ("peak memory", results.RUN_PEAK_MEMORY_BYTES),
    ("loss, last step", results.RUN_LOSS),
    ("observer's share", results.RUN_OBSERVER_RATIO),
    ("traced step", results.RUN_TRACED_STEP_SECONDS),
    ("traced", results.RUN_TRACED_RATIO),
    ("overlap / communication", results.RUN_OVERLAP_RATIO),
    ("overlap /", results.RUN_COLLECTIVE_OVERLAP_RATIO),
    ("attention pairs of a rank:", results.RUN_ATTENTION_PAIRS),
    ("payload", results.RUN_PAYLOAD_BYTES),
    ("communication", results.RUN_COMMUNICATION_SECONDS),
    ("waiting / time in collectives", results.RUN_WAITING_RATIO),
    ("  wait of one", results.RUN_COLLECTIVE_WAIT_SECONDS),
    ("  transfer of one", results.RUN_COLLECTIVE_TRANSFER_SECONDS),
    ("  busbw of", results.RUN_TRACED_BUS_BANDWIDTH),
    ("held up by rank", results.RUN_STRAGGLER_RATIO),
    ("clocks agree within", results.RUN_CLOCK_RESIDUAL_SECONDS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row. kind: the metric's name, or a word where there is none. labels: of the figure. cells: one per run."""

    title: str
    kind: str
    labels: tuple[str, ...] = ()
    cells: tuple[str, ...]


def all_rows(summaries: Sequence[Summary]) -> list[Row]:
    """Return every figure of these training runs."""
    rows = list(_settings(summaries))
    for title, metric in _METRICS:
        if metric is results.RUN_LOSS:
            rows += _memory(summaries)
        rows += _of_metric(summaries, title, metric)
        if metric is results.RUN_STEP_SECONDS:
            rows.append(
                Row(title="  spread of steps", kind=_SPREAD, cells=tuple(_spread(summary) for summary in summaries))
            )
    return rows


# In the order of the screen: throughput, the step, where its time went, memory, efficiency, what they rest on. Where
# there are more rows than fit, those with the lowest numbers stay.
_FIRST: tuple[tuple[str, str, Metric | None, tuple[str, ...] | None, int], ...] = (
    ("ranks", _RANKS, None, None, 0),
    ("effective batch", _BATCH, None, None, 8),
    ("tokens/s", "", results.RUN_TOKENS_PER_SECOND, None, 0),
    ("tokens/s/device", "", results.RUN_TOKENS_PER_SECOND_PER_DEVICE, None, 9),
    ("median step", "", results.RUN_STEP_SECONDS, None, 1),
    ("mean step", "", results.RUN_MEAN_STEP_SECONDS, None, 3),
    ("  of it", "", results.RUN_PHASE_SECONDS, None, 3),
    ("exposed communication", "", results.RUN_TRACED_RATIO, ("exposed_communication",), 4),
    ("waiting / time in collectives", "", results.RUN_WAITING_RATIO, None, 10),
    ("held up by rank", "", results.RUN_STRAGGLER_RATIO, None, 2),
    ("bubble", "", results.RUN_BUBBLE_RATIO, ("measured",), 2),
    ("peak memory", "", results.RUN_PEAK_MEMORY_BYTES, None, 5),
    ("scaling efficiency", _EFFICIENCY, None, None, 1),
    ("MFU, data sheet", "", results.RUN_MFU, None, 6),
    ("MFU, measured ceiling", "", results.RUN_MEASURED_MFU, None, 7),
    ("loss, last step", "", results.RUN_LOSS, None, 11),
)


def first_rows(summaries: Sequence[Summary]) -> list[Row]:
    """Return the rows of these training runs that a person wants first: at most `MOST_ROWS`."""
    found: list[tuple[int, Row]] = []
    for title, kind, metric, wanted, importance in _FIRST:
        if metric is not None:
            rows = _of_metric(summaries, title, metric)
            if wanted is not None:
                rows = [
                    Row(title=title, kind=row.kind, labels=row.labels, cells=row.cells)
                    for row in rows
                    if row.labels == wanted
                ]
        elif kind == _EFFICIENCY:
            rows = list(_efficiencies(summaries))
        else:
            rows = [row for row in _settings(summaries) if row.kind == kind]
        found += [(importance, row) for row in rows]
    kept = sorted(range(len(found)), key=lambda place: found[place][0])[
        :MOST_ROWS
    ]  # Stable: of equals the upper row stays.
    return [found[place][1] for place in sorted(kept)]


def efficiency_words(found: ScalingEfficiency) -> str:
    """Return the efficiency with its interval, and a label where its baseline was measured at another time."""
    words = percent(found.ratio)
    return words if found.is_beside else f"{words}, {NOT_BESIDE}"


def _settings(summaries: Sequence[Summary]) -> Iterator[Row]:
    yield Row(title="ranks", kind=_RANKS, cells=tuple(str(summary.case.ranks) for summary in summaries))
    yield Row(title="effective batch", kind=_BATCH, cells=tuple(_batch(summary) for summary in summaries))


def _efficiencies(summaries: Sequence[Summary]) -> Iterator[Row]:
    """Yield a row for each kind of scaling that some run has."""
    for scaling in dict.fromkeys(found.scaling for summary in summaries for found in summary.scaling):
        by_run = ([found for found in summary.scaling if found.scaling == scaling] for summary in summaries)
        cells = tuple(efficiency_words(found[0]) if found else "-" for found in by_run)
        yield Row(title=f"{scaling} scaling efficiency", kind=_EFFICIENCY, cells=cells)


def _memory(summaries: Sequence[Summary]) -> Iterator[Row]:
    """Yield a row for each part of the memory, beside its cost model."""
    for part in MEMORY_PARTS:
        cells = tuple(memory_cell(summary, part) for summary in summaries)
        if part not in RARE_PARTS or any(cell != NOTHING for cell in cells):
            yield Row(title=f"memory: {part}", kind=_MEMORY_LAW, cells=cells)


def _batch(summary: Summary) -> str:
    batch = summary.effective_batch
    parts = f"{batch['local']} local x {batch['data_ranks']} ranks"
    split = batch.get("parts", batch.get("accumulate", 1))  # Summaries from before pipelines have the latter.
    if split > 1:
        parts += f" x {split} parts"
    return f"{batch['total']} = {parts}"


def _spread(summary: Summary) -> str:
    return "-" if summary.step_spread_ratio is None else f"{100 * summary.step_spread_ratio:.1f} %"


def _of_metric(summaries: Sequence[Summary], title: str, metric: Metric) -> list[Row]:
    return [
        Row(
            title=" ".join([title, *labels]).replace("_", " "),
            kind=metric.name,
            labels=labels,
            cells=tuple(_cell(summary, metric, labels) for summary in summaries),
        )
        for labels in _labels(summaries, metric)
    ]


def _labels(summaries: Iterable[Summary], metric: Metric) -> list[tuple[str, ...]]:
    """Return the label values under which any of the runs has the metric, in order."""
    return list(dict.fromkeys(labels for summary in summaries for labels in _by_labels(summary, metric)))


def _cell(summary: Summary, metric: Metric, labels: tuple[str, ...]) -> str:
    found = _by_labels(summary, metric).get(labels)
    return "-" if found is None else figure(found)


def _by_labels(summary: Summary, metric: Metric) -> dict[tuple[str, ...], Estimate]:
    """Return the run's estimates of the metric by label values; a mesh axis is named where there are several."""
    found = [estimate for estimate in summary.estimates if estimate.metric == metric.name]
    is_axis_named = len({estimate.labels.get("axis") for estimate in found}) > 1
    return {
        tuple(
            f"over {value}" if name == "axis" else value
            for name, value in estimate.labels.items()
            if name != "axis" or is_axis_named
        ): estimate
        for estimate in found
    }
