"""Settings of the stack, in the form of `stack.toml`: ports, intervals and retention."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from bench.errors import Misuse
from dashboards.thresholds import shipped

SCHEMA_VERSION = 1

Port = Annotated[int, Meta(ge=1, le=65535)]
Days = Annotated[int, Meta(ge=1, le=3650)]
MOST_SCRAPE_S = 120
_SCRAPE = f"1 to {MOST_SCRAPE_S}: dashboards and rules look back 5 minutes and need two scrapes in that time"


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class PrometheusSettings(_Table, frozen=True):
    """Where Prometheus listens, how often it scrapes, and how long it keeps samples."""

    port: Port = 9090
    scrape_seconds: Annotated[int, Meta(ge=1, le=MOST_SCRAPE_S, title=_SCRAPE)] = 15
    retention_days: Days = 30


class AlertmanagerSettings(_Table, frozen=True):
    """Where Alertmanager listens."""

    port: Port = 9093


class GrafanaSettings(_Table, frozen=True):
    """Where Grafana listens."""

    port: Port = 3000


class AgentSettings(_Table, frozen=True):
    """Where this node's own agent listens."""

    port: Port = 9464


class DemoSettings(_Table, frozen=True):
    """Where the demonstration listens."""

    port: Port = 9465


class StackSettings(_Table, frozen=True):
    """All settings; one table for each server."""

    schema_version: Annotated[int, Meta(ge=1, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    prometheus: PrometheusSettings = PrometheusSettings()
    alertmanager: AlertmanagerSettings = AlertmanagerSettings()
    grafana: GrafanaSettings = GrafanaSettings()
    agent: AgentSettings = AgentSettings()
    demo: DemoSettings = DemoSettings()


def looks_back_days() -> int:
    """Return how many days the rules look back: the nights that a result is compared with, and the day before them."""
    return shipped().efficiency.window_days + 1


def check(settings: StackSettings, file: str) -> None:
    """Refuse settings that contradict each other, or the rules. file: the file's name, for messages.

    Raises:
        Misuse: two servers have the same port, or the retention is shorter than the rules look back.
    """
    owners: dict[int, str] = {}
    for name in ("prometheus", "alertmanager", "grafana", "agent", "demo"):
        port: int = getattr(settings, name).port
        if port in owners:
            raise Misuse(f"{file}: {owners[port]}.port and {name}.port are both {port}; change one of them")
        owners[port] = name
    if settings.prometheus.retention_days < (least := looks_back_days()):
        raise Misuse(
            f"{file}: prometheus.retention_days is {settings.prometheus.retention_days}, and the rules look back"
            f" {least} days; give {least} or more"
        )
