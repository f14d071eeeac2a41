"""A pipeline's bubble and its parts, and what its stages take and hold, as two tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from rich.console import Console
from rich.table import Table

from bench.judgement.bubble import PARTS
from bench.judgement.estimate import Estimate
from bench.reports.console import print_figures
from bench.reports.figures import figure
from bench.summary import Summary
from collectors.catalogue.pipeline import (
    RUN_BUBBLE_PART_RATIO,
    RUN_BUBBLE_RATIO,
    RUN_LIVE_MICROBATCHES,
    RUN_STAGE_ACTIVATION_BYTES,
    RUN_STAGE_SECONDS,
)
from collectors.metric import Metric
from workloads.laws.schedules import ActionKind


def print_pipeline(summary: Summary, console: Console) -> None:
    """Print what is known of the run's pipeline; nothing of a run that has none."""
    for table in (_bubble(summary), _stages(summary)):
        if table.row_count:
            console.print()
            print_figures(console, table, keys=1)


def _bubble(summary: Summary) -> Table:
    table = _table(f"{summary.case.strategy} on {summary.case.ranks}: bubble", "share of the ranks' time")
    accounts = _by_labels(summary, RUN_BUBBLE_RATIO)
    parts = _by_labels(summary, RUN_BUBBLE_PART_RATIO)
    for account in ("measured", "expected"):
        if (account,) in accounts:
            table.add_row(account, figure(accounts[account,]))
        if account == "measured" and accounts:
            for part in PARTS:
                if (part,) in parts:
                    table.add_row(f"  {part.replace('_', ' ')}", figure(parts[part,]))
    return table


def _stages(summary: Summary) -> Table:
    found = _by_labels(summary, RUN_STAGE_SECONDS)
    kinds = [kind for kind in get_args(ActionKind) if any(action == kind for _, action in found)]
    live = _by_labels(summary, RUN_LIVE_MICROBATCHES)
    activations = _by_labels(summary, RUN_STAGE_ACTIVATION_BYTES)
    names = [kind.replace("_", " ") for kind in kinds]
    table = _table("stage", "pipeline rank", *names, "live microbatches", "activations")
    stages = dict.fromkeys(stage for stage, _ in (*found, *live, *activations))
    pipeline = summary.case.card().pipeline(summary.case) if stages else None
    for stage in stages:
        rank = "-" if pipeline is None else str(pipeline.rank_of(int(stage)))
        times = [_cell(found, stage, kind) for kind in kinds]
        table.add_row(stage, rank, *times, _beside_law(live, stage), _beside_law(activations, stage))
    return table


def _beside_law(found: Mapping[tuple[str, ...], Estimate], stage: str) -> str:
    """What was measured, and what the law says behind it."""
    measured, expected = found.get((stage, "measured")), found.get((stage, "expected"))
    words = [] if measured is None else [_figure(measured)]
    if expected is not None:
        words.append(f"law {_figure(expected)}")
    return ", ".join(words) or "-"


def _figure(estimate: Estimate) -> str:
    """A count has no decimals."""
    return f"{estimate.median:g}" if estimate.metric == RUN_LIVE_MICROBATCHES.name else figure(estimate)


def _cell(found: Mapping[tuple[str, ...], Estimate], stage: str, kind: ActionKind) -> str:
    return figure(found[stage, kind]) if (stage, kind) in found else "-"


def _by_labels(summary: Summary, metric: Metric) -> dict[tuple[str, ...], Estimate]:
    return {
        tuple(found.labels[name] for name in metric.labels): found
        for found in summary.estimates
        if found.metric == metric.name
    }


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for other in others:
        table.add_column(other, justify="right", overflow="fold")
    return table
