"""Suite runs as tables, JSON and CSV: the list of them, and one with all its cases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console

from bench.analysis.estimate import Estimate, EstimatedRatio, of_metric
from bench.reports.format import (
    duration,
    figure,
    open_console,
    percent,
    print_csv,
    print_figures,
    print_json,
    print_words,
    table_of,
    wide_interval_notes,
)
from bench.reports.run_rows import headline
from bench.reports.suites.levers import lever_rows, print_levers
from bench.runs.summary import Summary
from bench.suites.levers import judge_levers
from bench.suites.suite_results import CaseResult, SuiteResult
from collectors.metrics.results import RUN_STEP_SECONDS, RUN_TOKENS_PER_SECOND

ORDER = ("done", "failed", "timed_out", "interrupted", "skipped", "left_out")
"""Outcomes of cases in the order in which they are counted."""


def counted(result: SuiteResult) -> str:
    """Return how many cases ended in which way: `5 done, 1 failed, 2 skipped`."""
    drills = sum(case.is_expected_failure for case in result.cases)
    words = []
    for outcome in ORDER:
        if number := result.counts.get(outcome, 0):  # type: ignore[call-overload]
            words.append(f"{number} {outcome.replace('_', ' ')}")
            if outcome == "done" and drills:
                words[-1] += f" ({drills} failed as expected)"
    if missing := result.total - sum(result.counts.values()):
        words.append(f"{missing} missing")
    return ", ".join(words) or "no case"


# The list of suite runs

LIST_COLUMNS = ("suite_run", "suite", "started_ns", "ended_ns", "outcome", "total", *ORDER)


def print_suite_runs(results: Sequence[SuiteResult], format_name: str, console: Console | None = None) -> None:
    """Print suite runs, in the given order, one line each."""
    rows = [
        {
            "suite_run": one.id,
            "suite": one.suite,
            "started_ns": one.started_ns,
            "ended_ns": one.ended_ns,
            "outcome": one.outcome,
            "total": one.total,
            **{outcome: one.counts.get(outcome, 0) for outcome in ORDER},  # type: ignore[call-overload]
        }
        for one in results
    ]
    if format_name == "json":
        print_json(rows)
    elif format_name == "csv":
        print_csv(rows, LIST_COLUMNS)
    else:
        table = table_of(
            ("suite run", "started", "took", "outcome", "cases"),
            (
                (
                    one.id,
                    f"{datetime.fromtimestamp(one.started_ns / 1e9):%Y-%m-%d %H:%M}",
                    "-" if one.took_s is None else duration(one.took_s),
                    one.outcome,
                    counted(one),
                )
                for one in results
            ),
            words=(0, 1, 3, 4),
        )
        print_figures(console or open_console(), table, keys=1)


# One suite run

CASE_COLUMNS = (
    *("suite_run", "case", "outcome", "reason", "run", "trials", "step_s", "step_low_s", "step_high_s"),
    *("tokens_per_second", "efficiency_ratio", "scaling", "baseline_run"),
)


def print_suite(result: SuiteResult, format_name: str, console: Console | None = None) -> None:
    """Print a suite run: what was measured, what failed and why, what did not run and why, and what it took."""
    if format_name == "json":
        print_json(_document(result))
        return
    if format_name == "csv":
        print_csv([_row(result, case) for case in result.cases], CASE_COLUMNS)
        return
    console = console or open_console()
    measured = [case for case in result.cases if case.summary is not None]
    if measured:
        table = table_of(("case", "outcome", "step", "throughput", "efficiency", "run"), words=(0, 1, 5))
        for case in measured:
            table.add_row(case.name, case.words, *_figures(case), case.run or "-")
        print_figures(console, table, keys=1)
        console.print()
    if result.levers and measured:
        print_levers(judge_levers(result.levers, result.cases), format_name, console)
        console.print()
    print_words(console, *suite_lines(result))


def suite_lines(result: SuiteResult) -> list[str]:
    """Return what stands below the table of a suite run: failures, cases that did not run, notes, and the total."""
    lines = list(result.preflight)
    lines += [
        f"{case.name}: {case.words}: {case.reason}" for case in result.named("failed", "timed_out", "interrupted")
    ]
    lines += [f"{case.name}: {case.words}: {case.reason}" for case in result.cases if case.is_expected_failure]
    reasons: dict[tuple[str, str | None], list[str]] = {}
    for case in result.named("skipped", "left_out"):
        reasons.setdefault((case.words, case.reason), []).append(case.name)
    lines += [f"{words}: {', '.join(names)}: {reason}" for (words, reason), names in reasons.items()]
    if missing := [case.name for case in result.named(None)]:
        lines.append(f"missing: {', '.join(missing)}")
    for case in result.cases:
        notes = () if case.summary is None else case.summary.notes
        lines += [f"{case.name}: {note}" for note in notes if note.startswith("scaling efficiency is absent")]
    figures: list[Estimate | EstimatedRatio] = []
    for case in result.cases:
        if case.summary is not None:
            figures += _shown(case.summary)
            figures += [found.ratio for found in case.summary.scaling]
    lines += wide_interval_notes(figures, is_suite=True)
    took = "" if result.took_s is None else f", in {duration(result.took_s)}"
    lines.append(f"suite {result.suite}, {result.id}: {result.outcome}: {counted(result)}{took}")
    if result.folder is None:
        lines.append("its folder is not on this machine: only cases that ran are listed")
    return lines


def _shown(summary: Summary) -> list[Estimate]:
    """Return the estimates whose figures the table shows."""
    metrics = (RUN_STEP_SECONDS, RUN_TOKENS_PER_SECOND)
    return [found for metric in metrics for found in of_metric(summary.estimates, metric)[:1]]


def _figures(case: CaseResult) -> tuple[str, str, str]:
    """Return the step, the throughput and the scaling efficiency for people."""
    if case.summary is None:
        return "-", "-", "-"
    step = of_metric(case.summary.estimates, RUN_STEP_SECONDS)
    efficiency = " ".join(f"{percent(found.ratio)} {found.scaling}" for found in case.summary.scaling)
    return figure(step[0]) if step else "-", headline(case.summary), efficiency or "-"


def _row(result: SuiteResult, case: CaseResult) -> dict[str, object]:
    """Return a case as a row of CSV."""
    row: dict[str, object] = {
        "suite_run": result.id,
        "case": case.name,
        "outcome": case.outcome,
        "reason": case.reason,
        "run": case.run,
    }
    if case.summary is None:
        return row
    row["trials"] = case.summary.trials_done
    for step in of_metric(case.summary.estimates, RUN_STEP_SECONDS)[:1]:
        row |= {"step_s": step.median, "step_low_s": step.low, "step_high_s": step.high}
    for rate in of_metric(case.summary.estimates, RUN_TOKENS_PER_SECOND)[:1]:
        row["tokens_per_second"] = rate.median
    for found in case.summary.scaling[:1]:
        row |= {
            "efficiency_ratio": found.ratio.value,
            "scaling": found.scaling,
            "baseline_run": found.baseline_run,
        }
    return row


def _document(result: SuiteResult) -> dict[str, Any]:
    """Return a suite run as JSON's values, with the whole summary of each case."""
    return {
        "suite_run": result.id,
        "suite": result.suite,
        "outcome": result.outcome,
        "started_ns": result.started_ns,
        "ended_ns": result.ended_ns,
        "took_s": result.took_s,
        "total": result.total,
        "counts": dict(result.counts),
        "preflight": list(result.preflight),
        "levers": lever_rows(judge_levers(result.levers, result.cases)),
        "cases": [
            {
                "case": case.name,
                "outcome": case.outcome,
                "is_expected_failure": case.is_expected_failure,
                "reason": case.reason,
                "run": case.run,
                "summary": None if case.summary is None else msgspec.to_builtins(case.summary),
            }
            for case in result.cases
        ],
    }
