"""Dashboards with their panels and queries, recording rules and alerts, as plain data.

Knows neither PromQL nor Grafana's own types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from collectors.metrics.metric import Metric

# Rules of Prometheus.

Severity = Literal["critical", "warning"]
"""critical: somebody must act now. warning: somebody should look on the next working day."""
Component = Literal["agent", "gpu", "host", "link", "result", "run", "suite"]
"""What is broken, for Alertmanager's routes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A series that Prometheus computes and keeps under a name."""

    record: str
    expression: str
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """When to tell somebody, and what they should do.

    hold_minutes: how long the expression must be true before the alert fires.
    keep_minutes: how long it goes on firing when the expression is true no more; Prometheus 2.42 or later.
    summary, description: Prometheus fills in `{{ $labels.x }}` and `{{ $value }}`.
    dashboard: the name of the one to look at first.
    """

    name: str
    expression: str
    hold_minutes: int
    severity: Severity
    component: Component
    summary: str
    description: str
    dashboard: str
    keep_minutes: int = 0

    @property
    def runbook(self) -> str:
        """The file name of its page in docs/runbooks/: `node-agent-gone.md` for NodeAgentGone."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", self.name).lower() + ".md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rules that are evaluated together, in order; recordings come first."""

    name: str
    interval_minutes: int
    recordings: tuple[Recording, ...]
    alerts: tuple[Alert, ...]


# Dashboards.

Bound = Literal["median", "low", "high"]
Worst = Literal["highest", "lowest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression and the names of its series.

    metric: what it shows; unit and definition come from there.
    unit: differs from the metric's where the expression changes it, as a rate does.
    bound: which end of an interval it is, or its median; None where there is no interval.
    """

    metric: Metric
    expression: str
    legend: str
    unit: str
    bound: Bound | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One question within a dashboard's question.

    worst: which end is worst, and so stands first in the legend.
    goes_below_zero: whether the axis may; otherwise it begins at zero.
    """

    title: str
    queries: tuple[Query, ...]
    worst: Worst
    goes_below_zero: bool = False

    def __post_init__(self) -> None:
        units = sorted({query.unit for query in self.queries})
        if len(units) != 1:
            raise ValueError(
                f'panel "{self.title}" has the units {", ".join(units) or "of no query"}; it must have one'
            )

    @property
    def unit(self) -> str:
        """The unit of all its queries, as metrics name it."""
        return self.queries[0].unit

    @property
    def description(self) -> str:
        """The definition of each metric shown."""
        metrics = {query.metric.name: query.metric for query in self.queries}
        return "\n\n".join(f"`{name}`: {metric.help}" for name, metric in metrics.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A choice at the top of a dashboard; query lists what may be chosen."""

    name: str
    label: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One question, which is the title, and the panels that answer it.

    name: stays when the title changes; the rendered file and Grafana's address are named after it.
    """

    name: str
    title: str
    summary: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]
