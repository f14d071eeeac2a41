"""Judgements on levers as a table, JSON and CSV: what is claimed, what was measured, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from bench.analysis.estimate import EstimatedRatio
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
from bench.suites.levers import Judgement

COLUMNS = (
    *("lever", "off", "on", "metric", "labels", "off_median", "on_median", "ratio", "ratio_low", "ratio_high"),
    *("claimed_low", "claimed_high", "verdict", "reason", "claim"),
)


def print_levers(judgements: Sequence[Judgement], format_name: str, console: Console | None = None) -> None:
    """Print each claim with its verdict; in a table also why a claim is unsure or cannot be judged."""
    if format_name == "json":
        print_json(lever_rows(judgements))
        return
    if format_name == "csv":
        rows = lever_rows(judgements)
        for row, one in zip(rows, judgements, strict=True):
            row["labels"] = ",".join(f"{key}={value}" for key, value in one.claim.labels.items())
        print_csv(rows, COLUMNS)
        return
    console = console or open_console()
    table = table_of(
        ("lever", "off", "on", "on / off", "claimed", "verdict", "claim"),
        (
            (
                one.lever.name,
                "-" if one.off is None else figure(one.off),
                "-" if one.on is None else figure(one.on),
                "-" if one.ratio is None else _times(one.ratio),
                _between(one.claim.low, one.claim.high),
                "absent" if one.verdict is None else one.verdict,
                one.claim.text,
            )
            for one in judgements
        ),
        words=(0, 5, 6),
    )
    print_figures(console, table, keys=1)
    print_words(console, *lever_lines(judgements))


def lever_lines(judgements: Sequence[Judgement]) -> list[str]:
    """Return a line for each reason why a claim is absent or unsure, with the levers that it holds for."""
    levers: dict[tuple[str, str], list[str]] = {}
    for one in judgements:
        if one.reason is not None:
            names = levers.setdefault(("absent" if one.verdict is None else one.verdict, one.reason), [])
            if one.lever.name not in names:
                names.append(one.lever.name)
    return [f"{verdict}: {', '.join(names)}: {reason}" for (verdict, reason), names in levers.items()]


def lever_rows(judgements: Sequence[Judgement]) -> list[dict[str, object]]:
    """Return the judgements as JSON's values; the verdict of a claim that cannot be judged is null."""
    return [
        {
            "lever": one.lever.name,
            "off": one.lever.off,
            "on": one.lever.on,
            "metric": one.claim.metric,
            "labels": dict(one.claim.labels),
            "off_median": None if one.off is None else one.off.median,
            "on_median": None if one.on is None else one.on.median,
            "ratio": None if one.ratio is None else one.ratio.value,
            "ratio_low": None if one.ratio is None else one.ratio.low,
            "ratio_high": None if one.ratio is None else one.ratio.high,
            "claimed_low": one.claim.low,
            "claimed_high": one.claim.high,
            "verdict": one.verdict,
            "reason": one.reason,
            "claim": one.claim.text,
        }
        for one in judgements
    ]


def _times(found: EstimatedRatio) -> str:
    """Return the ratio for people: `1.35 [1.28, 1.41]`."""
    if found.low is None or found.high is None:
        return digits(found.value)
    return f"{digits(found.value)} {_between(found.low, found.high)}"


def _between(low: float, high: float) -> str:
    return f"[{digits(low)}, {digits(high)}]"
