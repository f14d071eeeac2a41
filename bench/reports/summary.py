"""Prints runs as tables, JSON or CSV: figures down, runs across, and below them notes on what the figures rest on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.analysis.estimate import Estimate, Ratio
from bench.analysis.scaling import ScalingEfficiency
from bench.analysis.trials import by_labels, read_rank_logs
from bench.case import known_options, why_ad_hoc
from bench.reports.format import (
    digits,
    little,
    open_console,
    percent,
    print_csv,
    print_figures,
    print_json,
    print_words,
    widest,
)
from bench.reports.pipeline import print_pipeline
from bench.reports.probes import print_probe
from bench.reports.run_rows import MOST_ROWS, all_rows, first_rows, headline, print_list
from bench.runs.scaling_baseline import Point
from bench.runs.summary import Summary
from collectors.metrics import results
from collectors.metrics.rank import TIMELINE_PEAK_BYTES
from workloads.cost_models.shape import Shape

# The memory of one step by category, of the rank that held most at its peak.

MIB = 2.0**20
DRAWN_BY = {"memory.json.gz": "ui.perfetto.dev", "memory.pickle": "pytorch.org/memory_viz"}
"""Endings of a rank's files of its memory, and the site that draws each."""


def show_memory(summary: Summary, console: Console | None = None) -> None:
    """Print what filled the memory in the last completed trial; nothing where no rank recorded it."""
    peaks = peaks_of(Path(summary.folder), summary.case.ranks)
    if not peaks:
        return
    rank = max(peaks, key=lambda rank: peaks[rank]["total"])
    held = dict(peaks[rank])
    total = held.pop("total")
    parts = [f"{name} {digits(size / MIB)} MiB ({100 * size / total:.1f} %)" for name, size in _largest_first(held)]
    line = f"{summary.case.strategy} on {summary.case.ranks}: peak of rank {rank}: {digits(total / MIB)} MiB in a step:"
    console = console or open_console()
    console.print()
    console.print(Text(f"{line} {', '.join(parts)}"), soft_wrap=True)
    for ending, opens_in in DRAWN_BY.items():
        if (Path(summary.folder) / f"rank{rank}.{ending}").exists():
            console.print(Text(f"rank{rank}.{ending} in the run's folder opens in {opens_in}"), soft_wrap=True)


def peaks_of(folder: Path, ranks: int) -> dict[int, dict[str, float]]:
    """Return the bytes by category, and their total, of each rank that recorded them in the last completed trial.

    Raises:
        NewerSchema: a newer version wrote the logs.
    """
    trials = read_rank_logs(folder, ranks, mark="memory").trials
    if not trials:
        return {}
    told = {
        rank: by_labels([part], "memory", TIMELINE_PEAK_BYTES, max) for rank, part in enumerate(trials[max(trials)])
    }
    return {rank: {name: size for (name,), size in found.items()} for rank, found in told.items() if found}


def _largest_first(held: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(held.items(), key=lambda part: -part[1])


# The notes below the table of runs: all of them, or the five lines that a person wants first.

MOST_NOTES = 5

_ABSENT = re.compile(r"(?:the )?(.+?) (?:is|are) absent(?: from [^:,;]*)?[:,;] ")
_COMMAND = re.compile(r"`observatory run [^`]*`")
_INFORMATION = re.compile(
    r"(?:trial [^:]*: )?(?:ranks? \d.* on host |the measured ceiling is |waits and stragglers are of the last "
    r"|no straggler is named: )"
)
"""Notes on what a figure rests on, where nothing is wrong."""


def all_notes(summary: Summary) -> list[str]:
    """Return the run's notes: efficiency, the machine, the peak behind MFU, what is absent and why."""
    name = _name(summary)
    lines = [
        f"{name}: {found.scaling} scaling efficiency {percent(found.ratio)}"
        f" against {_baseline(found)}" + (f" ({found.ratio.why_no_interval})" if found.ratio.why_no_interval else "")
        for found in summary.scaling
    ]
    lines.append(f"{name}: {_machine(summary)}")
    if summary.peak is not None:
        lines.append(f"{name}: {_peak(summary)}")
    return [*lines, *(f"{name}: {note}" for note in summary.notes), *_ad_hoc([summary])]


def little_notes(summaries: Sequence[Summary]) -> list[str]:
    """Return, once, why figures of two trials have no interval; nothing where all intervals tell enough."""
    figures: list[Estimate | Ratio] = [one for summary in summaries for one in summary.estimates]
    return little([*figures, *(found.ratio for summary in summaries for found in summary.scaling)])


def first_notes(summaries: Sequence[Summary]) -> list[str]:
    """Return at most `MOST_NOTES` lines: what is wrong, where it was measured, what is absent, what would tell more.

    The line of what is absent also counts the notes that only `--details` shows, and names the command for it.
    """
    several = len(summaries) > 1
    wrong = [
        f"{_name(summary)}: {note}" if several else note
        for summary in summaries
        for note in summary.notes
        if not _ABSENT.match(note) and not _INFORMATION.match(note)
    ]
    rest_on = [line for summary in summaries for line in _baselines(summary, is_named=several)]
    machines = list(dict.fromkeys(_machine(summary) for summary in summaries))
    absent = _absent(summaries)
    would_tell = list(
        dict.fromkeys(
            command
            for summary in summaries
            for note in summary.notes
            if _ABSENT.match(note)
            for command in _COMMAND.findall(note)
        )
    )
    last = [f"these would tell more: {', '.join(would_tell)}"] if would_tell else []
    # In the order of the screen. Where there are more lines than fit, those with the lowest numbers stay.
    found = [
        *((5 if number else 0, line) for number, line in enumerate(wrong)),
        *((6, line) for line in rest_on),
        *((2, line) for line in little_notes(summaries)),
        *((3, line) for line in _ad_hoc(summaries)),
        *((1, line) for line in machines[:1]),
        *((4, line) for line in last),
    ]
    kept = sorted(range(len(found)), key=lambda place: found[place][0])[: MOST_NOTES - 1]
    shown = [found[place][1] for place in sorted(kept)]
    at_end = [line for line in shown if line in last]
    # Only in the details: notes that did not fit, further machines, information, and the peaks behind MFU.
    hidden = (
        len(found)
        - len(shown)
        - (len(last) - len(at_end))
        + len(machines[1:])
        + sum(bool(_INFORMATION.match(note)) for summary in summaries for note in summary.notes)
        + sum(summary.peak is not None for summary in summaries)
    )
    return [*(line for line in shown if line not in last), *_in_details(absent, hidden, summaries), *at_end]


def _ad_hoc(summaries: Sequence[Summary]) -> list[str]:
    """Return which of the runs are kept as ad hoc, and why; one line for all with the same reasons."""
    names: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for summary in summaries:
        if summary.outcome == "done" and (reasons := why_ad_hoc(summary.case, summary.purpose)):
            names.setdefault((reasons, summary.purpose.note is not None), []).append(_name(summary))
    return [
        f"{', '.join(dict.fromkeys(of_runs))}: kept as ad hoc ({'; '.join(reasons)}), and never its series' newest"
        f" result at /metrics{'' if has_note else '; `run --nightly` makes such a run that all the same'}"
        for (reasons, has_note), of_runs in names.items()
    ]


def _baselines(summary: Summary, *, is_named: bool) -> Iterator[str]:
    for found in summary.scaling:
        why = f" ({found.ratio.why_no_interval})" if found.ratio.why_no_interval else ""
        name = f"{_name(summary)}: " if is_named else ""
        yield f"{name}{found.scaling} scaling efficiency is against {_baseline(found)}{why}"


def _baseline(found: ScalingEfficiency) -> str:
    """Return the run that the efficiency is read against, with its ranks where they are several."""
    of_ranks = "" if found.baseline_ranks == 1 else f" on {found.baseline_ranks} ranks"
    return f"{found.baseline_run}{of_ranks}{'' if found.is_beside else ', which was not measured beside it'}"


def _absent(summaries: Sequence[Summary]) -> list[str]:
    """Return what is absent, each thing once, with the runs that lack it where not all do."""
    of_runs: dict[str, list[str]] = {}
    for summary in summaries:
        for note in summary.notes:
            if (found := _ABSENT.match(note)) is not None:
                of_runs.setdefault(found[1], []).append(_name(summary))
    return [
        what if len(set(names)) == len(summaries) else f"{what} ({', '.join(dict.fromkeys(names))})"
        for what, names in of_runs.items()
    ]


def _in_details(absent: Sequence[str], hidden: int, summaries: Sequence[Summary]) -> list[str]:
    run = summaries[0].run if len(summaries) == 1 else "RUN"
    words = [f"absent: {', '.join(absent)}"] if absent else []
    if hidden:
        words.append(f"{hidden} more note{'s' if hidden > 1 else ''}")
    return [f"{'; '.join(words)} (`observatory show {run} --details` tells)"] if words else []


def _name(summary: Summary) -> str:
    return f"{summary.case.strategy} on {summary.case.ranks}"


def _machine(summary: Summary) -> str:
    commit = summary.commit[:12] if summary.commit else "unknown"
    return f"on {summary.hardware}; torch {summary.torch_version}, commit {commit}, seed {summary.case.seed}"


def _peak(summary: Summary) -> str:
    assert summary.peak is not None
    peak = summary.peak
    return f"MFU by PaLM's formula, of {peak.flops_per_second / 1e12:g} TFLOP/s dense {peak.precision} ({peak.source})"


# A curve over numbers of ranks.


def print_curve(points: Sequence[Point], console: Console | None = None) -> None:
    """Print a row for each number of ranks: its throughput, and its efficiency against the first."""
    console = console or open_console()
    first = points[0].summary
    is_training = first.case.model is not None
    table = Table(box=None, pad_edge=False)
    for column in ("ranks", "throughput", *(("efficiency",) if is_training else ()), "outcome"):
        table.add_column(column, justify="left" if column == "outcome" else "right")
    for point in points:
        summary, found = point.summary, point.efficiency
        efficiency = "-" if found is None else percent(found)
        cells = [str(summary.case.ranks), headline(summary), *([efficiency] if is_training else [])]
        table.add_row(*cells, summary.outcome.replace("_", " "))
    console.print()
    print_figures(console, table, keys=1)
    if first.case.model is None:
        return
    print_words(
        console,
        f"efficiency: tokens/s and rank over those on {first.case.ranks}, all of batch {first.case.model.batch}"
        " (strong scaling), measured in turn",
    )
    for why in dict.fromkeys(_whys(points)):
        print_words(console, why)
    if not little_notes([point.summary for point in points]):  # Else the note stands above.
        for line in little(point.efficiency for point in points if point.efficiency is not None):
            print_words(console, line)


def print_curve_json(points: Sequence[Point]) -> None:
    """Print a list of all runs, each in full, with its place on the curve."""
    print_json(
        [
            {
                **msgspec.to_builtins(point.summary),
                "curve": {
                    "ranks": point.summary.case.ranks,
                    "against": points[0].summary.run,
                    "efficiency": None if point.efficiency is None else msgspec.to_builtins(point.efficiency),
                    "reason": point.reason,
                },
            }
            for point in points
        ]
    )


def _whys(points: Sequence[Point]) -> list[str]:
    """Return why a row has no efficiency, or none with an interval."""
    missing = [
        f"efficiency on {point.summary.case.ranks} is absent: {point.reason}" for point in points[1:] if point.reason
    ]
    return missing + [
        f"intervals of efficiency are absent: {point.efficiency.why_no_interval}"
        for point in points
        if point.efficiency is not None and point.efficiency.why_no_interval
    ]


# Runs side by side, the history as a list, and one run in full.

RUNS_ABREAST = 3


def print_summaries(
    summaries: Sequence[Summary],
    format_name: str,
    console: Console | None = None,
    *,
    has_details: bool = False,
    has_stages: bool = False,
) -> None:
    """Print measured runs side by side; a table goes to the console, standard output unless another is given.

    has_details: all rows and notes, in place of those that a person wants first.
    has_stages: also a pipeline's bubble and stages, which the details always show.
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
    """Print as many runs side by side as fit a terminal, at most RUNS_ABREAST."""
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
    """Return why the run did not end well, and the last lines of the blamed rank; nothing where it ended well."""
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
    """Print one run with its settings: those that say what it is, or with details all."""
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
