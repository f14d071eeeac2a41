"""Reports the score of stored predictions, for people, as JSON and as CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.analysis.prediction.scoring.score import LEAST_RUNS_OF_COVERAGE, Figure, Score, Spread, score_history
from bench.errors import plural
from bench.report.format import digits, whole_percent
from bench.report.table import Block, Table, write
from bench.store.history import History
from bench.store.prediction import COVERAGE, MODEL_VERSION, PARTS
from workloads.cost_models.absent import Absent
from workloads.cost_models.shape import Shape

SCORE_COLUMNS = ("strategy", "ranks", "part", "runs", "clusters", "median", "low", "high")
"""Columns of CSV, with a row for each strategy, world size and part."""


def print_score(history: History, format_name: str) -> None:
    """Score the predictions of the history, and print the result in the requested format.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    result = score_history(history)
    write(format_name, score_page(result), lambda: score_json(result), score_rows(result), SCORE_COLUMNS)


def score_page(result: Score) -> Iterator[Block]:
    """Yield errors by strategy and world size, bias, coverage, orders, and the runs that were left out."""
    if not result.runs:
        yield "no run of the history can be scored: none has a stored prediction of its step and ended well"
        yield from _left_out(result)
        yield (
            "a step is predicted where `observatory run matmul`, `copies` and `collectives` were measured before it,"
            " each on as many ranks"
        )
        return
    yield f"{plural(result.runs, 'run')} on {plural(result.clusters, 'independent calibration')}"
    yield ""
    rows = [
        [
            group.strategy,
            str(group.ranks),
            str(group.runs),
            str(group.clusters),
            *(_spread_words(group.parts.get(part)) for part in PARTS),
        ]
        for group in result.groups
    ]
    columns = ("strategy", "ranks", "runs", "calibrations", *PARTS)
    yield Table(columns, rows, keys=2, unbroken=range(2, len(columns)))
    yield (
        "error: (predicted - measured) / measured, of exposed communication and bubble / measured step; median"
        f" [{whole_percent(COVERAGE)} range over runs]"
    )
    yield ""
    yield from _bias_lines(result.bias)
    yield from _coverage_lines(result.coverage)
    yield ""
    if result.orders:
        cells = [
            [
                _shape(order.shape),
                order.hardware,
                "in it" if order.has_host else "left out",
                str(order.cases),
                "-" if isinstance(order.tau, Absent) else f"{order.tau:z.2f}",
            ]
            for order in result.orders
        ]
        yield Table(("shape", "hardware", "host's time", "cases", "tau"), cells, words=(0, 1, 2), unbroken=(2, 3, 4))
        yield "host's time: predictions with it and without it are ordered apart"
        yield "tau: 1 if the cases of one shape are fastest to slowest as predicted, 0 as by chance, -1 if reversed"
    yield from _left_out(result)


def _shape(shape: Shape) -> str:
    return f"{shape.layers} layers of {shape.width}, sequence {shape.sequence}, batch {shape.batch}"


def _left_out(result: Score) -> Iterator[str]:
    for reason, count in result.left_out.items():
        yield f"left out: {plural(count, 'run')} {reason}"


def _spread_words(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    ends = f" [{100 * spread.low:+z.1f}, {100 * spread.high:+z.1f}]" if spread.runs > 1 else ""
    return f"{100 * spread.median:+z.1f} %{ends}"


def _bias_lines(bias: Figure | None) -> Iterator[str]:
    if bias is None:
        return
    ends = "" if bias.low is None or bias.high is None else f" [{digits(bias.low)}, {digits(bias.high)}]"
    why = f"; {bias.why_no_interval}" if bias.why_no_interval else ""
    yield f"bias: predicted steps are {digits(bias.value)}{ends} times the measured ones (geometric mean){why}"


def _coverage_lines(coverage: Figure | None) -> Iterator[str]:
    if coverage is None:
        yield "coverage: no prediction has a range; calibrate with `--trials 3` or more"
        return
    hits = round(coverage.value * coverage.runs)
    ends = ""
    if coverage.low is not None and coverage.high is not None:
        ends = f" [{100 * coverage.low:.0f}, {100 * coverage.high:.0f}]"
    why = f"; {coverage.why_no_interval}" if coverage.why_no_interval else ""
    yield (
        f"coverage: {hits} of {plural(coverage.runs, 'range')} hold the measured step:"
        f" {whole_percent(coverage.value)}{ends},"
        f" {whole_percent(COVERAGE)} or more intended; worth {digits(coverage.effective_runs)} independent runs{why}"
    )
    if coverage.runs < LEAST_RUNS_OF_COVERAGE:
        yield f"{plural(coverage.runs, 'run')} are too few to judge coverage by; {LEAST_RUNS_OF_COVERAGE} are needed"


def score_json(result: Score) -> dict[str, Any]:
    return {
        "model_version": MODEL_VERSION,
        "runs": result.runs,
        "calibrations": result.clusters,
        "left_out": dict(result.left_out),
        "groups": [
            {
                "strategy": group.strategy,
                "ranks": group.ranks,
                "runs": group.runs,
                "calibrations": group.clusters,
                "errors": {part: group.parts.get(part) for part in PARTS},
            }
            for group in result.groups
        ],
        "bias": result.bias,
        "coverage": result.coverage,
        "intended_coverage": COVERAGE,
        "is_coverage_judged": result.coverage is not None and result.coverage.runs >= LEAST_RUNS_OF_COVERAGE,
        "orders": [
            {
                "shape": order.shape,
                "hardware": order.hardware,
                "has_host": order.has_host,
                "cases": order.cases,
                "tau": None if isinstance(order.tau, Absent) else order.tau,
                "reason": order.tau.reason if isinstance(order.tau, Absent) else None,
            }
            for order in result.orders
        ],
    }


def score_rows(result: Score) -> Iterator[dict[str, object]]:
    """Yield a CSV row for each strategy, world size and part that has an error."""
    for group in result.groups:
        for part, spread in group.parts.items():
            yield {
                "strategy": group.strategy,
                "ranks": group.ranks,
                "part": part,
                "runs": spread.runs,
                "clusters": group.clusters,
                "median": spread.median,
                "low": spread.low,
                "high": spread.high,
            }
