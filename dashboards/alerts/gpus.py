"""Alerts on GPUs that are lost, report errors, or are held back while a rank computes on them."""

from __future__ import annotations

from collectors.metrics import agent, gpu, gpu_health
from dashboards import promql
from dashboards.alerts.told import ranks_when_last
from dashboards.model import Alert, Group, Severity
from dashboards.promql import GPU, Match, at_work, with_work
from dashboards.thresholds import Gpus, Thresholds

HEAT = ("software_thermal", "hardware_thermal")
POWER_BRAKE, SLOWDOWN = "hardware_power_brake", "hardware_slowdown"
"""Reasons that should hold no GPU back, beside heat: the power supply's own signal, and one that tells heat or that
signal without saying which."""

_LOST_MINUTES = 1
_WHERE = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"

_asks = promql.select(gpu_health.GPU_RECOVERY, action=promql.none_of("none"))


def lost(limits: Gpus, **chosen: str | Match) -> str:
    """Return the GPUs that say that they are lost, and those of the last hours that an agent shows no more."""
    says = promql.largest(promql.select(gpu.GPU_STATE, **chosen, state="lost"), by=GPU)
    # Seen in the last hours and absent now, though the agent keeps its beat. Where the collector of GPUs itself does
    # not answer, NodeCollectorStale says so.
    answers = promql.unless(
        promql.select(agent.AGENT_BEATS),
        promql.select(agent.AGENT_COLLECTOR, collector="nvml", state=promql.none_of("answering")),
        on=promql.SCRAPE_LABELS,
    )
    seen = promql.seen(gpu.GPU_STATE, over_hours=limits.remembered_hours, **chosen)
    gone = promql.where(
        promql.unless(seen, promql.select(gpu.GPU_STATE, **chosen), on=GPU), answers, on=promql.SCRAPE_LABELS
    )
    # Of a fleet few are gone, so that the largest is taken last.
    gone = promql.largest(gone, by=GPU)
    return promql.either(says, gone)


def _braked(limits: Gpus, *reasons: str) -> str:
    """Return the share of time in which a reason that should hold no GPU back did, where it is too large."""
    shares = promql.either(
        promql.rate(gpu.GPU_CLOCK_HELD_SECONDS, limits.window_minutes, reason=promql.one_of(*reasons)),
        # For a reason without a counter, the share of readings at which it held; where both exist, the counter counts.
        promql.average(gpu.GPU_CLOCK_HELD_RATIO, limits.window_minutes, reason=promql.one_of(*reasons)),
    )
    return promql.above(shares, limits.braked_ratio)


def _held_back(limits: Gpus) -> str:
    """Return the share of time in which power holds clocks back, where it is too large and a rank computes there."""
    unexplained = promql.unless(_braked(limits, SLOWDOWN), _braked(limits, *HEAT, POWER_BRAKE), on=GPU)
    # Only below the factory's power limit: at that limit it is normal that power holds back a busy GPU.
    capped = promql.where(
        promql.above(
            promql.rate(gpu.GPU_CLOCK_HELD_SECONDS, limits.window_minutes, reason="software_power_cap"),
            limits.capped_ratio,
        ),
        promql.below(
            promql.select(gpu.GPU_POWER_LIMIT_WATTS.alone(limit="current")),
            promql.select(gpu.GPU_POWER_LIMIT_WATTS.alone(limit="default")),
            on=GPU,
        ),
        on=GPU,
    )
    return with_work(promql.either(at_work(_braked(limits, POWER_BRAKE)), at_work(f"({unexplained})"), at_work(capped)))


def _xid(name: str, limits: Gpus, xids: Match, *, severity: Severity, what_to_do: str, hold_minutes: int = 0) -> Alert:
    """Return the alert on XIDs of one tier."""
    return Alert(
        name=name,
        expression=promql.age_below(gpu_health.GPU_XID_TIME, limits.news_hours, xid=xids),
        hold_minutes=hold_minutes,
        severity=severity,
        component="gpu",
        summary=f"{_WHERE} reported XID {{{{ $labels.xid }}}} {{{{ $value | humanizeDuration }}}} ago",
        description=(
            f"The driver of {_WHERE} reported XID {{{{ $labels.xid }}}}"
            f"{{{{ with $labels.slice }}}} on its slice {{{{ . }}}}{{{{ end }}}} {{{{ $value | humanizeDuration }}}}"
            f" ago. {what_to_do}"
        ),
        since_hours=limits.news_hours,
        dashboard="one-gpu",
    )


def rules(thresholds: Thresholds) -> Group:
    """Return the alerts on GPUs."""
    limits = thresholds.gpus
    return Group(
        name="gpus",
        interval_minutes=1,
        recordings=(),
        alerts=(
            Alert(
                name="GpuLost",
                expression=lost(limits),
                hold_minutes=_LOST_MINUTES,
                severity="critical",
                component="gpu",
                summary=f"{_WHERE} is lost",
                description=(
                    f"{_WHERE} answers nothing more, or is not there any more, though the node's agent answers. What"
                    " ran on it has failed or will."
                ),
                asked_description=ranks_when_last(gpu.RANK_GPU, gpu.GPU_STATE, *GPU, state="answering"),
                since_hours=limits.remembered_hours,
                dashboard="one-gpu",
            ),
            Alert(
                name="GpuNeedsReset",
                expression=promql.either(
                    _asks, promql.unless(promql.equal(promql.select(gpu_health.GPU_MEMORY_REPAIR), 1), _asks, on=GPU)
                ),
                hold_minutes=2,
                severity="warning",
                component="gpu",
                summary=(
                    f"{_WHERE} needs{{{{ with $labels.action }}}} {{{{ . }}}}{{{{ end }}}}"
                    "{{ with $labels.repair }} a repair of its memory's {{ . }} ({{ $labels.state }}){{ end }}"
                ),
                description=(
                    f"The driver of {_WHERE} says{{{{ with $labels.action }}}} that it needs {{{{ . }}}}{{{{ end }}}}"
                    "{{ with $labels.repair }} that the repair of its memory's {{ . }} is {{ $labels.state }}{{ end }}."
                    " Until that is done no new work should be put on it."
                ),
                dashboard="one-gpu",
            ),
            _xid(
                "GpuXid",
                limits,
                promql.none_of(*map(str, (*limits.application_xids, *limits.node_xids))),
                severity="warning",
                what_to_do="No program causes it, and it concerns this GPU alone: look whether it comes again.",
            ),
            _xid(
                "GpuXidOfNode",
                limits,
                promql.one_of(*map(str, limits.node_xids)),
                severity="critical",
                # As long as GpuLost: a GPU that is lost after its XID is told of by that alone.
                hold_minutes=_LOST_MINUTES,
                what_to_do="What ran on it has failed or will. Give the node no work before somebody has looked.",
            ),
            Alert(
                name="GpuMemoryError",
                expression=promql.has_grown(
                    gpu_health.GPU_ECC_VOLATILE_ERRORS, over_minutes=60 * limits.news_hours, kind="uncorrected"
                ),
                hold_minutes=0,
                severity="warning",
                component="gpu",
                summary=f'{_WHERE} has lost data in its memory: {{{{ $value | printf "%.0f" }}}} error(s)',
                description=(
                    f"ECC found errors in the memory of {_WHERE} that it could not correct, within the last"
                    f" {limits.news_hours} h. Results of what ran on it then are not to be trusted."
                ),
                since_hours=limits.news_hours,
                dashboard="one-gpu",
            ),
            Alert(
                name="GpuHot",
                expression=with_work(at_work(_braked(limits, *HEAT))),
                hold_minutes=5,
                severity="warning",
                component="gpu",
                summary=f"{_WHERE} is slowed down by heat for {{{{ $value | humanizePercentage }}}} of the time",
                description=(
                    f"For {{{{ $value | humanizePercentage }}}} of the last {limits.window_minutes} minutes"
                    f" {{{{ $labels.reason }}}} held back the clocks of {_WHERE}, on which a rank"
                    " computes{{ with $labels.work }} ({{ . }}){{ end }}. The slowest rank is the speed of all: look at"
                    " the cooling of this GPU, or of the rack where its neighbours are hot, too."
                ),
                dashboard="one-gpu",
            ),
            Alert(
                name="GpuHeldBack",
                expression=_held_back(limits),
                hold_minutes=5,
                severity="warning",
                component="gpu",
                summary=(
                    f"{_WHERE} is slowed down by {{{{ $labels.reason }}}} for {{{{ $value | humanizePercentage }}}} of"
                    " the time"
                ),
                description=(
                    f"For {{{{ $value | humanizePercentage }}}} of the last {limits.window_minutes} minutes"
                    f" {{{{ $labels.reason }}}} held back the clocks of {_WHERE}, on which a rank"
                    " computes{{ with $labels.work }} ({{ . }}){{ end }}. The slowest rank is the speed of all: look at"
                    " its power limit and its power supply."
                ),
                dashboard="one-gpu",
            ),
            Alert(
                name="GpuLate",
                expression=promql.select(gpu.GPU_STATE, state=promql.one_of("late", "failed")),
                hold_minutes=5,
                severity="warning",
                component="gpu",
                summary=f"{_WHERE} has not answered its agent for 5 minutes or more ({{{{ $labels.state }}}})",
                description=(
                    f'{{{{ if eq $labels.state "failed" }}}}For five minutes the agent has failed to read {_WHERE}, by'
                    " a"
                    " mistake of its own that `observatory doctor` names.{{ else }}"
                    f"For five minutes the driver has kept the agent waiting for {_WHERE}. What is shown of it is old,"
                    " and"
                    " then absent; a driver that hangs often comes before a GPU that is lost.{{ end }}"
                ),
                dashboard="one-gpu",
            ),
        ),
    )
