"""Suite runs as tables, JSON and CSV: the list of suite runs, one suite run with all its cases, and its levers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console

from bench.report.format import digits, duration, figure, grouped, percent, wide_interval_notes
from bench.report.run.run_rows import headline
from bench.report.table import Block, Table, write
from bench.results.estimate import Estimate, EstimatedRatio, of_metric
from bench.suite.levers import Judgement, judge_levers
from bench.suite.results import CaseResult, SuiteResult
from collectors.metrics.results import RUN_STEP_SECONDS, RUN_TOKENS_PER_SECOND
from workloads.core.precision_options import WEIGHTS

ORDER = ("done", "failed", "timed_out", "interrupted", "skipped", "left_out", "dropped")
"""Outcomes of cases, in the order in which reports count them."""


def counted(result: SuiteResult) -> str:
    """Return the number of cases with each outcome: `5 done, 1 failed, 2 skipped`."""
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
            "suite_run": result.id,
            "suite": result.suite,
            "started_ns": result.started_ns,
            "ended_ns": result.ended_ns,
            "outcome": result.outcome,
            "total": result.total,
            **{outcome: result.counts.get(outcome, 0) for outcome in ORDER},  # type: ignore[call-overload]
        }
        for result in results
    ]
    cells = [
        (
            result.id,
            f"{datetime.fromtimestamp(result.started_ns / 1e9):%Y-%m-%d %H:%M}",
            "-" if result.took_s is None else duration(result.took_s),
            result.outcome,
            counted(result),
        )
        for result in results
    ]
    table = Table(("suite run", "started", "took", "outcome", "cases"), cells, words=(0, 1, 3, 4), keys=1)
    write(format_name, [table], lambda: rows, rows, LIST_COLUMNS, console)


# One suite run

CASE_COLUMNS = (
    *("suite_run", "case", "outcome", "reason", "run", "trials", "step_s", "step_low_s", "step_high_s"),
    *("tokens_per_second", "efficiency_ratio", "scaling", "baseline_run"),
)


def print_suite(result: SuiteResult, format_name: str, console: Console | None = None) -> None:
    """Print a suite run: results, failures with their causes, cases that did not run and why, and the time it took."""
    write(
        format_name,
        _page(result),
        lambda: _document(result),
        (_row(result, case) for case in result.cases),
        CASE_COLUMNS,
        console,
    )


def _page(result: SuiteResult) -> Iterator[Block]:
    rows = []
    for case in result.cases:
        if (summary := case.summary) is not None:
            step = of_metric(summary.estimates, RUN_STEP_SECONDS)
            efficiency = " ".join(f"{percent(each.ratio)} {each.scaling}" for each in summary.scaling)
            figures = (figure(next(iter(step), None)), headline(summary), efficiency or "-")
            rows.append((case.name, case.words, *figures, case.run or "-"))
    if rows:
        yield Table(("case", "outcome", "step", "throughput", "efficiency", "run"), rows, words=(0, 1, 5), keys=1)
        yield ""
    if result.levers and rows:
        yield from _levers(judge_levers(result.levers, result.cases))
        yield ""
    yield from suite_lines(result)


def suite_lines(result: SuiteResult) -> list[str]:
    """Return the lines below the table of a suite run: failures, cases that did not run, notes, and the total."""
    lines = list(result.preflight)
    lines += [
        f"{case.name}: {case.words}: {case.reason}" for case in result.named("failed", "timed_out", "interrupted")
    ]
    lines += [f"{case.name}: {case.words}: {case.reason}" for case in result.cases if case.is_expected_failure]
    reasons = grouped(((case.words, case.reason), case.name) for case in result.named("skipped", "left_out", "dropped"))
    lines += [f"{words}: {', '.join(names)}: {reason}" for (words, reason), names in reasons.items()]
    if missing := [case.name for case in result.named(None)]:
        lines.append(f"missing: {', '.join(missing)}")
    figures: list[Estimate | EstimatedRatio] = []
    for case in result.cases:
        if (summary := case.summary) is not None:
            absent = "scaling efficiency is absent"
            lines += [f"{case.name}: {note}" for note in summary.notes if note.startswith(absent)]
            for metric in (RUN_STEP_SECONDS, RUN_TOKENS_PER_SECOND):
                figures += of_metric(summary.estimates, metric)[:1]
            figures += [each.ratio for each in summary.scaling]
    lines += wide_interval_notes(figures, is_suite=True)
    lines += _weights_lines(result)
    took = "" if result.took_s is None else f", in {duration(result.took_s)}"
    lines.append(f"suite {result.suite}, {result.id}: {result.outcome}: {counted(result)}{took}")
    if result.folder is None:
        lines.append("its folder is not on this machine: only cases that ran are listed")
    return lines


def _weights_lines(result: SuiteResult) -> list[str]:
    """Return a line if bf16 cases store weights differently, because their throughputs are then not comparable."""
    names = grouped(
        (str(WEIGHTS.of(case.summary.case)), case.name)
        for case in result.cases
        if case.summary is not None and case.summary.case.model is not None and case.summary.case.precision == "bf16"
    )
    if len(names) < 2:
        return []
    sides = "; ".join(f"{weights}: {', '.join(of_weights)}" for weights, of_weights in names.items())
    return [f"in bf16, cases have different weights, so compare throughputs only within {sides}"]


def _row(result: SuiteResult, case: CaseResult) -> dict[str, object]:
    """Return a case as a CSV row."""
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
    for efficiency in case.summary.scaling[:1]:
        row |= {
            "efficiency_ratio": efficiency.ratio.value,
            "scaling": efficiency.scaling,
            "baseline_run": efficiency.baseline_run,
        }
    return row


def _document(result: SuiteResult) -> dict[str, Any]:
    """Return a suite run as a document for JSON, with the whole summary of each case."""
    return {
        "suite_run": result.id,
        "suite": result.suite,
        "outcome": result.outcome,
        "started_ns": result.started_ns,
        "ended_ns": result.ended_ns,
        "took_s": result.took_s,
        "total": result.total,
        "counts": result.counts,
        "preflight": result.preflight,
        "levers": lever_rows(judge_levers(result.levers, result.cases)),
        "cases": [
            {
                "case": case.name,
                "outcome": case.outcome,
                "is_expected_failure": case.is_expected_failure,
                "reason": case.reason,
                "run": case.run,
                "summary": case.summary,
            }
            for case in result.cases
        ],
    }


# Levers: claims, measured values and verdicts

LEVER_COLUMNS = (
    *("lever", "off", "on", "metric", "labels", "off_median", "on_median", "ratio", "ratio_low", "ratio_high"),
    *("claimed_low", "claimed_high", "verdict", "reason", "claim"),
)


def print_levers(judgements: Sequence[Judgement], format_name: str, console: Console | None = None) -> None:
    """Print each claim with its verdict; a table also says why a claim is unsure or cannot be judged."""
    rows = lever_rows(judgements)
    page = _levers(judgements)
    write(format_name, page, lambda: rows, rows, LEVER_COLUMNS, console)


def lever_rows(judgements: Sequence[Judgement]) -> list[dict[str, object]]:
    """Return the judgements as rows for JSON and CSV; a claim that cannot be judged has no verdict."""
    return [
        {
            "lever": judged.lever.name,
            "off": judged.lever.off,
            "on": judged.lever.on,
            "metric": judged.claim.metric,
            "labels": judged.claim.labels,
            "off_median": None if judged.off is None else judged.off.median,
            "on_median": None if judged.on is None else judged.on.median,
            "ratio": None if judged.ratio is None else judged.ratio.value,
            "ratio_low": None if judged.ratio is None else judged.ratio.low,
            "ratio_high": None if judged.ratio is None else judged.ratio.high,
            "claimed_low": judged.claim.low,
            "claimed_high": judged.claim.high,
            "verdict": judged.verdict,
            "reason": judged.reason,
            "claim": judged.claim.text,
        }
        for judged in judgements
    ]


def _levers(judgements: Sequence[Judgement]) -> Iterator[Block]:
    rows = [
        (
            judged.lever.name,
            figure(judged.off),
            figure(judged.on),
            "-" if judged.ratio is None else _times(judged.ratio),
            _between(judged.claim.low, judged.claim.high),
            judged.verdict or "absent",
            judged.claim.text,
        )
        for judged in judgements
    ]
    yield Table(("lever", "off", "on", "on / off", "claimed", "verdict", "claim"), rows, words=(0, 5, 6), keys=1)
    reasons = grouped(((judged.verdict or "absent", judged.reason), judged.lever.name) for judged in judgements)
    yield from (f"{verdict}: {', '.join(names)}: {why}" for (verdict, why), names in reasons.items() if why is not None)


def _times(ratio: EstimatedRatio) -> str:
    """Return the ratio for display: `1.35 [1.28, 1.41]`."""
    if ratio.low is None or ratio.high is None:
        return digits(ratio.value)
    return f"{digits(ratio.value)} {_between(ratio.low, ratio.high)}"


def _between(low: float, high: float) -> str:
    return f"[{digits(low)}, {digits(high)}]"
