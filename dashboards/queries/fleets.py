"""Choices among the series of a fleet, which has more of them than anybody reads."""

from __future__ import annotations

from collectors.metrics.metric import Metric
from dashboards.model import Worst
from dashboards.promql import Match, select


def topmost(number: int, expression: str) -> str:
    """Keep so many series: those with the largest values. For a table, which is asked of one moment."""
    return f"topk({number}, {expression})"


def standing_out(number: int, expression: str, *, worst: Worst = "highest") -> str:
    """Keep so many series for the whole time range: those with the worst values at its end.

    `topmost` chooses anew at each moment, and so shows many times more over an hour than were asked for.
    """
    chosen = "topk" if worst == "highest" else "bottomk"
    return f"({expression})\nand\n{chosen}({number}, last_over_time(({expression})[1m:15s] @ end()))"


def standing_out_at_any_time(number: int, expression: str, *, worst: Worst = "highest") -> str:
    """Keep so many series for the whole time range: those that reach the worst values within it.

    For what may have ended before the range does. It is evaluated once more, at whole minutes and lately, since what
    has just begun saw no whole minute; `standing_out` chooses among thousands of series in less time.
    """
    extreme, chosen = ("max", "topk") if worst == "highest" else ("min", "bottomk")
    minutes = f"{extreme}_over_time(({expression})[$__range:1m] @ end())"
    lately = f"last_over_time(({expression})[1m:15s] @ end())"
    return f"({expression})\nand\n{chosen}({number}, {minutes}\nor\n{lately})"


def growth_in_view(metric: Metric, **labels: str | Match) -> str:
    """Return a counter's growth over the time range that is looked at, where there is any.

    Raises:
        ValueError: the metric is no counter, or has no such label.
    """
    if metric.kind != "counter":
        raise ValueError(f"{metric.name} is a {metric.kind}; only a counter grows")
    return f"increase({select(metric, **labels)}[$__range]) > 0"


def over_the_range(selector: str) -> str:
    """Return the last value of each series within the time range that is looked at."""
    return f"last_over_time({selector}[$__range])"
