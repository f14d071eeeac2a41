"""Alerts on a node's host: file systems that become full, and a clock that is wrong or that nothing keeps."""

from __future__ import annotations

from collectors.metrics import host
from dashboards import promql
from dashboards.model import Alert, Group
from dashboards.promql import Match
from dashboards.thresholds import Thresholds

FOLDER = (*promql.SCRAPE_LABELS, "folder")
_DISK = "file system of {{ $labels.folder }} at {{ $labels.instance }}"


def room(**chosen: str | Match) -> str:
    """Return what is available on each file system that is watched, of all."""
    available, total = (host.HOST_FILESYSTEM_BYTES.alone(kind=kind) for kind in ("available", "total"))
    return promql.divide(
        promql.largest(promql.select(available, **chosen), by=FOLDER),
        promql.positive(promql.largest(promql.select(total, **chosen), by=FOLDER)),
    )


def rules(thresholds: Thresholds) -> Group:
    """Return the alerts on hosts."""
    limits = thresholds.host
    full = promql.beneath(room(), limits.full_ratio)
    is_kept = promql.peak(host.HOST_CLOCK_KEPT, limits.window_minutes)
    return Group(
        name="hosts",
        interval_minutes=1,
        recordings=(),
        alerts=(
            Alert(
                name="HostDiskFilling",
                expression=promql.unless(promql.beneath(room(), limits.filling_ratio), full, on=FOLDER),
                hold_minutes=5,
                severity="warning",
                component="host",
                summary=f"The {_DISK} has {{{{ $value | humanizePercentage }}}} left",
                description=(
                    f"On the {_DISK} {{{{ $value | humanizePercentage }}}} is available, of which less than"
                    f" {limits.filling_ratio:.0%} is told. Logs of runs and the history need room: `observatory prune`"
                    " deletes old runs."
                ),
                dashboard="one-host",
            ),
            Alert(
                name="HostDiskFull",
                expression=full,
                hold_minutes=1,
                severity="critical",
                component="host",
                summary=f"The {_DISK} is full: {{{{ $value | humanizePercentage }}}} is left",
                description=(
                    f"On the {_DISK} {{{{ $value | humanizePercentage }}}} is available, less than"
                    f" {limits.full_ratio:.0%}. A trial whose log cannot be written fails: make room now."
                ),
                dashboard="one-host",
            ),
            Alert(
                name="HostClockOff",
                expression=promql.above(
                    promql.magnitude(promql.select(host.HOST_CLOCK_OFFSET_SECONDS)), limits.clock_offset_seconds
                ),
                hold_minutes=limits.window_minutes,
                severity="warning",
                component="host",
                summary="The clock of {{ $labels.instance }} is off by {{ $value | humanizeDuration }}",
                description=(
                    f"For {limits.window_minutes} minutes the kernel of {{{{ $labels.instance }}}} has had more than"
                    f" {limits.clock_offset_seconds:g} s to correct, now {{{{ $value | humanizeDuration }}}}. Times of"
                    " its logs do not compare with other nodes': look at the source of its time."
                ),
                dashboard="one-host",
            ),
            Alert(
                name="HostClockNotKept",
                expression=promql.where(
                    promql.at_least(promql.select(host.HOST_CLOCK_ERROR_SECONDS), limits.clock_error_seconds),
                    promql.equal(is_kept, 0),
                ),
                hold_minutes=0,
                severity="warning",
                component="host",
                summary=(
                    "Nothing keeps the clock of {{ $labels.instance }}:"
                    " it may be off by {{ $value | humanizeDuration }}"
                ),
                description=(
                    f"For {limits.window_minutes} minutes nothing has corrected the clock of"
                    f" {{{{ $labels.instance }}}},"
                    " which may be off by {{ $value | humanizeDuration }} or more. Start chronyd, ntpd or ptp4l with"
                    " phc2sys, and look whether it reaches its source."
                ),
                dashboard="one-host",
            ),
        ),
    )
