"""Alerts on the nodes' agents: gone, behind their beat, or without one of their collectors."""

from __future__ import annotations

from collectors.metrics import agent
from dashboards import promql
from dashboards.alerts.told import ranks_when_last
from dashboards.model import Alert, Group
from dashboards.promql import Match
from dashboards.thresholds import Agents, Thresholds

_COLLECTOR = (*promql.SCRAPE_LABELS, "collector")


def gone(limits: Agents, **chosen: str | Match) -> str:
    """Return the targets that do not answer, and at which an agent did within the last hours.

    Prometheus asks listed targets only, so a node that was taken off the list is not missed.
    """
    seen = promql.seen(agent.AGENT_BEATS, over_hours=limits.remembered_hours, **chosen)
    return promql.where(promql.unanswered(), seen, on=promql.SCRAPE_LABELS)


def rules(thresholds: Thresholds) -> Group:
    """Return the alerts on agents."""
    limits = thresholds.agents
    missed = promql.rate(agent.AGENT_MISSED_BEATS, limits.window_minutes)
    beats = promql.plus(promql.rate(agent.AGENT_BEATS, limits.window_minutes), missed)
    age = promql.largest(promql.select(agent.AGENT_AGE_SECONDS), by=_COLLECTOR)
    silent = promql.largest(promql.select(agent.AGENT_COLLECTOR, state=promql.none_of("answering")), by=_COLLECTOR)
    return Group(
        name="agents",
        interval_minutes=1,
        recordings=(),
        alerts=(
            Alert(
                name="NodeAgentGone",
                expression=gone(limits),
                hold_minutes=5,
                severity="critical",
                component="agent",
                summary="{{ $labels.instance }} is watched no more: no answer for 5 minutes or more",
                description=(
                    "`observatory serve` at {{ $labels.instance }} has not answered for five minutes, and nobody took"
                    " it off the list of targets. The node, its network or the agent is down, and no other alert"
                    " speaks for it."
                ),
                asked_description=ranks_when_last(agent.RANK_INFO, agent.AGENT_BEATS, *promql.SCRAPE_LABELS),
                since_hours=limits.remembered_hours,
                dashboard="one-host",
            ),
            Alert(
                name="NodeAgentLate",
                expression=promql.above(promql.divide(missed, beats), limits.missed_ratio),
                hold_minutes=10,
                severity="warning",
                component="agent",
                summary="The agent at {{ $labels.instance }} misses {{ $value | humanizePercentage }} of its beats",
                description=(
                    f"In the last {limits.window_minutes} minutes {{{{ $value | humanizePercentage }}}} of the beats at"
                    " {{ $labels.instance }} went by without a reading: what is shown of the node is older than it"
                    " should be."
                ),
                dashboard="one-host",
            ),
            Alert(
                name="NodeCollectorStale",
                # Its value is the age, or 0 where that is not known.
                expression=promql.either(
                    promql.where(age, silent, on=_COLLECTOR),
                    promql.above(age, limits.old_seconds),
                    promql.times(0, silent),
                ),
                hold_minutes=5,
                severity="warning",
                component="agent",
                summary=(
                    "The collector {{ $labels.collector }} at {{ $labels.instance }} does not answer"
                    "{{ with $value }}: what is shown is {{ . | humanizeDuration }} old{{ end }}"
                ),
                description=(
                    "For five minutes the collector {{ $labels.collector }} of the agent at {{ $labels.instance }} has"
                    " been late, or has failed: its series are old or absent, and alerts on them are silent."
                ),
                dashboard="one-host",
            ),
        ),
    )
