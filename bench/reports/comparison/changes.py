"""Prints comparisons as a table, JSON or CSV: each figure on both sides, its change and what that means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from bench.analysis.comparison import OUTCOMES, ChangeOutcome, FigureChange, JudgedChange, counted, is_main
from bench.analysis.estimate import Estimate
from bench.reports.format import (
    digits,
    figure,
    open_console,
    print_csv,
    print_figures,
    print_json,
    print_words,
    table_of,
)
from collectors.metrics import probes, results

SCHEMA_VERSION = 1
MOST_ROWS = 15
"""Rows of a table unless all are asked for."""
STYLES: Mapping[ChangeOutcome, str] = {"better": "green", "worse": "red", "unsure": "yellow"}

_TITLES = {
    results.RUN_STEP_SECONDS.name: "median step",
    results.RUN_MEAN_STEP_SECONDS.name: "mean step",
    results.RUN_TOKENS_PER_SECOND.name: "tokens/s",
    results.RUN_TOKENS_PER_SECOND_PER_DEVICE.name: "tokens/s/device",
    results.RUN_FLOPS.name: "model FLOP/s/device",
    results.RUN_MFU.name: "MFU, data sheet",
    results.RUN_MEASURED_MFU.name: "MFU, measured ceiling",
    results.RUN_PEAK_MEMORY_BYTES.name: "peak",
    results.RUN_PHASE_SECONDS.name: "phase",
    results.RUN_OVERLAP_RATIO.name: "overlap",
    results.RUN_OBSERVER_RATIO.name: "observer's share",
    probes.RUN_COLLECTIVE_BUS_BANDWIDTH.name: "busbw",
    probes.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH.name: "algbw",
    probes.RUN_MATMUL_FLOPS.name: "matmul",
}
"""Names of figures for people; others follow from the metric's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two runs beside each other.

    name: of the case. a_run, b_run: their ids. trials: complete ones of each. differences: between their cases.
    is_in_turn: their trials took turns, so that figures are compared in pairs.
    """

    name: str
    a_run: str
    b_run: str
    trials: tuple[int, int]
    differences: tuple[str, ...]
    is_in_turn: bool
    figures: tuple[JudgedChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides beside each other. a, b: what they are, for people. margin: see `bench.analysis.comparison.judge`.

    missing: a line on each case that is not compared. notes: what else a reader must know.
    """

    a: str
    b: str
    margin: float
    compared: tuple[Compared, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def print_comparison(
    found: Comparison, format_name: str, console: Console | None = None, *, has_all: bool = False
) -> None:
    """Print a comparison. has_all: all figures, in place of the main ones and at most `MOST_ROWS`."""
    if format_name == "json":
        print_json(document(found))
    elif format_name == "csv":
        print_csv(list(_csv_rows(found)), _COLUMNS)
    else:
        _print_table(found, console or open_console(), has_all=has_all)


# For people.


def _print_table(found: Comparison, console: Console, *, has_all: bool) -> None:
    is_one = len(found.compared) == 1
    print_words(console, f"A: {found.a}", f"B: {found.b}")
    if is_one and (only := found.compared[0]).differences:
        print_words(console, f"differs: {', '.join(only.differences)}")
    console.print()
    figures = [(one, judged) for one in found.compared for judged in one.figures]
    wanted = figures if has_all else [row for row in figures if is_main(row[1].change.a)]
    if not is_one and not has_all:
        wanted = sorted(wanted, key=lambda row: OUTCOMES.index(row[1].outcome))
    shown = wanted if has_all else wanted[:MOST_ROWS]
    columns = [*([] if is_one else ["case"]), "figure", "A", "B", "change", "outcome"]
    first = 0 if is_one else 1
    table = table_of(columns, words=(0, first, len(columns) - 1), unbroken=range(first + 1, len(columns)))
    for one, judged in shown:
        name = [] if is_one else [one.name]
        sides = (_median(judged.change.a), _median(judged.change.b))
        outcome = Text(outcome_words(judged), style=STYLES.get(judged.outcome, ""))
        table.add_row(*name, title(judged.change.a), *sides, change_words(judged.change), outcome)
    if shown:
        print_figures(console, table, keys=first + 1)
    else:
        print_words(console, "no figure has a better direction on both sides")
    console.print()
    print_words(console, *_words(found, figures, hidden=len(wanted) - len(shown), has_all=has_all))


def _words(
    found: Comparison, figures: Sequence[tuple[Compared, JudgedChange]], *, hidden: int, has_all: bool
) -> Iterator[str]:
    """Yield what the table rests on."""
    judged = [one for _, one in figures]
    main, others = ([one for one in judged if is_main(one.change.a) == wanted] for wanted in (True, False))
    counts = [f"{len(main)} main figure(s): {_counts(main)}"] if main else []
    counts += [f"{len(others)} other(s): {_counts(others)}"] if others else []
    more = "" if has_all or not (others or hidden) else " (`--all` shows all)"
    if counts:
        yield f"{'; '.join(counts)}{more}"
    turns = Counter(one.is_in_turn for one in found.compared)
    trials = sorted({count for one in found.compared for count in one.trials})
    of_trials = f"{trials[0]}" if len(trials) == 1 else f"{trials[0]} to {trials[-1]}"
    if turns[True] and turns[False]:
        yield f"{of_trials} trials a side; those of {turns[True]} case(s) took turns, and are compared in pairs"
    elif turns[True]:
        yield f"{of_trials} trials a side, in turn: compared in pairs of trials"
    else:
        yield (
            f"{of_trials} trials a side, measured at different times: what changed on the machine in between counts,"
            " too; `observatory compare --ab` measures both in turn"
        )
    outcomes = {one.outcome for one in judged}
    if outcomes & {"better", "worse"}:
        yield (
            "better, worse: about 5 % of these may be false (Benjamini-Hochberg, over the main figures and over the"
            " others)"
        )
    if "same" in outcomes:
        yield f"same: the interval is within {100 * found.margin:g} % either way, or all trials of both sides are equal"
    if "unsure" in outcomes:
        yield "unsure: with about so many more trials a side, it would be settled with 80 % power"
    if reasons := dict.fromkeys(one.change.reason for one in judged if one.outcome == "insufficient_data"):
        yield f"insufficient data: {'; '.join(reason for reason in reasons if reason)}; --trials 5 would tell more"
    yield from found.missing
    yield from found.notes


def _counts(judged: Iterable[JudgedChange]) -> str:
    return ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in counted(judged).items())


def outcome_words(judged: JudgedChange) -> str:
    """Return the outcome for people: `worse`, `unsure, ~12 more`."""
    words = judged.outcome.replace("_", " ")
    if judged.outcome != "unsure":
        return words
    return f"{words}, too noisy" if judged.more_trials is None else f"{words}, ~{judged.more_trials:,} more"


def change_words(change: FigureChange) -> str:
    """Return the change for people: `+3.2 % [+1.1, +5.4]`; of shares, in points: `-4.0 pt [-5.2, -2.9]`."""
    if change.scale == "ratio" and change.value > 10:
        interval = f" [{change.low:.1f}, {change.high:.1f}]" if _is_narrow(change) else ""
        return f"x {digits(change.value)}{interval}"

    def shown(value: float) -> str:
        size = 100 * (value - change.nothing)
        is_tiny = change.is_exact and 0 < abs(size) < 0.05  # Exact values that differ must not look equal.
        return f"{size:+.1g}" if is_tiny else f"{size:+z.1f}"

    unit = "%" if change.scale == "ratio" else "pt"
    if not _is_narrow(change):
        return f"{shown(change.value)} {unit}"
    assert change.low is not None
    assert change.high is not None
    return f"{shown(change.value)} {unit} [{shown(change.low)}, {shown(change.high)}]"


def _is_narrow(change: FigureChange) -> bool:
    """Whether there is an interval that tells something: that of two pairs may be a thousand times as wide."""
    if change.low is None or change.high is None:
        return False
    return change.high - change.low < 2 or min(change.trials) > 2


def title(estimate: Estimate) -> str:
    """Return the name of a figure for people, with its labels."""
    name = _TITLES.get(estimate.metric)
    if name is None:
        name = estimate.metric.removeprefix("observatory_").removeprefix("run_")
        for unit in ("_bytes_per_second", "_flops_per_second", "_seconds", "_bytes", "_ratio"):
            name = name.removesuffix(unit)
    labels = [value for key, value in estimate.labels.items() if (key, value) not in _OBVIOUS]
    return " ".join([name, *labels]).replace("_", " ")


_OBVIOUS = (("account", "measured"), ("account", "traced"), ("account", "counted"))


def _median(estimate: Estimate) -> str:
    return figure(replace(estimate, low=None, high=None))


# For programs.


def document(found: Comparison) -> dict[str, Any]:
    """Return all of a comparison, in base units."""
    return {
        "schema_version": SCHEMA_VERSION,
        "a": found.a,
        "b": found.b,
        "margin": found.margin,
        "compared": [
            {
                "case": one.name,
                "a_run": one.a_run,
                "b_run": one.b_run,
                "in_turn": one.is_in_turn,
                "differences": one.differences,
                "figures": [_figure(judged) for judged in one.figures],
            }
            for one in found.compared
        ],
        "missing": found.missing,
        "notes": found.notes,
    }


def _figure(judged: JudgedChange) -> dict[str, Any]:
    change = judged.change
    return {
        "metric": change.metric.name,
        "labels": change.a.labels,
        "better": change.metric.better,
        "main": is_main(change.a),
        "a": _side(change.a),
        "b": _side(change.b),
        "scale": change.scale,
        "value": change.value,
        "low": change.low,
        "high": change.high,
        "p_value": change.p_value,
        "adjusted_p_value": judged.adjusted_p,
        "paired": change.is_paired,
        "exact": change.is_exact,
        "outcome": judged.outcome,
        "more_trials": judged.more_trials,
        "reason": change.reason,
    }


def _side(estimate: Estimate) -> dict[str, Any]:
    return {"median": estimate.median, "low": estimate.low, "high": estimate.high, "trials": estimate.trials}


_COLUMNS = (
    *("case", "metric", "labels", "main", "a_run", "b_run", "a_median", "b_median", "a_trials", "b_trials", "paired"),
    *("scale", "value", "low", "high", "p_value", "adjusted_p_value", "outcome", "more_trials", "reason"),
)


def _csv_rows(found: Comparison) -> Iterator[dict[str, object]]:
    for one in found.compared:
        for judged in one.figures:
            row = _figure(judged)
            labels = ",".join(f"{key}={value}" for key, value in row["labels"].items())
            row |= {"case": one.name, "a_run": one.a_run, "b_run": one.b_run, "labels": labels}
            row |= {f"{side}_median": row[side]["median"] for side in "ab"}
            row |= {f"{side}_trials": len(row[side]["trials"]) for side in "ab"}
            yield {column: row[column] for column in _COLUMNS}
