"""Prints a pipeline: its bubble and the bubble's parts, time and memory of stages, and a drawing of a timed step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import NamedTuple, get_args

from rich.console import Console
from rich.text import Text

from bench.analysis.traces.pipeline_trace import require_stages, timed_steps, typical, write_trace
from bench.errors import plural
from bench.report.format import digits, figure
from bench.report.table import Block, Table, open_console, print_csv, print_json, print_page
from bench.results.estimate import Estimate, by_labels
from bench.results.pipeline import PARTS, TimedStep, bubble_ratio, pipelines
from bench.store.summary import Summary
from collectors.metrics.results import (
    RUN_BUBBLE_PART_RATIO,
    RUN_BUBBLE_RATIO,
    RUN_LIVE_MICROBATCHES,
    RUN_STAGE_ACTIVATION_BYTES,
    RUN_STAGE_SECONDS,
)
from workloads.cost_models.schedules import ActionKind


def pipeline_blocks(summary: Summary) -> Iterator[Block]:
    """Yield the figures of the run's pipeline; nothing for a run without one."""
    estimates = summary.estimates
    accounts, parts = by_labels(estimates, RUN_BUBBLE_RATIO), by_labels(estimates, RUN_BUBBLE_PART_RATIO)
    shares = {
        "measured": accounts.get(("measured",)),
        **{f"  {part.replace('_', ' ')}": parts.get((part,)) for part in PARTS},
        "predicted": accounts.get(("expected",)),
    }
    if rows := [(name, figure(share)) for name, share in shares.items() if share is not None]:
        yield ""
        yield Table((f"{summary.case.title}: bubble", "share of the ranks' time"), rows, keys=1)
    times = by_labels(estimates, RUN_STAGE_SECONDS)
    live = by_labels(estimates, RUN_LIVE_MICROBATCHES)
    activations = by_labels(estimates, RUN_STAGE_ACTIVATION_BYTES)
    if not (stages := dict.fromkeys(stage for stage, _ in (*times, *live, *activations))):
        return
    kinds = [kind for kind in get_args(ActionKind) if any(action == kind for _, action in times)]
    pipeline = summary.case.spec().pipeline(summary.case)
    stage_rows = [
        (
            stage,
            "-" if pipeline is None else str(pipeline.rank_of(int(stage))),
            *(figure(times.get((stage, kind))) for kind in kinds),
            _with_predicted(live, stage, lambda count: f"{count.median:g}"),
            _with_predicted(activations, stage, figure),
        )
        for stage in stages
    ]
    names = [kind.replace("_", " ") for kind in kinds]
    yield ""
    yield Table(("stage", "pipeline rank", *names, "live microbatches", "activations"), stage_rows, keys=1)


def _with_predicted(estimates: Mapping[tuple[str, ...], Estimate], stage: str, show: Callable[[Estimate], str]) -> str:
    """Return the measured value, followed by the predicted one."""
    measured, predicted = estimates.get((stage, "measured")), estimates.get((stage, "expected"))
    words = [] if measured is None else [show(measured)]
    if predicted is not None:
        words.append(f"predicted {show(predicted)}")
    return ", ".join(words) or "-"


# The timeline: a timed step on a terminal, with a row for each rank and a box for each action


class _Look(NamedTuple):
    """How a kind of action is drawn: its letter, the filling of its box, its colours, its name."""

    letter: str
    filling: str
    style: str
    name: str


_LOOKS: dict[ActionKind, _Look] = {
    "forward": _Look("F", "-", "bold white on blue", "forward"),
    "backward": _Look("B", "=", "bold black on green", "backward"),
    "input_backward": _Look("I", "=", "bold black on cyan", "backward of inputs"),
    "weight_backward": _Look("W", "~", "bold black on yellow", "backward of weights"),
}

ROWS_SCHEMA_VERSION = 1
_COLUMNS = ("trial", "step", "rank", "stage", "action", "microbatch", "start_ns", "end_ns")


def show_timeline(summary: Summary, format_name: str | None, console: Console | None = None) -> Path:
    """Show the timed steps of the run's stages, write them as a trace, and return its file.

    format_name: a table draws a typical step; JSON and CSV contain all steps; None shows nothing.

    Raises:
        Misuse: the run has no stages, or none of its steps was timed.
        InfrastructureFailed: the run's folder cannot be written.
    """
    require_stages(summary.case)
    folder = Path(summary.folder)
    steps = timed_steps(summary.case, folder)
    if format_name == "table":
        groups = pipelines(summary.case.spec().mesh(summary.case))
        print_timeline(typical(steps), groups, console or open_console())
    elif format_name == "json":
        is_one_clock = all(step.is_one_clock for step in steps)
        head = {"schema_version": ROWS_SCHEMA_VERSION, "run": summary.run, "is_one_clock": is_one_clock}
        print_json({**head, "actions": _rows(steps)})
    elif format_name == "csv":
        print_csv(_rows(steps), _COLUMNS)
    return write_trace(summary.case, steps, folder)


def print_timeline(step: TimedStep, groups: Sequence[Sequence[int]], console: Console) -> None:
    """Draw the step over the console's width, and print a legend.

    groups: the ranks of each pipeline, in order.
    """
    ranks = sorted(rank for group in groups for rank in group)
    titles = [f"rank {rank:>{len(str(ranks[-1]))}} |" for rank in ranks]
    columns = max(1, console.width - len(titles[0]) - 1)
    begins_ns = min(work.start_ns for work in step.works)
    span_ns = max(work.end_ns for work in step.works) - begins_ns
    letters = _stage_letters(step)
    narrow = 0
    for rank, title in zip(ranks, titles, strict=True):
        row = Text(title)
        drawn = 0  # Columns drawn so far.
        for work in sorted((work for work in step.works if work.rank == rank), key=lambda work: work.start_ns):
            start, end = (round((ns - begins_ns) * columns / span_ns) for ns in (work.start_ns, work.end_ns))
            narrow += start == end  # Too narrow for a column: counted, not drawn.
            row.append(" " * (start - drawn))
            # Letter and microbatch; without room only the letter, because half a number would be another number.
            look = _LOOKS[work.action.kind]
            name = f"{look.letter}{work.action.microbatch}{letters.get((rank, work.action.stage), '')}"
            shown = name if len(name) <= end - start else look.letter
            row.append(Text(shown.ljust(end - start, look.filling)[: end - start], look.style))
            drawn = end
        console.print(row.append(" " * (columns - drawn)).append("|"), soft_wrap=True)
    print_page(_legend(step, groups, span_ns / columns, narrow), console)


def _rows(steps: Sequence[TimedStep]) -> list[dict[str, object]]:
    """Return each action of each step. start_ns, end_ns: since the step began on the first rank, see `TimedStep`."""
    return [
        {
            "trial": step.trial,
            "step": step.step,
            "rank": work.rank,
            "stage": work.action.stage,
            "action": work.action.kind,
            "microbatch": work.action.microbatch,
            "start_ns": work.start_ns,
            "end_ns": work.end_ns,
        }
        for step in steps
        for work in step.works
    ]


def _stage_letters(step: TimedStep) -> dict[tuple[int, int], str]:
    """Return a letter for each stage of each rank, in the order of the model; empty if no rank has several stages."""
    places = sorted({(work.rank, work.action.stage) for work in step.works})
    if max(Counter(rank for rank, _ in places).values()) == 1:
        return {}
    counted: Counter[int] = Counter()
    letters = {}
    for rank, stage in places:
        letters[rank, stage] = ascii_lowercase[counted[rank] % len(ascii_lowercase)]
        counted[rank] += 1
    return letters


def _legend(step: TimedStep, groups: Sequence[Sequence[int]], column_ns: float, narrow: int) -> list[str]:
    kinds = {work.action.kind for work in step.works}
    names = [f"{look.letter} {look.name}" for kind, look in _LOOKS.items() if kind in kinds]
    stages = "; a, b, ...: the rank's first stage, its second" if _stage_letters(step) else ""
    bubbles = ", ".join(f"{100 * bubble_ratio(step.works, ranks):.1f} %" for ranks in groups)
    span_ns = max(work.end_ns for work in step.works) - min(work.start_ns for work in step.works)
    lines = [
        f"{', '.join(names)}; the number is the microbatch{stages}; blank is idle",
        f"step {step.step} of trial {step.trial}: {digits(span_ns / 1e6)} ms, a column is {digits(column_ns / 1e6)} ms;"
        f" bubble {bubbles}",
    ]
    if narrow:
        lines.append(f"not drawn: {plural(narrow, 'action')} narrower than half a column; the trace file has all")
    if not step.is_one_clock:
        lines.append("ranks read several clocks; each counts from the barrier before the step")
    return lines
