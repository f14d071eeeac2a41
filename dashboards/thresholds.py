"""Thresholds of the alerts: reads a TOML file and checks its values.

`thresholds.toml` has every value with its unit and its reason; a user's file has only what differs. Knows no alert.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from collectors.settings_file import BadSettings, check, read_document

SCHEMA_VERSION = 1
SHIPPED = Path(__file__).with_suffix(".toml")


# The longest window is twice Prometheus's usual retention; a longer one would query deleted samples.
Seconds = Annotated[int, Meta(ge=1, le=86_400)]
Minutes = Annotated[int, Meta(ge=1, le=1440)]
Hours = Annotated[int, Meta(ge=1, le=720)]
Days = Annotated[int, Meta(ge=1, le=30)]
Ratio = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
ClockSeconds = Annotated[float, Meta(gt=0, le=3600)]
Deviations = Annotated[float, Meta(gt=0, le=100)]
Ranks = Annotated[int, Meta(ge=1, le=1_000_000)]
Xid = Annotated[int, Meta(ge=1, le=999)]
Url = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s{}]*[^\s{}/]$",
        title="a URL that begins with http:// or https:// and does not end with a slash",
    ),
]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9_]+$", title="a name of small letters, digits and _")]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class Links(_Table, frozen=True):
    """Addresses in alerts: Grafana, and the folder of runbooks; None if that is not served."""

    grafana: Url
    runbooks: Url | None = None


class Gate(_Table, frozen=True):
    """How long a verdict that is no longer exported still counts."""

    remembered_hours: Hours


class Efficiency(_Table, frozen=True):
    """When a night's scaling efficiency counts as low."""

    window_days: Days
    least_nights: Annotated[int, Meta(ge=2, le=30)]
    fresh_hours: Hours
    deviations: Deviations
    least_drop_ratio: Ratio
    critical_drop_ratio: Ratio


class Suites(_Table, frozen=True):
    """When a suite counts as late, failed or stalled."""

    late_ratio: Ratio
    missed_days: Days
    news_hours: Hours
    still_minutes: Minutes
    given_up_hours: Hours


class Agents(_Table, frozen=True):
    """When a node's agent counts as gone or late, or its samples as old."""

    remembered_hours: Hours
    missed_ratio: Ratio
    window_minutes: Minutes
    old_seconds: Seconds


class Gpus(_Table, frozen=True):
    """When a GPU counts as lost, faulty or throttled."""

    remembered_hours: Hours
    news_hours: Hours
    application_xids: tuple[Xid, ...]
    node_xids: tuple[Xid, ...]
    window_minutes: Minutes
    braked_ratio: Ratio
    capped_ratio: Ratio


class LinksOfGpus(_Table, frozen=True):
    """When an NVLink or PCIe link counts as faulty. retries, errors: within the window."""

    window_minutes: Minutes
    nvlink_retries: Count
    nvlink_errors: Count
    pcie_retries: Count
    pcie_errors: Count
    pcie_link_ratio: Ratio


class Infiniband(_Table, frozen=True):
    """When an InfiniBand port counts as down or faulty. errors: within the window."""

    remembered_hours: Hours
    window_minutes: Minutes
    errors: Count


class Host(_Table, frozen=True):
    """When a node's disk counts as full, or its clock as wrong."""

    filling_ratio: Ratio
    full_ratio: Ratio
    window_minutes: Minutes
    clock_offset_seconds: ClockSeconds
    clock_error_seconds: ClockSeconds


class Live(_Table, frozen=True):
    """When an active run counts as slow, waiting, uneven or stalled, and how long a failure is shown."""

    short_minutes: Minutes
    long_minutes: Minutes
    speed_ratio: Ratio
    exposed_ratio: Ratio
    input_ratio: Ratio
    straggler_ratio: Ratio
    compute_excess_ratio: Ratio
    uneven_strategies: tuple[Name, ...]
    fresh_hours: Hours
    still_minutes: Minutes


class AcceptedEfficiency(_Table, frozen=True):
    """The accepted efficiency of a strategy on a device. ranks: None for any number without its own entry."""

    strategy: Name
    device: Literal["cuda", "cpu"]
    scaling: Literal["weak", "strong"]
    ratio: Ratio
    ranks: Ranks | None = None


class Thresholds(_Table, frozen=True):
    """All thresholds; one table for each group of alerts."""

    schema_version: Annotated[int, Meta(ge=1, le=SCHEMA_VERSION)]
    links: Links
    gate: Gate
    efficiency: Efficiency
    suites: Suites
    agents: Agents
    gpus: Gpus
    links_of_gpus: LinksOfGpus
    infiniband: Infiniband
    host: Host
    live: Live
    accepted_efficiency: tuple[AcceptedEfficiency, ...]


def shipped() -> Thresholds:
    """Return the thresholds that come with this program."""
    return changed_by({}, SHIPPED.name)


def changed_by(changes: Mapping[str, Any], file: str) -> Thresholds:
    """Return the shipped thresholds, overridden by those of a user's file.

    changes: the file's document. file: its name, for messages. Its `accepted_efficiency` replaces all shipped entries.

    Raises:
        BadSettings: a key is unknown, has another type or is out of range, or the file is from a newer program.
    """
    values = read_document(SHIPPED)
    for key, value in changes.items():
        of_ours = values.get(key)
        values[key] = {**of_ours, **value} if isinstance(of_ours, dict) and isinstance(value, dict) else value
    thresholds = check(values, Thresholds, file)
    _check_entries(thresholds.accepted_efficiency, file)
    return thresholds


def _check_entries(entries: tuple[AcceptedEfficiency, ...], file: str) -> None:
    """Refuse two entries for the same results, because it would be unclear which one counts."""
    known = set()
    for number, entry in enumerate(entries, 1):
        measured = (entry.strategy, entry.device, entry.scaling, entry.ranks)
        if measured in known:
            raise BadSettings(
                f"{file}: accepted_efficiency {number}: there is an entry for {entry.strategy} on {entry.device}"
                f" ({entry.scaling}) already; keep one, or give them different ranks"
            )
        known.add(measured)
