"""Runs as tables on a terminal: figures down, runs across, and below them what the figures mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.judgement.estimate import Estimate, Ratio
from bench.purpose import why_ad_hoc
from bench.reports.console import open_console, print_words
from bench.reports.figures import figure, little, percent
from bench.reports.formats import print_csv, print_json
from bench.reports.memory import MEMORY_PARTS, memory_cell
from bench.reports.pipeline import print_pipeline
from bench.reports.probes import print_probe
from bench.reports.run_list import print_list
from bench.summary import Summary
from collectors.catalogue import joined_ranks, results
from collectors.metric import Metric
from workloads.parts.shape import Shape

RUNS_ABREAST = 3

_ROWS: tuple[tuple[str, Metric], ...] = (
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
    ("waiting / time in collectives", joined_ranks.RUN_WAITING_RATIO),
    ("  wait of one", joined_ranks.RUN_COLLECTIVE_WAIT_SECONDS),
    ("  transfer of one", joined_ranks.RUN_COLLECTIVE_TRANSFER_SECONDS),
    ("  busbw of", joined_ranks.RUN_TRACED_BUS_BANDWIDTH),
    ("held up by rank", joined_ranks.RUN_STRAGGLER_RATIO),
    ("clocks agree within", joined_ranks.RUN_CLOCK_RESIDUAL_SECONDS),
)


def print_summaries(summaries: Sequence[Summary], format_name: str, console: Console | None = None) -> None:
    """Print measured runs, side by side; a table goes to the console, standard output unless another is given."""
    if format_name == "json":
        print_json([msgspec.to_builtins(summary) for summary in summaries])
        return
    if format_name == "csv":
        print_csv([row for summary in summaries for row in _rows(summary)], COLUMNS)
        return
    console = console or open_console()
    trained = [summary for summary in summaries if summary.case.model is not None]
    for first in range(0, len(trained), RUNS_ABREAST):
        console.print(_table(trained[first : first + RUNS_ABREAST]))
    for summary in summaries:
        if summary.case.model is None:
            print_probe(summary, console)
    for summary in summaries:
        print_pipeline(summary, console)
    for summary in summaries:
        _print_below(console, summary)
    for line in little(one for summary in summaries for one in _intervals(summary)):
        print_words(console, line)
    console.print()
    for summary in summaries:
        console.print(f"run folder: {summary.folder}", soft_wrap=True)


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


def print_whole(summary: Summary, format_name: str) -> None:
    """Print one run with its settings."""
    if format_name == "table":
        case = summary.case
        settings = Table(box=None, pad_edge=False, show_header=False)
        fields = {
            "run": summary.run,
            "outcome": summary.outcome.replace("_", " "),
            "hardware": summary.hardware,
            **({} if case.model is None else {"shape": _shape(case.model)}),
            "setting": f"{case.device}, {case.backend}, {case.precision}, {case.threads} thread(s) a rank,"
            f" seed {case.seed}",
            "options": ", ".join(f"{name}={value}" for name, value in case.options.items()),
            "measured": f"{summary.trials_done} of {case.trials} trials, {case.steps}"
            f" {'steps' if case.model is not None else 'calls of each'} after {case.warm_up} of warm-up",
        }
        if summary.purpose.note is not None:
            fields["note"] = summary.purpose.note
        for name, value in fields.items():
            settings.add_row(name, Text(value))  # A note may look like markup.
        open_console().print(settings)
        open_console().print()
    print_summaries([summary], format_name)
    if format_name == "table":
        for line in cause_lines(summary):
            open_console().print(Text(line), soft_wrap=True)


def _shape(shape: Shape) -> str:
    return (
        f"{shape.layers} layers, width {shape.width}, heads {shape.heads} ({shape.kv_heads} for keys and values),"
        f" MLP {shape.mlp_width}, vocabulary {shape.vocabulary}, sequence {shape.sequence}:"
        f" {shape.parameters():,} parameters"
    )


def _table(summaries: Sequence[Summary]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for summary in summaries:
        table.add_column(summary.case.strategy, justify="right")
    table.add_row("ranks", *(str(summary.case.ranks) for summary in summaries))
    table.add_row("effective batch", *(_batch(summary) for summary in summaries))
    for title, metric in _ROWS:
        if metric is results.RUN_LOSS:
            for part in MEMORY_PARTS:
                table.add_row(f"memory: {part}", *(memory_cell(summary, part) for summary in summaries))
        for labels in _labels(summaries, metric):
            name = " ".join([title, *labels]).replace("_", " ")
            table.add_row(name, *(_cell(summary, metric, labels) for summary in summaries))
        if metric is results.RUN_STEP_SECONDS:
            table.add_row("  spread of steps", *(_spread(summary) for summary in summaries))
    return table


def _batch(summary: Summary) -> str:
    batch = summary.effective_batch
    parts = f"{batch['local']} local x {batch['data_ranks']} ranks"
    split = batch.get("parts", batch.get("accumulate", 1))  # Summaries of before pipelines have the latter.
    if split > 1:
        parts += f" x {split} parts"
    return f"{batch['total']} = {parts}"


def _spread(summary: Summary) -> str:
    return "-" if summary.step_spread_ratio is None else f"{100 * summary.step_spread_ratio:.1f} %"


def _find(summary: Summary, metric: Metric) -> list[Estimate]:
    return [estimate for estimate in summary.estimates if estimate.metric == metric.name]


def _labels(summaries: Iterable[Summary], metric: Metric) -> list[tuple[str, ...]]:
    """The label values under which any of the runs has the metric, in order."""
    return list(dict.fromkeys(labels for summary in summaries for labels in _by_labels(summary, metric)))


def _cell(summary: Summary, metric: Metric, labels: tuple[str, ...]) -> str:
    found = _by_labels(summary, metric).get(labels)
    return "-" if found is None else figure(found)


def _by_labels(summary: Summary, metric: Metric) -> dict[tuple[str, ...], Estimate]:
    """The run's estimates of the metric by their labels' values; a mesh axis is named where there are several."""
    found = _find(summary, metric)
    is_axis_named = len({estimate.labels.get("axis") for estimate in found}) > 1
    return {
        tuple(
            f"over {value}" if name == "axis" else value
            for name, value in estimate.labels.items()
            if name != "axis" or is_axis_named
        ): estimate
        for estimate in found
    }


def _print_below(console: Console, summary: Summary) -> None:
    """What the table does not say: efficiency, the peak behind MFU, what is absent."""
    name = f"{summary.case.strategy} on {summary.case.ranks}"
    lines = [
        f"{name}: {found.scaling} scaling efficiency {percent(found.ratio)}"
        f" against {found.baseline_run}{'' if found.is_beside else ', which was not measured beside it'}"
        + (f" ({found.ratio.why_no_interval})" if found.ratio.why_no_interval else "")
        for found in summary.scaling
    ]
    commit = summary.commit[:12] if summary.commit else "unknown"
    lines.append(
        f"{name}: on {summary.hardware}; torch {summary.torch_version}, commit {commit}, seed {summary.case.seed}"
    )
    if summary.peak is not None:
        peak = summary.peak
        lines.append(
            f"{name}: MFU by PaLM's formula, of {peak.flops_per_second / 1e12:g} TFLOP/s dense {peak.precision}"
            f" ({peak.source})"
        )
    lines += [f"{name}: {note}" for note in summary.notes]
    if summary.outcome == "done" and (reasons := why_ad_hoc(summary.case, summary.purpose)):
        hint = "" if summary.purpose.note else "; `run --nightly` makes such a run that all the same"
        lines.append(
            f"{name}: kept as ad hoc ({'; '.join(reasons)}), and never its series' newest result at /metrics{hint}"
        )
    if lines:
        console.print()
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _intervals(summary: Summary) -> Iterable[Estimate | Ratio]:
    return (*summary.estimates, *(found.ratio for found in summary.scaling))


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
