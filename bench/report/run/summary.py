"""Prints runs as tables, JSON or CSV: figures down, runs across, and below them notes on the figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bench.case import options_of, options_shown, why_ad_hoc
from bench.errors import Misuse, plural
from bench.rank.fault_injection import Fault, FaultKind
from bench.report.format import digits, grouped, percent, wide_interval_notes
from bench.report.run.pipeline import pipeline_blocks
from bench.report.run.prediction import prediction_blocks
from bench.report.run.probes import probe_blocks
from bench.report.run.run_rows import (
    MOST_ROWS,
    NOTHING_PREDICTED,
    Predicted,
    all_rows,
    first_rows,
    headline,
    most_important,
    print_list,
    shape_words,
)
from bench.report.run.watched import watched_blocks, watched_settings
from bench.report.table import Block, Table, open_console, print_json, print_page, whole, write
from bench.results.efficiency import ScalingEfficiency
from bench.results.estimate import Estimate, EstimatedRatio
from bench.results.trials import join_by_labels, read_rank_logs
from bench.store.hardware_baselines import PredictedStep
from bench.store.run_dir import case_file, is_gone
from bench.store.scaling_baseline import Point
from bench.store.summary import Summary, outcome_of
from collectors.metrics import results
from collectors.metrics.rank import TIMELINE_PEAK_BYTES

# The memory of a step by category, on the rank with the highest peak

MIB = 2.0**20
DRAWN_BY = {"memory.json.gz": "ui.perfetto.dev", "memory.pickle": "pytorch.org/memory_viz"}
"""Endings of a rank's memory files, and the site that draws each."""


def show_memory(summary: Summary, console: Console | None = None) -> None:
    """Print what filled the memory in the last completed trial; nothing if no rank recorded it."""
    peaks = peaks_of(Path(summary.folder), summary.case.ranks)
    if not peaks:
        return
    rank = max(peaks, key=lambda rank: peaks[rank]["total"])
    total = peaks[rank]["total"]
    sizes = sorted(peaks[rank].items(), key=lambda part: -part[1])
    parts = [f"{name} {digits(size / MIB)} MiB ({100 * size / total:.1f} %)" for name, size in sizes if name != "total"]
    lines = [f"{_name(summary)}: peak of rank {rank}: {digits(total / MIB)} MiB in a step: {', '.join(parts)}"]
    lines += [
        f"rank{rank}.{ending} in the run's folder opens in {site}"
        for ending, site in DRAWN_BY.items()
        if (Path(summary.folder) / f"rank{rank}.{ending}").exists()
    ]
    print_page(["", *map(whole, lines)], console)


def peaks_of(folder: Path, ranks: int) -> dict[int, dict[str, float]]:
    """Return the bytes by category, and their total, of each rank that recorded them in the last completed trial.

    Raises:
        NewerSchema: a newer version wrote the logs.
    """
    trials = read_rank_logs(folder, ranks, mark="memory").trials
    last = trials[max(trials)] if trials else ()
    peaks = {rank: join_by_labels([part], "memory", TIMELINE_PEAK_BYTES, max) for rank, part in enumerate(last)}
    return {rank: {name: size for (name,), size in parts.items()} for rank, parts in peaks.items() if parts}


# The notes below the table of runs: all of them, or the five most important lines

MOST_NOTES = 5

_ABSENT = re.compile(r"(?:the )?(.+?) (?:is|are) absent(?: from [^:,;]*)?[:,;] ")
_COMMAND = re.compile(r"`observatory run [^`]*`")
_INFORMATION = re.compile(
    r"(?:trial [^:]*: )?(?:ranks? \d.* on host |the measured ceiling is |waits and stragglers are of the last "
    r"|no straggler(?: is named)?: )"
)
"""Notes that only inform; older runs say that no straggler "is named"."""


def all_notes(summary: Summary) -> list[str]:
    """Return the run's notes: efficiency, the machine, the peak for MFU, and what is absent and why."""
    lines = [
        f"{each.scaling} scaling efficiency {percent(each.ratio)} against {_baseline(each)}" for each in summary.scaling
    ]
    lines.append(_machine(summary))
    if (peak := summary.peak) is not None:
        tflops = f"{peak.flops_per_second / 1e12:g} TFLOP/s"
        lines.append(f"MFU by PaLM's formula, of {tflops} dense {peak.precision} ({peak.source})")
    return [*(f"{_name(summary)}: {line}" for line in (*lines, *summary.notes)), *_ad_hoc([summary])]


def interval_notes(summaries: Sequence[Summary]) -> list[str]:
    """Return the reasons why intervals of these runs are hidden, each once; empty if none is."""
    figures: list[Estimate | EstimatedRatio] = []
    for summary in summaries:
        figures += [*summary.estimates, *(each.ratio for each in summary.scaling)]
    return wide_interval_notes(figures)


def first_notes(summaries: Sequence[Summary]) -> list[str]:
    """Return at most `MOST_NOTES` lines: what is wrong, the machine, what is missing, and the commands that measure it.

    The line on missing figures also counts the notes that only `--details` shows, and names that command.
    """

    def named(summary: Summary, line: str) -> str:
        return f"{_name(summary)}: {line}" if len(summaries) > 1 else line

    notes = [(summary, note) for summary in summaries for note in summary.notes]
    absent = [(summary, note, match[1]) for summary, note in notes if (match := _ABSENT.match(note))]
    information = [note for _, note in notes if _INFORMATION.match(note)]
    wrong = [(summary, note) for summary, note in notes if not _ABSENT.match(note) and not _INFORMATION.match(note)]
    rest_on = [
        (summary, f"{each.scaling} scaling efficiency is against {_baseline(each)}")
        for summary in summaries
        for each in summary.scaling
    ]
    machines = list(dict.fromkeys(map(_machine, summaries)))
    commands = dict.fromkeys(command for _, note, _ in absent for command in _COMMAND.findall(note))
    last = [f"not measured yet: {', '.join(commands)}"] if commands else []
    # In the order of the screen. If there are too many lines, those with the lowest numbers stay.
    lines = [
        *((5 if number else 0, named(*line)) for number, line in enumerate(wrong)),
        *((6, named(*line)) for line in rest_on),
        *((2, line) for line in interval_notes(summaries)),
        *((3, line) for line in _ad_hoc(summaries)),
        *((1, line) for line in machines[:1]),
    ]
    shown = most_important([*lines, *((4, line) for line in last)], MOST_NOTES - 1)
    at_end = [line for line in shown if line in last]
    shown = shown[: len(shown) - len(at_end)]
    # Only in the details: notes that did not fit, further machines, information, and the peaks for MFU.
    peaks = [summary.peak for summary in summaries if summary.peak is not None]
    hidden = len(lines) - len(shown) + len(machines[1:]) + len(information) + len(peaks)
    # Each absent figure once, with the runs that lack it unless all do.
    things = [
        what if len(names) == len(summaries) else f"{what} ({', '.join(names)})"
        for what, names in grouped((what, _name(summary)) for summary, _, what in absent).items()
    ]
    words = [f"not available: {', '.join(things)}"] if things else []
    if hidden:
        words.append(plural(hidden, "more note"))
    run = summaries[0].run if len(summaries) == 1 else "RUN"
    details = [f"{'; '.join(words)} (`observatory show {run} --details`)"] if words else []
    return [*shown, *details, *at_end]


def _ad_hoc(summaries: Sequence[Summary]) -> list[str]:
    """Return which runs are ad hoc and why, with one line for all that have the same reasons."""
    done = [(why_ad_hoc(each.case, each.purpose), each) for each in summaries if each.outcome == "done"]
    names = grouped(((reasons, each.purpose.note is not None), _name(each)) for reasons, each in done if reasons)
    return [
        f"{', '.join(of_runs)}: ad-hoc run ({'; '.join(reasons)}), so /metrics does not show it"
        f"{'' if has_note else '; `run --nightly` makes one that it shows'}"
        for (reasons, has_note), of_runs in names.items()
    ]


def _baseline(efficiency: ScalingEfficiency) -> str:
    """Return the run to which the efficiency is relative, and why the efficiency has no interval."""
    of_ranks = "" if efficiency.baseline_ranks == 1 else f" on {efficiency.baseline_ranks} ranks"
    apart = "" if efficiency.is_beside else ", measured at another time"
    why = f" ({efficiency.ratio.why_no_interval})" if efficiency.ratio.why_no_interval else ""
    return f"{efficiency.baseline_run}{of_ranks}{apart}{why}"


def _name(summary: Summary) -> str:
    return summary.case.title


def _machine(summary: Summary) -> str:
    commit = summary.commit[:12] if summary.commit else "unknown"
    if summary.watched is not None:
        return f"on {summary.hardware}; torch {summary.torch_version or 'unknown'}, the program's commit {commit}"
    return f"on {summary.hardware}; torch {summary.torch_version}, commit {commit}, seed {summary.case.seed}"


# A curve over numbers of ranks


def print_curve(points: Sequence[Point], console: Console | None = None) -> None:
    """Print a row for each number of ranks: its throughput, and its efficiency relative to the first."""
    first = points[0].summary.case
    is_training = first.model is not None
    columns = ["ranks", "throughput", *(["efficiency"] if is_training else []), "outcome"]
    rows = []
    for point in points:
        summary = point.summary
        cells = [str(summary.case.ranks), headline(summary), *([percent(point.efficiency)] if is_training else [])]
        rows.append([*cells, summary.outcome.replace("_", " ")])
    lines: list[str] = []
    if first.model is not None:
        known = [point.efficiency for point in points if point.efficiency is not None]
        lines = [
            f"efficiency: tokens/s per rank, relative to {first.ranks}; total batch {first.model.batch} (strong"
            " scaling), measured in turn",
            *(
                f"efficiency on {each.summary.case.ranks} is absent: {each.reason}"
                for each in points[1:]
                if each.reason
            ),
            *(f"intervals of efficiency are absent: {each.why_no_interval}" for each in known if each.why_no_interval),
        ]
        if not interval_notes([point.summary for point in points]):  # Otherwise the note is above.
            lines += wide_interval_notes(known)
    print_page(["", Table(columns, rows, words=(len(columns) - 1,), keys=1), *dict.fromkeys(lines)], console)


def print_curve_json(points: Sequence[Point]) -> None:
    """Print all runs in full, each with its place on the curve."""
    print_json(
        [
            {
                **msgspec.to_builtins(point.summary),
                "curve": {
                    "ranks": point.summary.case.ranks,
                    "against": points[0].summary.run,
                    "efficiency": point.efficiency,
                    "reason": point.reason,
                },
            }
            for point in points
        ]
    )


# Runs side by side, the history as a list, and one run in full

RUNS_ABREAST = 3


def print_summaries(
    summaries: Sequence[Summary],
    format_name: str,
    console: Console | None = None,
    *,
    has_details: bool = False,
    has_stages: bool = False,
    predicted: Predicted = NOTHING_PREDICTED,
) -> None:
    """Print measured runs side by side. console: for a table; None for standard output.

    has_details: print all rows and notes, not only the most important. predicted: steps by the cost model.
    has_stages: also print a pipeline's bubble and stages, which the details always contain.
    """
    console = console or open_console()
    write(
        format_name,
        _page(summaries, console, has_details=has_details, has_stages=has_stages, predicted=predicted),
        lambda: [{**msgspec.to_builtins(each), "outcome": outcome_of(each)} for each in summaries],
        (row for summary in summaries for row in _rows(summary)),
        COLUMNS,
        console,
    )


def _page(
    summaries: Sequence[Summary], console: Console, *, has_details: bool, has_stages: bool, predicted: Predicted
) -> Iterator[Block]:
    yield from _abreast([each for each in summaries if each.case.model is not None], console, has_details, predicted)
    for summary in summaries:
        if summary.watched is not None:
            yield from watched_blocks(summary, has_details=has_details)
        elif summary.case.model is None:
            yield from probe_blocks(summary, most_rows=None if has_details else MOST_ROWS)
    if has_details or has_stages:
        for summary in summaries:
            yield from pipeline_blocks(summary)
    if has_details:
        for summary in summaries:
            yield from prediction_blocks(summary)
        for summary in summaries:
            yield ""
            yield from all_notes(summary)
            step, name = predicted.get(summary.run), summary.case.title
            if isinstance(step, PredictedStep):
                left_out = "loading data is" if step.has_host else "data and the host are"
                yield f"{name}: the predicted step is {step.basis}; {left_out} left out"
            elif step is not None:
                yield f"{name}: the predicted step is absent: {step.reason}"
        yield from interval_notes(summaries)
    elif summaries:
        yield ""
        yield from first_notes(summaries)
    yield ""
    for summary in summaries:
        where = " (missing: pruned, moved, or on another machine; the history has its results)"
        yield whole(f"run folder: {summary.folder}{where if is_gone(summary.folder) else ''}")


def _abreast(
    summaries: Sequence[Summary], console: Console, has_details: bool, predicted: Predicted
) -> Iterable[Table]:
    """Return tables with as many training runs side by side as fit the terminal, at most RUNS_ABREAST."""
    tables: list[Table] = []
    for abreast in range(RUNS_ABREAST, 0, -1):
        tables = []
        for first in range(0, len(summaries), abreast):
            runs = summaries[first : first + abreast]
            rows = [(row.title, *row.cells) for row in (all_rows if has_details else first_rows)(runs, predicted)]
            tables.append(Table(["", *(summary.case.strategy for summary in runs)], rows, unbroken=(0,)))
        if not console.is_terminal or all(table.width() <= console.width for table in tables):
            break
    return tables


ENDS_OF: dict[FaultKind, tuple[str, ...]] = {
    "raise": ("error",),
    "kill": ("killed",),
    "stop": ("hung",),
    "hang": ("hung",),
    "wait": ("hung",),
    "memory": ("error", "killed"),
    "exit": ("error",),
    "leave": ("left",),
}
"""The kinds of cause that each fault may have."""


def _fault(summary: Summary) -> Fault | None:
    """Return the fault that was injected into the run; None if there was none or the run's folder is gone."""
    try:
        return case_file(Path(summary.folder)).fault
    except Misuse:
        return None


def cause_lines(summary: Summary) -> list[str]:
    """Return why the run failed, the last lines of the blamed rank, and their meaning if it is known.

    For a fire drill, they also say whether it ended as injected. Empty if the run succeeded.
    """
    if summary.cause is None:
        return []
    outcome = summary.outcome.replace("_", " ")
    if (fault := _fault(summary)) is not None:
        is_its = summary.cause.rank == fault.rank and summary.cause.kind in ENDS_OF[fault.kind]
        outcome += f", {'as injected' if is_its else 'other than injected'} ({fault})"
    first = f"{summary.case.title}: {outcome}: {summary.cause.text}"
    last_lines = [f"    {line}" for line in summary.cause.last_lines]
    return [first, *last_lines, *(f"    meaning: {line}" for line in summary.cause.explained)]


def print_history(summaries: Sequence[Summary], format_name: str) -> None:
    """Print runs as a list, newest first."""
    if format_name == "table":
        print_list(summaries)
    else:
        print_summaries(summaries, format_name)


def print_run(
    summary: Summary, format_name: str, *, has_details: bool = False, predicted: Predicted = NOTHING_PREDICTED
) -> None:
    """Print one run with its main settings, or with all if `has_details`."""
    if format_name != "table":
        print_summaries([summary], format_name)
        return
    settings = _settings(summary, has_details)
    print_page([Table(("", ""), settings, words=(0, 1), has_heading=False, folds="always"), ""])
    print_summaries([summary], format_name, has_details=has_details, predicted=predicted)
    print_page(map(whole, cause_lines(summary)))


def _settings(summary: Summary, has_details: bool) -> list[tuple[str, str]]:
    case = summary.case
    if summary.watched is not None:
        return watched_settings(summary, summary.watched, has_details=has_details)
    values = options_of(case) if has_details else options_shown(case)
    options = ", ".join(f"{name}={value}" for name, value in values.items())
    measured = (
        f"{summary.trials_done} of {case.trials} trials, {case.steps}"
        f" {'steps' if case.model is not None else 'calls of each'} after {case.warm_up} of warm-up"
    )
    outcome = summary.outcome.replace("_", " ")
    note = [] if summary.purpose.note is None else [("note", summary.purpose.note)]
    if not has_details:
        shown = [("options", options)] if options else []
        return [("run", f"{summary.run}: {outcome}, {measured}"), *shown, *note]
    rows = [("run", summary.run), ("outcome", outcome), ("hardware", summary.hardware)]
    if (shape := case.model) is not None:
        rows.append(("shape", shape_words(shape)))
    return [*rows, ("setting", case.setting), ("options", options), ("measured", measured), *note]


COLUMNS = ("run", "strategy", "ranks", "outcome", "metric", "labels", "median", "low", "high", "trials")


def _rows(summary: Summary) -> list[dict[str, object]]:
    case = summary.case
    run = {"run": summary.run, "strategy": case.strategy, "ranks": case.ranks, "outcome": outcome_of(summary)}
    figures: list[tuple[str, str, float, Estimate | EstimatedRatio, int]] = [
        (
            estimate.metric,
            " ".join(f"{name}={value}" for name, value in estimate.labels.items()),
            estimate.median,
            estimate,
            len(estimate.trials),
        )
        for estimate in summary.estimates
    ]
    figures += [
        (
            results.RUN_SCALING_EFFICIENCY.name,
            f"scaling={each.scaling}",
            each.ratio.value,
            each.ratio,
            each.ratio.numerator_trials,
        )
        for each in summary.scaling
    ]
    return [
        {
            **run,
            "metric": metric,
            "labels": labels,
            "median": median,
            "low": ends.low,
            "high": ends.high,
            "trials": trials,
        }
        for metric, labels, median, ends, trials in figures
    ] or [run]
