"""Prometheus' alerts and recording rules: on the nodes' agents, on GPUs, on suites, and on scaling efficiency."""

from __future__ import annotations

from collectors.metrics import agent, gpu, gpu_health, suites
from collectors.metrics.agent import RUN_LAST_COMPLETION
from collectors.metrics.results import RUN_SCALING_EFFICIENCY
from dashboards import promql
from dashboards.model import Alert, Group, Recording
from dashboards.promql import GPU, at_work, with_work

# Alerts on the nodes' agents: gone, behind their beat, or without one of their collectors.

REMEMBERED_HOURS = 24
"""How long an agent or a GPU that is gone is missed."""
MISSED_RATIO = 0.2
WINDOW_MINUTES = 10
OLD_S = 120
"""An age that no collector's answer reaches even at the longest beat, unless the agent's own watch stands still."""
_COLLECTOR = (*promql.SCRAPE_LABELS, "collector")

_missed = promql.rate(agent.AGENT_MISSED_BEATS, WINDOW_MINUTES)
_all = promql.plus(promql.rate(agent.AGENT_BEATS, WINDOW_MINUTES), _missed)

AGENT_RULES = Group(
    name="agents",
    interval_minutes=1,
    recordings=(),
    alerts=(
        Alert(
            name="NodeAgentGone",
            # Prometheus asks listed targets only, so a node that was taken off the list is not missed.
            expression=promql.where(
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
            expression=promql.above(promql.divide(_missed, _all), MISSED_RATIO),
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
            expression=promql.either(
                promql.largest(promql.select(agent.AGENT_COLLECTOR, state=promql.none_of("answering")), by=_COLLECTOR),
                promql.largest(promql.above(promql.select(agent.AGENT_AGE_SECONDS), OLD_S), by=_COLLECTOR),
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


# Alerts on GPUs that are lost, report errors, or are held back while a rank computes on them.

XID_NEWS_HOURS = 1
"""How long the alert on an XID lasts."""
APPLICATION_XIDS = ("13", "31", "43", "45", "68", "109")
"""XIDs that a wrong program causes on a sound GPU. Source: NVIDIA's device plugin for Kubernetes ignores them, too."""
BRAKES = ("software_thermal", "hardware_thermal", "hardware_slowdown", "hardware_power_brake")
"""Reasons that should hold no GPU back: heat, and the power supply's own signal."""
BRAKED_RATIO = 0.1
CAPPED_RATIO = 0.5

_WHERE = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"

_lost = promql.largest(promql.select(gpu.GPU_STATE, state="lost"), by=GPU)
# Seen in the last hours and absent now, while the agent still shows another GPU.
_gone = promql.where(
    promql.unless(
        promql.largest(promql.seen(gpu.GPU_STATE, over_hours=REMEMBERED_HOURS), by=GPU),
        promql.select(gpu.GPU_STATE),
        on=GPU,
    ),
    promql.select(gpu.GPU_STATE),
    on=promql.SCRAPE_LABELS,
)
_asks = promql.select(gpu_health.GPU_RECOVERY, action=promql.none_of("none"))
_brakes = promql.either(
    promql.rate(gpu.GPU_CLOCK_HELD_SECONDS, WINDOW_MINUTES, reason=promql.one_of(*BRAKES)),
    # For a reason without a counter, the share of readings at which it held; where both exist, the counter counts.
    promql.average(gpu.GPU_CLOCK_HELD_RATIO, WINDOW_MINUTES, reason=promql.one_of(*BRAKES)),
)
_braked = promql.above(_brakes, BRAKED_RATIO)
# Only below the factory's power limit: at that limit it is normal that power holds back a busy GPU.
_capped = promql.where(
    promql.above(
        promql.rate(gpu.GPU_CLOCK_HELD_SECONDS, WINDOW_MINUTES, reason="software_power_cap"),
        CAPPED_RATIO,
    ),
    promql.below(
        promql.select(gpu.GPU_POWER_LIMIT_WATTS, limit="current"),
        promql.select(gpu.GPU_POWER_LIMIT_WATTS, limit="default"),
        on=GPU,
    ),
    on=GPU,
)
_held_back = with_work(promql.either(at_work(_braked), at_work(_capped)))

GPUS_RULES = Group(
    name="gpus",
    interval_minutes=1,
    recordings=(),
    alerts=(
        Alert(
            name="GpuLost",
            expression=promql.either(_lost, _gone),
            hold_minutes=1,
            severity="page",
            summary=f"{_WHERE} is lost",
            description=(
                f"{_WHERE} answers nothing more, or is not there any more, though the node's agent answers. What ran on"
                " it has failed or will."
            ),
            runbook="docs/runbooks/gpu-lost.md",
        ),
        Alert(
            name="GpuNeedsReset",
            expression=promql.either(
                _asks, promql.unless(promql.equal(promql.select(gpu_health.GPU_MEMORY_REPAIR), 1), _asks, on=GPU)
            ),
            hold_minutes=2,
            severity="ticket",
            summary=f"{_WHERE} waits for a reset or a repair",
            description=(
                f"The driver of {_WHERE} says{{{{ with $labels.action }}}} that it needs {{{{ . }}}}{{{{ end }}}}"
                "{{ with $labels.repair }} that the repair of its memory's {{ . }} is {{ $labels.state }}{{ end }}."
                " Until that is done no new work should be put on it."
            ),
            runbook="docs/runbooks/gpu-needs-reset.md",
        ),
        Alert(
            name="GpuXid",
            expression=promql.age_below(gpu_health.GPU_XID_TIME, XID_NEWS_HOURS, xid=promql.none_of(*APPLICATION_XIDS)),
            hold_minutes=0,
            severity="ticket",
            summary=f"{_WHERE} reported XID {{{{ $labels.xid }}}}",
            description=(
                f"The driver of {_WHERE} reported XID {{{{ $labels.xid }}}}"
                "{{ with $labels.slice }} on its slice {{ . }}{{ end }} {{ $value | humanizeDuration }} ago,"
                " which is not among those that a wrong program causes."
            ),
            runbook="docs/runbooks/gpu-xid.md",
        ),
        Alert(
            name="GpuMemoryError",
            expression=promql.has_grown(gpu_health.GPU_ECC_VOLATILE_ERRORS, over_minutes=60, kind="uncorrected"),
            hold_minutes=0,
            severity="ticket",
            summary=f"{_WHERE} has lost data in its memory",
            description=(
                f"ECC found errors in the memory of {_WHERE} that it could not correct, within the last hour. Results"
                " of what ran on it then are not to be trusted."
            ),
            runbook="docs/runbooks/gpu-memory-error.md",
        ),
        Alert(
            name="GpuHeldBack",
            expression=_held_back,
            hold_minutes=5,
            severity="ticket",
            summary=f"{_WHERE} is slowed down by {{{{ $labels.reason }}}}",
            description=(
                f"For {{{{ $value | humanizePercentage }}}} of the last {WINDOW_MINUTES} minutes"
                f" {{{{ $labels.reason }}}} held back the clocks of {_WHERE}, on which a rank"
                " computes{{ with $labels.work }} ({{ . }}){{ end }}. The slowest rank is the speed of all."
            ),
            runbook="docs/runbooks/gpu-held-back.md",
        ),
        Alert(
            name="GpuLate",
            expression=promql.select(gpu.GPU_STATE, state=promql.one_of("late", "failed")),
            hold_minutes=5,
            severity="ticket",
            summary=f"{_WHERE} does not answer its agent",
            description=(
                f'{{{{ if eq $labels.state "failed" }}}}For five minutes the agent has failed to read {_WHERE}, by a'
                " mistake of its own that `observatory doctor` names.{{ else }}"
                f"For five minutes the driver has kept the agent waiting for {_WHERE}. What is shown of it is old, and"
                " then absent; a driver that hangs often comes before a GPU that is lost.{{ end }}"
            ),
            runbook="docs/runbooks/gpu-late.md",
        ),
    ),
)


# Alerts on suites: one that did not begin in time, a case of one that failed, one that stands still.
#
# A suite is told by its name, whoever ran it and whoever shows it: where a scheduler draws another node each night, the
# newest start counts, and several exporters of one store are one alert. Runs are told by their ids, so that another
# node's good run hides no failure.

LATE_RATIO = 0.25
"""How late a suite may begin, as a share of its period: a nightly, six hours."""
MISSED_DAYS = 30
"""How long a suite is missed whose history nobody shows any more."""
NEWS_HOURS = 36
"""How long a failed case is told of; that of a suite with a period until the suite is late, if that is longer."""
STILL_MINUTES = 30
"""Most time without a step of training, of those of a suite: three times the usual limit of a whole trial."""
GIVEN_UP_HOURS = 7 * 24
"""How long a suite that stands still is told of."""
FAILURES = ("failed", "timed_out", "interrupted", "missing")
_SUITE = ("suite",)
_SUITE_RUN = ("suite", "run")

_started = promql.recorded(suites.SUITE_LAST_START, "newest")
_period = promql.recorded(suites.SUITE_PERIOD, "newest")
_late = promql.times(1 + LATE_RATIO, _period)
_progress = promql.largest(promql.select(suites.SUITE_LAST_PROGRESS), by=_SUITE_RUN)

SUITES_RULES = Group(
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
                        promql.remembered(_started), promql.younger(promql.remembered(_started), 24 * MISSED_DAYS)
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
                        promql.unless(promql.remembered(_period), promql.select(suites.SUITE_LAST_START), on=_SUITE),
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
            expression=promql.exceeds(promql.age(_started), _late, on=_SUITE),
            hold_minutes=5,
            severity="ticket",
            summary="The suite {{ $labels.suite }} did not run",
            description=(
                "The suite {{ $labels.suite }} began last {{ $value | humanizeDuration }} ago, which is its period and"
                f" {LATE_RATIO:.0%} of it, or more. Nothing else is told of what it would have measured."
            ),
            runbook="docs/runbooks/suite-not-run.md",
        ),
        Alert(
            name="SuiteCaseFailed",
            expression=promql.largest(
                promql.where(
                    promql.above(promql.select(suites.SUITE_LAST_CASES, outcome=promql.one_of(*FAILURES)), 0),
                    promql.either(
                        promql.younger(_progress, NEWS_HOURS),
                        promql.below(promql.age(_progress), _late, on=_SUITE),
                    ),
                    on=_SUITE_RUN,
                ),
                by=(*_SUITE_RUN, "outcome"),
            ),
            hold_minutes=0,
            severity="ticket",
            summary="{{ $value }} case(s) of the suite {{ $labels.suite }}: {{ $labels.outcome }}",
            description=(
                "In the run {{ $labels.run }} of the suite {{ $labels.suite }}, {{ $value }} case(s) ended as"
                " {{ $labels.outcome }}. The others of the run are not touched by that."
            ),
            runbook="docs/runbooks/suite-case-failed.md",
        ),
        Alert(
            name="SuiteStalled",
            expression=promql.where(
                promql.above(promql.age(_progress), 60 * STILL_MINUTES),
                # A runner may have died long ago, and nobody care for the rest of its suite.
                promql.younger(_progress, GIVEN_UP_HOURS),
                promql.select(suites.SUITE_LAST_CASES, outcome="running"),
                on=_SUITE_RUN,
            ),
            hold_minutes=2,
            severity="ticket",
            summary="The suite {{ $labels.suite }} stands still",
            description=(
                "The run {{ $labels.run }} of the suite {{ $labels.suite }} has not ended, and no rank of it finished"
                " a step for {{ $value | humanizeDuration }}. It hangs, or what ran it has died."
            ),
            runbook="docs/runbooks/suite-stalled.md",
        ),
    ),
)


# The alert on nightly results: scaling efficiency is lower than accepted, or than on other nights.
#
# There are two levels, because each misses what the other sees. The median of the last nights knows what is usual for
# a series, but a loss that comes slowly, or stays, becomes usual. The accepted level is a number that somebody has
# agreed to.
#
# Both need an interval below the level, so a run of one trial, which has none, raises no alert. Against other nights
# the result must also lie three standard deviations of these nights below their median, and 2 % below it. A result
# older than a day and a half belongs to a series that no longer runs, and raises no alert either.
#
# A result is identified by what it measures, and not by who shows it: a series goes on where a scheduler draws another
# node each night, where a node or a pod is new, and where several exporters show one store. Of all that show a series,
# the one whose run was completed last counts. Results are compared only with those of the same kind of baseline.

NIGHTS = 14
LEAST_NIGHTS = 7
FRESH_HOURS = 36
DEVIATIONS = 3
LEAST_DROP_RATIO = 0.02
_INTERQUARTILE_RANGE_PER_DEVIATION = 1.349  # Of a normal distribution.

ACCEPTED_RATIOS: dict[tuple[str, str, str], float] = {("ddp", "cuda", "weak"): 0.8}
"""Accepted efficiency by strategy, device and scaling. Published figures for heavy models are 0.97 to 0.98, and light
models expose more communication. Ranks on one CPU share its caches, so their only level is their own nights."""

_SERIES = ("series",)
_MEASURED = (
    *(label for label in promql.OWNER_LABELS["run"] if label != "bound"),
    *RUN_SCALING_EFFICIENCY.labels,
)
_ACCEPTED_FOR = ("strategy", "device", "scaling")

_completed = promql.recorded(RUN_LAST_COMPLETION, "newest")
_median = promql.recorded(RUN_SCALING_EFFICIENCY, "median")
_high = promql.recorded(RUN_SCALING_EFFICIENCY, "high")
_usual = promql.recorded(RUN_SCALING_EFFICIENCY, f"median_{NIGHTS}d")
_deviation = promql.recorded(RUN_SCALING_EFFICIENCY, f"deviation_{NIGHTS}d")
_accepted = promql.recorded(RUN_SCALING_EFFICIENCY, "accepted")
_nights = promql.recorded(RUN_SCALING_EFFICIENCY, f"nights_{NIGHTS}d")


# A fresh completion counts even where nobody shows it any more: otherwise an older result that others still show would
# be judged again in its place.
_shown_before = promql.where(promql.remembered(_completed), promql.younger(promql.remembered(_completed), FRESH_HOURS))


def _newest(bound: str) -> str:
    """Return one bound of each series' result, from the exporters that show its newest run."""
    shown_by = promql.same(promql.select(RUN_LAST_COMPLETION), _completed, on=_SERIES)
    result = promql.select(RUN_SCALING_EFFICIENCY, bound=bound)
    return promql.largest(
        promql.where(result, shown_by, on=(*_SERIES, *promql.SCRAPE_LABELS)),
        by=_MEASURED,
    )


def _quantile(quantile: float) -> str:
    return promql.quantile_over_days(_median, quantile, NIGHTS)


_RECORDINGS = (
    *(
        Recording(
            record=_accepted,
            expression=promql.constant(ratio),
            labels={"strategy": strategy, "device": device, "scaling": scaling},
        )
        for (strategy, device, scaling), ratio in ACCEPTED_RATIOS.items()
    ),
    Recording(
        record=_completed,
        expression=promql.largest(promql.either(promql.past(RUN_LAST_COMPLETION), _shown_before), by=_SERIES),
    ),
    Recording(record=_median, expression=_newest("median")),
    Recording(record=_high, expression=_newest("high")),
    Recording(record=_usual, expression=_quantile(0.5)),
    Recording(
        record=_deviation,
        expression=promql.times(
            round(1 / _INTERQUARTILE_RANGE_PER_DEVIATION, 4), promql.less(_quantile(0.75), _quantile(0.25))
        ),
    ),
    Recording(record=_nights, expression=promql.days_with_news(_median, _completed, NIGHTS, on=_SERIES)),
)

_fresh = promql.younger(_completed, FRESH_HOURS)
_below_accepted = promql.where(_median, promql.below(_high, _accepted, on=_ACCEPTED_FOR))
_below_other_nights = promql.where(
    _median,
    promql.below(_high, _usual),
    promql.below(_median, promql.less(_usual, promql.times(DEVIATIONS, _deviation))),
    promql.below(_median, promql.times(1 - LEAST_DROP_RATIO, _usual)),
)
# The first night that is seen is no change, so n nights count as n - 1.
_known = promql.where(_below_other_nights, promql.at_least(_nights, LEAST_NIGHTS - 1))

NIGHTLY_RULES = Group(
    name="nightly",
    interval_minutes=10,
    recordings=_RECORDINGS,
    alerts=(
        Alert(
            name="ScalingEfficiencyLow",
            expression=promql.either(
                promql.where(_below_accepted, _fresh, on=_SERIES), promql.where(_known, _fresh, on=_SERIES)
            ),
            hold_minutes=20,
            severity="ticket",
            summary="{{ $labels.strategy }} on {{ $labels.ranks }} ranks scales worse than it should",
            description=(
                "{{ $labels.scaling }} scaling efficiency of {{ $labels.strategy }} on {{ $labels.ranks }} ranks"
                " ({{ $labels.device }}, {{ $labels.precision }}, series {{ $labels.series }}, baseline:"
                " {{ $labels.baseline }}) is {{ $value | humanizePercentage }}: its whole interval lies below the"
                f" accepted level, or below the median of {NIGHTS} nights by more than their noise."
            ),
            runbook="docs/runbooks/scaling-efficiency.md",
        ),
    ),
)
