"""Recording rules and alerts, as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

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
    asked_summary, asked_description: what follows them where Prometheus evaluates the alert; they ask for further
    series, which Grafana's own rules cannot.
    dashboard: the name of the one to look at first. since_hours: how long ago what it is about may have happened.
    """

    name: str
    expression: str
    hold_minutes: int
    severity: Severity
    component: Component
    summary: str
    description: str
    dashboard: str
    asked_summary: str = ""
    asked_description: str = ""
    since_hours: int = 1
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
