"""What a recording rule, an alert and a group of them are, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A series that Prometheus computes and keeps under a name."""

    record: str
    expression: str
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """When to tell somebody, and what they should do.

    hold_minutes: how long the expression must be true before anybody is told.
    summary, description: Prometheus fills in `{{ $labels.x }}` and `{{ $value }}`.
    runbook: a page of ours, from the repository's root.
    """

    name: str
    expression: str
    hold_minutes: int
    severity: str
    summary: str
    description: str
    runbook: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rules that are evaluated together, in order; recordings come first."""

    name: str
    interval_minutes: int
    recordings: tuple[Recording, ...]
    alerts: tuple[Alert, ...]
