"""Panels of lines as all boards draw them: the names of the series beside the lines."""

from __future__ import annotations

from dashboards.model import Query, Steps, TimeSeries, Worst


def lines(
    title: str,
    *queries: Query,
    absent: str,
    worst: Worst = "highest",
    steps: Steps | None = None,
    goes_below_zero: bool = False,
    stacked: bool = False,
    note: str = "",
    width: int = 12,
) -> TimeSeries:
    """Return a panel of these queries; see `TimeSeries`. absent: what is said where none has an answer."""
    return TimeSeries(
        title=title,
        queries=queries,
        worst=worst,
        steps=steps,
        goes_below_zero=goes_below_zero,
        stacked=stacked,
        legend="right",
        note=note,
        absent=absent,
        width=width,
    )
