"""Alerts on verdicts of the gate: figures of a suite that are worse, and cases that its newest night lacks.

A figure is told by what it measures: suite, case, ranks, hardware, series and its name. Which node or pod shows it is
no part of it, so that a DaemonSet rolled out, another node each night or two exporters of one store are one alert. Of
all that show a figure those count that show its newest night; what nobody shows any more stands for a while.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectors.metrics import gate
from collectors.metrics.metric import Metric
from dashboards import promql
from dashboards.alerts.told import Told
from dashboards.model import Alert, Group, Recording, Severity
from dashboards.thresholds import Gate, Thresholds

_FIGURE = tuple(label for label in gate.VERDICT.labels if label != "verdict")

_newest = promql.recorded(gate.VERDICT_NIGHT, "newest")
_standing = promql.recorded(gate.VERDICT, "standing")
_change = promql.recorded(gate.VERDICT_CHANGE, "standing")

_night = promql.recorded(gate.SUITE_NIGHT, "newest")
_SUITE = ("suite",)
_DASHBOARD = "nightly"
KEEP_MINUTES = 10
"""How long an alert outlasts a verdict on an old night, of which nothing is remembered while an exporter restarts."""


def _remembered_newest(timestamp: Metric, record: str, limits: Gate, *, by: Sequence[str]) -> Recording:
    """Return the newest time that anybody shows, or that somebody showed and that is not old."""
    before = promql.remembered(record)
    shown_before = promql.where(before, promql.younger(before, limits.remembered_hours))
    return Recording(
        record=record, expression=promql.largest(promql.either(promql.past(timestamp), shown_before), by=by)
    )


def _recordings(limits: Gate) -> tuple[Recording, ...]:
    shown_by = promql.same(promql.select(gate.VERDICT_NIGHT), _newest, on=_FIGURE)
    shown_where = (*_FIGURE, *promql.SCRAPE_LABELS)
    nights = promql.product(promql.select(gate.VERDICT), promql.select(gate.VERDICT_NIGHT), on=shown_where)
    change = promql.where(promql.select(gate.VERDICT_CHANGE), shown_by, on=shown_where)
    return (
        _remembered_newest(gate.VERDICT_NIGHT, _newest, limits, by=_FIGURE),
        # The value is the time of the night, by which a verdict that is remembered is known to be the newest.
        Recording(
            record=_standing,
            expression=promql.either(
                promql.largest(promql.same(f"({nights})", _newest, on=_FIGURE), by=gate.VERDICT.labels),
                promql.unless(promql.same(promql.remembered(_standing), _newest, on=_FIGURE), shown_by, on=_FIGURE),
            ),
        ),
        Recording(
            record=_change,
            expression=promql.either(
                promql.largest(change, by=_FIGURE),
                promql.unless(promql.where(promql.remembered(_change), _newest, on=_FIGURE), shown_by, on=_FIGURE),
            ),
        ),
        _remembered_newest(gate.SUITE_NIGHT, _night, limits, by=_SUITE),
    )


def _summary(told: Told) -> str:
    return (
        told.begin
        + "{{ $labels.case }} on {{ $labels.ranks }} ranks: {{ $labels.figure }}"
        + told.percent(gate.VERDICT_CHANGE, " %s")
        + told.percent(gate.VERDICT_CHANGE_LOW, " [%s")
        + told.percent(gate.VERDICT_CHANGE_HIGH, ", %s]")
        + told.day(gate.VERDICT_SINCE, " since %s")
        + " (suite {{ $labels.suite }})"
    )


_CAUSE = (
    '{{ $shown := . }}{{ with label "cause" $shown }} Likely cause: {{ . }}.{{ end }}'
    ' Next: `observatory diagnose {{ label "run" $shown }}`'
    '{{ with label "good_run" $shown }}, `observatory compare {{ . }} {{ label "run" $shown }}`{{ end }}.'
)


def _alert(name: str, verdict: str, severity: Severity, sentence: str, limits: Gate) -> Alert:
    """Return the alert on figures of this verdict; its value is their change."""
    told = Told(
        labels=("suite", "case", "series", "figure"),
        time_of=gate.VERDICT_NIGHT,
        remembered_hours=limits.remembered_hours,
    )
    return Alert(
        name=name,
        expression=promql.where(_change, promql.recorded_with(_standing, verdict=verdict), on=_FIGURE),
        hold_minutes=5,
        keep_minutes=KEEP_MINUTES,
        severity=severity,
        component="result",
        summary=_summary(told),
        description=f"{told.begin}{sentence}{told.newest(gate.VERDICT_CAUSE, _CAUSE)}",
        since_hours=limits.remembered_hours,
        dashboard=_DASHBOARD,
    )


_FIGURE_OF_CASE = "{{ $labels.figure }} of {{ $labels.case }} on {{ $labels.hardware }}"


def rules(thresholds: Thresholds) -> Group:
    """Return the rules: what is worse, and by how much, is the gate's own judgement, with no threshold here."""
    limits = thresholds.gate
    return Group(
        name="gate",
        interval_minutes=1,
        recordings=_recordings(limits),
        alerts=(
            _alert(
                "RegressionConfirmed",
                "confirmed",
                "critical",
                f"{_FIGURE_OF_CASE} is worse than before, and later nights agree with the first one.",
                limits,
            ),
            _alert(
                "RegressionFound",
                "regression",
                "warning",
                f"{_FIGURE_OF_CASE} is worse on this night, and more trials of the same night show it, too.",
                limits,
            ),
            _alert(
                "LevelCrept",
                "creep",
                "warning",
                f"{_FIGURE_OF_CASE} is worse than the level that somebody accepted, though each night passed.",
                limits,
            ),
            Alert(
                name="SuiteCaseMissing",
                expression=promql.largest(
                    promql.where(
                        promql.above(promql.select(gate.SUITE_MISSING), 0),
                        promql.same(promql.select(gate.SUITE_NIGHT), _night, on=_SUITE),
                        on=(*_SUITE, *promql.SCRAPE_LABELS),
                    ),
                    by=gate.SUITE_MISSING.labels,
                ),
                hold_minutes=5,
                keep_minutes=KEEP_MINUTES,
                severity="warning",
                component="suite",
                summary=(
                    'The suite {{ $labels.suite }}: {{ $value }} case(s) {{ if eq $labels.kind "vanished" }}'
                    "vanished{{ else }}lack a figure{{ end }}"
                ),
                description=(
                    "In the newest night of the suite {{ $labels.suite }} {{ $value }} case(s) of earlier nights"
                    ' {{ if eq $labels.kind "vanished" }}are missing{{ else }}have no longer all their figures'
                    "{{ end }}. Nobody judges what is not measured. Next: `observatory check --suite"
                    " {{ $labels.suite }}` names them."
                ),
                dashboard=_DASHBOARD,
            ),
        ),
    )
