"""Prints the noise of series: deviations, the smallest change that trials show, and how many trials a gate needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from bench.analysis.comparison import smallest_shown
from bench.analysis.estimate import Estimate
from bench.analysis.mfu import Absent
from bench.analysis.noise import WANTED_CHANGE, TrialNoise, smallest_of_night, trials_a_night
from bench.reports.comparison.changes import title
from bench.reports.format import open_console, print_csv, print_figures, print_json, print_words, share, table_of

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesNoise:
    """The noise of one figure of a case. trials: as many as the suite has of the case."""

    case: str
    estimate: Estimate
    is_main: bool
    trials: int
    noise: TrialNoise | Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseDifferences:
    """Differences between two measurements of the same thing, all of them false.

    tested: comparisons with a test. single: those with a p-value below 5 %. called: those called better or worse.
    exact: figures without noise that differ all the same.
    """

    tested: int
    single: int
    called: int
    exact: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseReport:
    """The noise of a suite's series. missing: a line on each case that tells nothing."""

    suite: str
    series: tuple[SeriesNoise, ...]
    false: FalseDifferences
    missing: tuple[str, ...] = ()


def print_noise(found: NoiseReport, format_name: str, console: Console | None = None, *, has_all: bool = False) -> None:
    """Print the noise of each series. has_all: of every figure, in place of the main ones."""
    if format_name == "json":
        false = found.false
        print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "suite": found.suite,
                "series": [_row(one) for one in found.series],
                "false_differences": {
                    "tested": false.tested,
                    "single": false.single,
                    "called": false.called,
                    "exact": false.exact,
                },
                "missing": found.missing,
            }
        )
    elif format_name == "csv":
        rows = [_row(one) for one in found.series]
        for row in rows:
            row["labels"] = ",".join(f"{key}={value}" for key, value in row["labels"].items())
        print_csv(rows, _COLUMNS)
    else:
        _print_table(found, console or open_console(), has_all=has_all)


_COLUMNS = (
    *("case", "metric", "labels", "main", "trials", "trial_deviation_ratio", "night_deviation_ratio", "nights"),
    *("in_turn_change_ratio", "night_change_ratio", "trials_for_3_percent", "reason"),
)


def _row(one: SeriesNoise) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(_COLUMNS)
    row |= {
        "case": one.case,
        "metric": one.estimate.metric,
        "labels": one.estimate.labels,
        "main": one.is_main,
        "trials": one.trials,
    }
    noise = one.noise
    if isinstance(noise, Absent):
        return row | {"reason": noise.reason}
    needed = trials_a_night(noise)
    return row | {
        "trial_deviation_ratio": noise.trial,
        "night_deviation_ratio": _known(noise.night),
        "nights": noise.nights,
        "in_turn_change_ratio": _in_turn(one.trials, noise),
        "night_change_ratio": _known(smallest_of_night(noise, one.trials)),
        "trials_for_3_percent": _known(needed),
        "reason": needed.reason if isinstance(needed, Absent) else None,
    }


def _known(value: float | Absent) -> float | None:
    return None if isinstance(value, Absent) else value


def _in_turn(trials: int, noise: TrialNoise) -> float | None:
    return math.expm1(smallest_shown(trials, noise.trial)) if trials > 1 else None


def _print_table(found: NoiseReport, console: Console, *, has_all: bool) -> None:
    shown = [one for one in found.series if has_all or one.is_main]
    columns = (
        "case",
        "figure",
        "trials",
        "trials\ndiffer by",
        "nights\ndiffer by",
        "in turn\nshow",
        "a night\nshows",
        "3 % needs\na night",
    )
    rows = [(one.case, title(one.estimate), str(one.trials), *_cells(one)) for one in shown]
    if rows:
        print_figures(console, table_of(columns, rows, words=(0, 1), unbroken=range(1, len(columns))), keys=2)
        console.print()
    print_words(console, *_words(found, has_all=has_all, hidden=len(found.series) - len(shown)))


def _cells(one: SeriesNoise) -> tuple[str, ...]:
    if isinstance(one.noise, Absent):
        return ("-",) * 5
    needed = trials_a_night(one.noise)
    trials = f"{needed} trials" if isinstance(needed, int) else "-"
    values = (
        one.noise.trial,
        one.noise.night,
        _in_turn(one.trials, one.noise),
        smallest_of_night(one.noise, one.trials),
    )
    return (*("-" if value is None or isinstance(value, Absent) else share(value) for value in values), trials)


def _words(found: NoiseReport, *, has_all: bool, hidden: int) -> Iterator[str]:
    false = found.false
    if false.tested:
        yield (
            f"the same twice: {false.single} of {false.tested} comparisons ({100 * false.single / false.tested:.1f} %)"
            f" differ at the 5 % level, and {false.called} would be called better or worse"
        )
    if false.exact:
        yield f"{false.exact} figure(s) without noise differ all the same: something was not repeated exactly"
    if found.series:
        yield "differ by: standard deviation of one trial within a night, and of a night's level"
        yield (
            "show: smallest change that as many trials show with 80 % power, of two sides in turn (`compare --ab`) and"
            " of one night, so that the gate (`check`) suspects it, which knows the level from many nights"
        )
    reasons: dict[str, list[str]] = {}
    for one in found.series:
        if one.is_main or has_all:
            needed = one.noise if isinstance(one.noise, Absent) else trials_a_night(one.noise)
            if isinstance(needed, Absent):
                reasons.setdefault(needed.reason, []).append(one.case)
    for reason, cases in reasons.items():
        names = list(dict.fromkeys(cases))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        yield f"trials for {100 * WANTED_CHANGE:g} % are absent: {', '.join(names[:4])}{more}: {reason}"
    if hidden:
        yield f"{hidden} other figure(s): `--all` shows them"
    yield from found.missing
