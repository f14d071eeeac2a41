"""The alerts on GPUs that are lost, report errors, or are held back while a rank computes on them."""

from __future__ import annotations

from collectors.catalogue import gpu_errors, gpu_identity, gpu_power
from dashboards import combining, promql
from dashboards.alerts.rule import Alert, Group
from dashboards.placement import GPU, at_work, with_work

REMEMBERED_HOURS = 24
"""How long a GPU that is gone is missed."""
XID_NEWS_HOURS = 1
"""How long one is told of an XID."""
APPLICATION_XIDS = ("13", "31", "43", "45", "68", "109")
"""What a wrong program causes on a sound GPU. Source: NVIDIA's device plugin for Kubernetes, which ignores them too."""
BRAKES = ("software_thermal", "hardware_thermal", "hardware_slowdown", "hardware_power_brake")
"""What should hold no GPU back: heat, and the power supply's own signal."""
BRAKED_RATIO = 0.1
CAPPED_RATIO = 0.5
WINDOW_MINUTES = 10

_WHERE = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"

_lost = combining.largest(promql.select(gpu_identity.GPU_STATE, state="lost"), by=GPU)
_gone = combining.where(
    combining.unless(
        combining.largest(promql.seen(gpu_identity.GPU_STATE, over_hours=REMEMBERED_HOURS), by=GPU),
        promql.select(gpu_identity.GPU_STATE),
        on=GPU,
    ),
    promql.select(gpu_identity.GPU_STATE),
    on=promql.SCRAPE_LABELS,
)
_asks = promql.select(gpu_errors.GPU_RECOVERY, action=promql.none_of("none"))
_brakes = combining.either(
    promql.rate(gpu_power.GPU_CLOCK_HELD_SECONDS, WINDOW_MINUTES, reason=promql.one_of(*BRAKES)),
    # Of a reason without a counter the share of readings at which it held; of one with both the counter counts.
    promql.average(gpu_power.GPU_CLOCK_HELD_RATIO, WINDOW_MINUTES, reason=promql.one_of(*BRAKES)),
)
_braked = combining.above(_brakes, BRAKED_RATIO)
# At its factory limit a GPU that works hard is held back by its power, and that is as it should be.
_capped = combining.where(
    combining.above(
        promql.rate(gpu_power.GPU_CLOCK_HELD_SECONDS, WINDOW_MINUTES, reason="software_power_cap"),
        CAPPED_RATIO,
    ),
    combining.below(
        promql.select(gpu_identity.GPU_POWER_LIMIT_WATTS, limit="current"),
        promql.select(gpu_identity.GPU_POWER_LIMIT_WATTS, limit="default"),
        on=GPU,
    ),
    on=GPU,
)
_held_back = with_work(combining.either(at_work(_braked), at_work(_capped)))

GROUP = Group(
    name="gpus",
    interval_minutes=1,
    recordings=(),
    alerts=(
        Alert(
            name="GpuLost",
            expression=combining.either(_lost, _gone),
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
            expression=combining.either(
                _asks, combining.unless(combining.equal(promql.select(gpu_errors.GPU_MEMORY_REPAIR), 1), _asks, on=GPU)
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
            expression=promql.age_below(gpu_errors.GPU_XID_TIME, XID_NEWS_HOURS, xid=promql.none_of(*APPLICATION_XIDS)),
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
            expression=promql.has_grown(gpu_errors.GPU_ECC_VOLATILE_ERRORS, over_minutes=60, kind="uncorrected"),
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
            expression=promql.select(gpu_identity.GPU_STATE, state=promql.one_of("late", "failed")),
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
