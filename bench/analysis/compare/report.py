"""Prints comparisons, and the noise of a suite, as tables, JSON or CSV."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from bench.analysis.compare.sides import arithmetic_differences
from bench.errors import plural
from bench.report.format import digits, figure, grouped, share
from bench.report.table import Block, Table, write
from bench.results.comparison import (
    OUTCOMES,
    ChangeOutcome,
    FigureChange,
    JudgedChange,
    counted,
    is_main,
    smallest_shown,
)
from bench.results.estimate import Estimate
from bench.results.noise import WANTED_CHANGE, TrialNoise, smallest_of_night, trials_a_night
from bench.results.two_sides import LARGE, LEAST_APART, LEAST_KNOWN
from collectors.metrics import probes, results
from workloads.core.precision_options import WEIGHTS
from workloads.cost_models.absent import Absent

SCHEMA_VERSION = NOISE_SCHEMA_VERSION = 1
MOST_ROWS = 15
"""Limit of a table's rows without `--all`."""
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
"""Names of figures for people; other names are derived from the metric's."""


# Two sides: each figure on both, its change and its outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The comparison of two runs.

    name: of the case. a_run, b_run: their ids. trials: number of complete trials of each. differences: between their
    cases. is_in_turn: their trials took turns, so figures are compared in pairs. arithmetic: of each side, see
    `bench.analysis.compare.sides.arithmetic`. arithmetic_note: a line if they differ in it. is_watched: the runs
    watched the user's own programs; their trials are stretches of one run.
    """

    name: str
    a_run: str
    b_run: str
    trials: tuple[int, int]
    differences: tuple[str, ...]
    arithmetic: tuple[Mapping[str, str], Mapping[str, str]]
    arithmetic_note: str | None
    is_in_turn: bool
    figures: tuple[JudgedChange, ...]
    is_watched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of two sides. a, b: their names for readers. margin: see `bench.results.comparison.judge`.

    missing: a line on each case that is not compared. notes: further notes for the reader.
    """

    a: str
    b: str
    margin: float
    compared: tuple[Compared, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def print_comparison(
    comparison: Comparison, format_name: str, console: Console | None = None, *, has_all: bool = False
) -> None:
    """Print a comparison. has_all: show all figures, not only main ones and at most `MOST_ROWS`."""
    write(
        format_name,
        _page(comparison, has_all=has_all),
        lambda: document(comparison),
        _rows(comparison),
        _COLUMNS,
        console,
    )


def _page(comparison: Comparison, *, has_all: bool) -> Iterator[Block]:
    is_single = len(comparison.compared) == 1
    yield f"A: {comparison.a}"
    yield f"B: {comparison.b}"
    if is_single and (differences := comparison.compared[0].differences):
        yield f"differs: {', '.join(differences)}"
    yield from dict.fromkeys(runs.arithmetic_note for runs in comparison.compared if runs.arithmetic_note is not None)
    yield ""
    figures = [(runs, judged) for runs in comparison.compared for judged in runs.figures]
    wanted = figures if has_all else [row for row in figures if is_main(row[1].change.a)]
    if not is_single and not has_all:
        wanted = sorted(wanted, key=lambda row: OUTCOMES.index(row[1].outcome))
    shown = wanted if has_all else wanted[:MOST_ROWS]
    sides = _side_columns(comparison.compared[0]) if is_single else ("A", "B")
    columns = [*([] if is_single else ["case"]), "figure", *sides, "change", "outcome"]
    rows: list[Sequence[str | Text]] = []
    for runs, judged in shown:
        change = judged.change
        values = (figure(replace(side, low=None, high=None)) for side in (change.a, change.b))
        outcome = Text(outcome_words(judged), style=STYLES.get(judged.outcome, ""))
        name = () if is_single else (runs.name,)
        rows.append((*name, title(change.a), *values, change_words(change), outcome))
    if rows:
        keys = len(columns) - 4
        unbroken = range(keys, len(columns))
        yield Table(columns, rows, words=(0, keys - 1, len(columns) - 1), keys=keys, unbroken=unbroken)
    else:
        yield "both sides share no figure of which less or more is better"
    yield ""
    yield from _words(comparison, [judged for _, judged in figures], len(wanted) - len(shown), has_all=has_all)


def _side_columns(runs: Compared) -> tuple[str, str]:
    """Return the headers of both sides: `A` and `B`, with the main difference of their arithmetic."""
    of_a, of_b = (
        side.get(WEIGHTS.name, next(iter(side.values()), "")) for side in arithmetic_differences(*runs.arithmetic)
    )
    return f"A\n{of_a}".rstrip(), f"B\n{of_b}".rstrip()


def _words(comparison: Comparison, judged: Sequence[JudgedChange], hidden: int, *, has_all: bool) -> Iterator[str]:
    """Yield the lines below the table: counts, trials, and what the outcomes mean."""
    main, others = ([each for each in judged if is_main(each.change.a) == is_wanted] for is_wanted in (True, False))
    counts = [f"{plural(len(main), 'main figure')}: {_counts(main)}"] if main else []
    counts += [f"{plural(len(others), 'other')}: {_counts(others)}"] if others else []
    more = "" if has_all or not (others or hidden) else " (`--all` shows all)"
    if counts:
        yield f"{'; '.join(counts)}{more}"
    turns = Counter(runs.is_in_turn for runs in comparison.compared)
    trials = sorted({count for runs in comparison.compared for count in runs.trials})
    of_trials = f"{trials[0]}" if len(trials) == 1 else f"{trials[0]} to {trials[-1]}"
    is_watched = bool(comparison.compared) and all(runs.is_watched for runs in comparison.compared)
    if is_watched:
        yield "one run on each side: intervals are over its stretches; changes of the machine also count"
    elif turns[True] and turns[False]:
        yield f"{of_trials} trials a side; those of {plural(turns[True], 'case')} took turns, and are compared in pairs"
    elif turns[True]:
        yield f"{of_trials} trials a side, in turn: compared in pairs of trials"
    else:
        yield (
            f"{of_trials} trials a side, measured at different times, so changes of the machine also count;"
            " `observatory compare --ab` measures both sides in turn"
        )
    outcomes = {each.outcome for each in judged}
    if outcomes & {"better", "worse"}:
        yield (
            "better, worse: about 5 % of these may be false (Benjamini-Hochberg, over the main figures and over the"
            " others)"
        )
    if "same" in outcomes:
        margin = 100 * comparison.margin
        yield f"same: the interval is within {margin:g} % either way, or all trials of both sides are equal"
    if "unsure" in outcomes and not is_watched:
        yield "unsure: ~N more trials on each side would decide, with 80 % power"
    if any(each.outcome == "unsure" and each.change.is_short for each in judged) and not is_watched:
        yield (
            f"fewer than {LEAST_APART} trials a side, measured apart, may all lie in one of two modes, so a change"
            f" counts only if its interval is beyond {LARGE:g}x; use --trials {LEAST_APART} or `observatory compare"
            f" --ab`, or collect about {LEAST_KNOWN // 2} runs of 3 trials in each series"
        )
    if reasons := dict.fromkeys(each.change.reason for each in judged if each.outcome == "insufficient_data"):
        next_step = "longer runs have intervals" if is_watched else "use --trials 5"
        yield f"insufficient data: {'; '.join(reason for reason in reasons if reason)}; {next_step}"
    yield from comparison.missing
    yield from comparison.notes


def _counts(judged: Iterable[JudgedChange]) -> str:
    return ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in counted(judged).items())


def outcome_words(judged: JudgedChange) -> str:
    """Return the outcome for people: `worse`, `unsure, ~12 more`."""
    words = judged.outcome.replace("_", " ")
    if judged.outcome != "unsure":
        return words
    return f"{words}, too noisy" if judged.more_trials is None else f"{words}, ~{judged.more_trials:,} more"


def change_words(change: FigureChange) -> str:
    """Return the change for people: `+3.2 % [+1.1, +5.4]`; for shares in points: `-4.0 pt [-5.2, -2.9]`."""
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
    """Whether there is a useful interval: that of two pairs may be a thousand times as wide."""
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


def document(comparison: Comparison) -> dict[str, Any]:
    """Return the whole comparison, in base units."""
    return {
        "schema_version": SCHEMA_VERSION,
        "a": comparison.a,
        "b": comparison.b,
        "margin": comparison.margin,
        "compared": [
            {
                "case": runs.name,
                "a_run": runs.a_run,
                "b_run": runs.b_run,
                "in_turn": runs.is_in_turn,
                "differences": runs.differences,
                "a_arithmetic": runs.arithmetic[0],
                "b_arithmetic": runs.arithmetic[1],
                "arithmetic_note": runs.arithmetic_note,
                "figures": [_figure(judged) for judged in runs.figures],
            }
            for runs in comparison.compared
        ],
        "missing": comparison.missing,
        "notes": comparison.notes,
    }


def _figure(judged: JudgedChange) -> dict[str, Any]:
    change = judged.change
    a, b = (
        {"median": side.median, "low": side.low, "high": side.high, "trials": side.trials}
        for side in (change.a, change.b)
    )
    return {
        "metric": change.metric.name,
        "labels": change.a.labels,
        "better": change.metric.better,
        "main": is_main(change.a),
        "a": a,
        "b": b,
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


_COLUMNS = (
    *("case", "metric", "labels", "main", "a_run", "b_run", "a_median", "b_median", "a_trials", "b_trials", "paired"),
    *("scale", "value", "low", "high", "p_value", "adjusted_p_value", "outcome", "more_trials", "reason"),
)


def _rows(comparison: Comparison) -> Iterator[dict[str, object]]:
    for runs in comparison.compared:
        for judged in runs.figures:
            row = {"case": runs.name, "a_run": runs.a_run, "b_run": runs.b_run, **_figure(judged)}
            for side, estimate in (("a", judged.change.a), ("b", judged.change.b)):
                row |= {f"{side}_median": estimate.median, f"{side}_trials": len(estimate.trials)}
            yield row


# One side twice: deviations, the smallest detectable change, and how many trials a gate needs


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesNoise:
    """The noise of one figure of a case. trials: their number in the suite."""

    case: str
    estimate: Estimate
    trials: int
    noise: TrialNoise | Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseReport:
    """The noise of a suite's series. judged: all figures of both measurements, none of which truly differ.

    missing: a line on each case without enough trials.
    """

    suite: str
    series: tuple[SeriesNoise, ...]
    judged: tuple[JudgedChange, ...]
    missing: tuple[str, ...] = ()


def print_noise(
    report: NoiseReport, format_name: str, console: Console | None = None, *, has_all: bool = False
) -> None:
    """Print the noise of each series. has_all: show every figure, not only main ones."""
    rows = [_noise(series) for series in report.series]
    write(
        format_name,
        _noise_page(report, has_all=has_all),
        lambda: {
            "schema_version": NOISE_SCHEMA_VERSION,
            "suite": report.suite,
            "series": rows,
            "false_differences": false_differences(report.judged),
            "missing": report.missing,
        },
        rows,
        _NOISE_COLUMNS,
        console,
    )


def false_differences(judged: Sequence[JudgedChange]) -> dict[str, int]:
    """Return how many of these figures seem to differ although none truly do.

    tested: comparisons with a test. single: those with a p-value below 5 %. called: those called better or worse.
    exact: figures without noise that differ.
    """
    p_values = [each.change.p_value for each in judged if each.change.p_value is not None]
    return {
        "tested": len(p_values),
        "single": sum(p_value < 0.05 for p_value in p_values),
        "called": sum(each.outcome in ("better", "worse") for each in judged if each.change.p_value is not None),
        "exact": sum(each.change.is_exact and each.outcome != "same" for each in judged),
    }


_NOISE_COLUMNS = (
    *("case", "metric", "labels", "main", "trials", "trial_deviation_ratio", "night_deviation_ratio", "nights"),
    *("in_turn_change_ratio", "night_change_ratio", "trials_for_3_percent", "reason"),
)


def _noise(series: SeriesNoise) -> dict[str, Any]:
    estimate, noise = series.estimate, series.noise
    row: dict[str, Any] = {
        **dict.fromkeys(_NOISE_COLUMNS),
        "case": series.case,
        "metric": estimate.metric,
        "labels": estimate.labels,
        "main": is_main(estimate),
        "trials": series.trials,
    }
    if isinstance(noise, Absent):
        return row | {"reason": noise.reason}
    needed = trials_a_night(noise)
    night_change = smallest_of_night(noise, series.trials)
    return row | {
        "trial_deviation_ratio": noise.trial,
        "night_deviation_ratio": None if isinstance(noise.night, Absent) else noise.night,
        "nights": noise.nights,
        "in_turn_change_ratio": math.expm1(smallest_shown(series.trials, noise.trial)) if series.trials > 1 else None,
        "night_change_ratio": None if isinstance(night_change, Absent) else night_change,
        "trials_for_3_percent": None if isinstance(needed, Absent) else needed,
        "reason": needed.reason if isinstance(needed, Absent) else None,
    }


_NOISE_CELLS = ("trial_deviation_ratio", "night_deviation_ratio", "in_turn_change_ratio", "night_change_ratio")


def _noise_page(report: NoiseReport, *, has_all: bool) -> Iterator[Block]:
    shown = [(series, _noise(series)) for series in report.series if has_all or is_main(series.estimate)]
    columns = (
        *("case", "figure", "trials", "trials\ndiffer by", "nights\ndiffer by"),
        *("in turn\nshow", "a night\nshows", "3 % needs\na night"),
    )
    rows = [
        (
            series.case,
            title(series.estimate),
            str(series.trials),
            *(share(row[name]) for name in _NOISE_CELLS),
            "-" if row["trials_for_3_percent"] is None else f"{row['trials_for_3_percent']} trials",
        )
        for series, row in shown
    ]
    if rows:
        yield Table(columns, rows, words=(0, 1), keys=2, unbroken=range(1, len(columns)))
        yield ""
    false = false_differences(report.judged)
    if false["tested"]:
        ratio = false["single"] / false["tested"]
        yield (
            f"measured twice: {false['single']} of {false['tested']} comparisons ({100 * ratio:.1f} %) differ at the"
            f" 5 % level, and {false['called']} would be called better or worse"
        )
    if false["exact"]:
        yield f"{plural(false['exact'], 'figure')} without noise differ: something was not repeated exactly"
    if report.series:
        yield "differ by: standard deviation of one trial within a night, and of a night's level"
        yield (
            "show: smallest change that as many trials detect with 80 % power, between two sides in turn"
            " (`compare --ab`) and in one night by the gate (`check`), which knows the level from many nights"
        )
    reasons = grouped((row["reason"], row["case"]) for _, row in shown if row["reason"] is not None)
    for reason, names in reasons.items():
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        yield f"trials for {100 * WANTED_CHANGE:g} % are absent: {', '.join(names[:4])}{more}: {reason}"
    if hidden := len(report.series) - len(shown):
        yield f"{plural(hidden, 'other figure')}: `--all` shows them"
    yield from report.missing
