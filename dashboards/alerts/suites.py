"""Alerts on suites: one that did not begin in time, a case of one that failed, one that stands still.

A suite is told by its name, whoever ran it and whoever shows it: where a scheduler draws another node each night, the
newest start counts, and several exporters of one store are one alert. Runs are told by their ids, so that another
node's good run hides no failure.
"""

from __future__ import annotations

from collectors.metrics import suites
from dashboards import promql
from dashboards.model import Alert, Group, Recording
from dashboards.thresholds import Thresholds

FAILURES = ("failed", "timed_out", "interrupted", "missing")
_SUITE = ("suite",)
_SUITE_RUN = ("suite", "run")

_started = promql.recorded(suites.SUITE_LAST_START, "newest")
_period = promql.recorded(suites.SUITE_PERIOD, "newest")
_progress = promql.largest(promql.select(suites.SUITE_LAST_PROGRESS), by=_SUITE_RUN)

_SHOWN = 3
"""Failed cases that a text names; `observatory suite show` names all."""


def _each_failed(shown: str) -> str:
    """Return a template for each of the first cases that failed, with the text of it; its dot has the case's labels."""
    one_each = promql.largest(f"{suites.SUITE_CASE_FAILURE.name}%s", by=("case", "case_run", "rank", "cause"))
    return (
        '{{ $of := printf "{suite=%q,run=%q,outcome=%q}" $labels.suite $labels.run $labels.outcome }}'
        f'{{{{ with query (printf "{one_each}" $of) }}}}{{{{ range $place, $one := . | sortByLabel "case" }}}}'
        f"{{{{ if lt $place {_SHOWN} }}}}{{{{ with $one.Labels }}}}{shown}{{{{ end }}}}{{{{ end }}}}{{{{ end }}}}"
        f"{{{{ if gt (len .) {_SHOWN} }}}} ...{{{{ end }}}}{{{{ end }}}}"
    )


_FAILED_BRIEFLY = _each_failed(
    "{{ if $place }},{{ else }}:{{ end }} {{ .case }}{{ with .rank }} (rank {{ . }}){{ end }}"
)
_FAILED_CASES = _each_failed(
    " {{ .case }}: {{ with .cause }}{{ . }}{{ else }}cause unknown{{ end }} (`observatory show {{ .case_run }}`)."
)


def rules(thresholds: Thresholds) -> Group:
    """Return the alerts on suites, and what they remember of suites that nobody shows any more."""
    limits = thresholds.suites
    late = promql.times(1 + limits.late_ratio, _period)
    return Group(
        name="suites",
        interval_minutes=1,
        recordings=(
            # What nobody shows any more is remembered: the last start, and the period unless somebody shows the suite.
            Recording(
                record=_started,
                expression=promql.largest(
                    promql.either(
                        promql.past(suites.SUITE_LAST_START),
                        promql.where(
                            promql.remembered(_started),
                            promql.younger(promql.remembered(_started), 24 * limits.missed_days),
                        ),
                    ),
                    by=_SUITE,
                ),
            ),
            Recording(
                record=_period,
                expression=promql.largest(
                    promql.either(
                        promql.select(suites.SUITE_PERIOD),
                        promql.where(
                            promql.unless(
                                promql.remembered(_period), promql.select(suites.SUITE_LAST_START), on=_SUITE
                            ),
                            _started,
                            on=_SUITE,
                        ),
                    ),
                    by=_SUITE,
                ),
            ),
        ),
        alerts=(
            Alert(
                name="SuiteNotRun",
                expression=promql.exceeds(promql.age(_started), late, on=_SUITE),
                hold_minutes=5,
                severity="warning",
                component="suite",
                summary="The suite {{ $labels.suite }} did not run: it began last {{ $value | humanizeDuration }} ago",
                description=(
                    "The suite {{ $labels.suite }} began last {{ $value | humanizeDuration }} ago, which is its period"
                    " and"
                    f" {limits.late_ratio:.0%} of it, or more. Nothing else is told of what it would have measured."
                ),
                since_hours=24 * limits.missed_days,
                dashboard="nightly",
            ),
            Alert(
                name="SuiteCaseFailed",
                expression=promql.largest(
                    promql.where(
                        promql.above(promql.select(suites.SUITE_LAST_CASES, outcome=promql.one_of(*FAILURES)), 0),
                        promql.either(
                            promql.younger(_progress, limits.news_hours),
                            promql.below(promql.age(_progress), late, on=_SUITE),
                        ),
                        on=_SUITE_RUN,
                    ),
                    by=(*_SUITE_RUN, "outcome"),
                ),
                hold_minutes=0,
                severity="warning",
                component="suite",
                summary="{{ $value }} case(s) of the suite {{ $labels.suite }}: {{ $labels.outcome }}",
                description=(
                    "In the run {{ $labels.run }} of the suite {{ $labels.suite }}, {{ $value }} case(s) ended as"
                    " {{ $labels.outcome }}. The others of the run are not touched by that. Next:"
                    " `observatory suite show {{ $labels.run }}`, then"
                    " `observatory suite run {{ $labels.suite }} --resume {{ $labels.run }} --repeat-failed`."
                ),
                asked_summary=_FAILED_BRIEFLY,
                asked_description=_FAILED_CASES,
                since_hours=max(limits.news_hours, 24 * limits.missed_days),
                dashboard="nightly",
            ),
            Alert(
                name="SuiteStalled",
                expression=promql.where(
                    promql.above(promql.age(_progress), 60 * limits.still_minutes),
                    # A runner may have died long ago, and nobody care for the rest of its suite.
                    promql.younger(_progress, limits.given_up_hours),
                    promql.select(suites.SUITE_LAST_CASES, outcome="running"),
                    on=_SUITE_RUN,
                ),
                hold_minutes=2,
                severity="warning",
                component="suite",
                summary="The suite {{ $labels.suite }} stands still for {{ $value | humanizeDuration }}",
                description=(
                    "The run {{ $labels.run }} of the suite {{ $labels.suite }} has not ended, and no rank of it"
                    " finished a step for {{ $value | humanizeDuration }}. It hangs, or what ran it has died."
                ),
                since_hours=limits.given_up_hours,
                dashboard="nightly",
            ),
        ),
    )
