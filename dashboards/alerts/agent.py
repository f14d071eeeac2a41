"""The alerts on the nodes' agents themselves: gone, behind their beat, or without one of their collectors."""

from __future__ import annotations

from collectors.catalogue import agent
from dashboards import combining, promql
from dashboards.alerts.rule import Alert, Group

REMEMBERED_HOURS = 24
"""How long an agent that is gone is missed."""
MISSED_RATIO = 0.2
WINDOW_MINUTES = 10
OLD_S = 120
"""What no collector's answer is as old as at the longest beat, unless the agent's own watch stands still."""
_COLLECTOR = (*promql.SCRAPE_LABELS, "collector")

_missed = promql.rate(agent.AGENT_MISSED_BEATS, WINDOW_MINUTES)
_all = combining.plus(promql.rate(agent.AGENT_BEATS, WINDOW_MINUTES), _missed)

GROUP = Group(
    name="agents",
    interval_minutes=1,
    recordings=(),
    alerts=(
        Alert(
            name="NodeAgentGone",
            # Targets that are listed no more are asked no more, so that a node that was taken away is not missed.
            expression=combining.where(
                promql.unanswered(),
                promql.seen(agent.AGENT_BEATS, over_hours=REMEMBERED_HOURS),
                on=promql.SCRAPE_LABELS,
            ),
            hold_minutes=5,
            severity="page",
            summary="{{ $labels.instance }} is watched no more",
            description=(
                "`observatory serve` at {{ $labels.instance }} has not answered for five minutes, and nobody took it"
                " off the list of targets. The node, its network or the agent is down, and no other alert"
                " speaks for it."
            ),
            runbook="docs/runbooks/node-agent-gone.md",
        ),
        Alert(
            name="NodeAgentLate",
            expression=combining.above(combining.divide(_missed, _all), MISSED_RATIO),
            hold_minutes=10,
            severity="ticket",
            summary="The agent at {{ $labels.instance }} misses its beats",
            description=(
                f"In the last {WINDOW_MINUTES} minutes {{{{ $value | humanizePercentage }}}} of the beats at"
                " {{ $labels.instance }} went by without a reading: what is shown of the node is older than it should"
                " be."
            ),
            runbook="docs/runbooks/node-agent-late.md",
        ),
        Alert(
            name="NodeCollectorStale",
            expression=combining.either(
                combining.largest(
                    promql.select(agent.AGENT_COLLECTOR, state=promql.none_of("answering")), by=_COLLECTOR
                ),
                combining.largest(combining.above(promql.select(agent.AGENT_AGE_SECONDS), OLD_S), by=_COLLECTOR),
            ),
            hold_minutes=5,
            severity="ticket",
            summary="The collector {{ $labels.collector }} at {{ $labels.instance }} does not answer",
            description=(
                "For five minutes the collector {{ $labels.collector }} of the agent at {{ $labels.instance }} has been"
                " late, or has failed: its series are old or absent, and alerts on them are silent."
            ),
            runbook="docs/runbooks/node-collector-stale.md",
        ),
    ),
)
