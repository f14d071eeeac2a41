"""The dashboard "How is this GPU?": the GPUs of one node, whether they are sound, and what holds them back."""

from __future__ import annotations

from collectors.metrics import gpu, gpu_health
from collectors.metrics.metric import Metric
from dashboards import promql
from dashboards.boards.choices import ALERTS_OF_NODES, CLUSTER, OF_CLUSTER, OF_NODE, TO_HOST, alerts_marked, runs_marked
from dashboards.boards.nodes import soundness
from dashboards.boards.nodes.gpu_details import (
    GPU_NAME,
    OF_GPU,
    ROWS,
    UNANSWERED,
    WATCHED,
    WORK_NAME,
    gauge,
    gpu_lines,
    query,
)
from dashboards.model import (
    Dashboard,
    Query,
    Stat,
    States,
    Step,
    Steps,
    Variable,
    falling,
    rising,
)
from dashboards.promql import GPU, with_work

_LIMITS = soundness.LIMITS
_BAD = Steps(below="good", steps=(Step(value=1, colour="bad"),))


def _stat(
    title: str,
    metric: Metric,
    expression: str,
    unit: str,
    *,
    note: str,
    steps: Steps | None = None,
    absent: str = UNANSWERED,
) -> Stat:
    shown = Query(metric=metric, expression=expression, legend=title, unit=unit)
    return Stat(title=title, queries=(shown,), steps=steps, note=note, absent=absent)


_erring = promql.largest(promql.either(soundness.erring(**OF_GPU), soundness.asking(**OF_GPU)), by=GPU)
_STATS = (
    _stat(
        "GPUs not sound",
        gpu.GPU_STATE,
        promql.how_many(soundness.unsound_gpus(**OF_GPU), of=promql.select(gpu.GPU_STATE, **OF_GPU)),
        "count",
        note="Of those that are chosen: held back, late, lost, or in need of a repair or a reset.",
        steps=_BAD,
        absent=WATCHED,
    ),
    _stat(
        "GPUs with errors",
        gpu_health.GPU_XID_TIME,
        promql.how_many(_erring, of=promql.select(gpu.GPU_STATE, **OF_GPU)),
        "count",
        note="That need a repair or a reset, or that reported an XID which no program causes, or lost data in memory,"
        f" within {_LIMITS.gpus.news_hours} h.",
        steps=rising(1),
        absent=WATCHED,
    ),
    _stat(
        "To slowing down",
        gpu.GPU_TEMPERATURE_MARGIN_CELSIUS,
        promql.smallest(promql.select(gpu.GPU_TEMPERATURE_MARGIN_CELSIUS, **OF_GPU), by=()),
        "celsius",
        note="Degrees, of the hottest GPU.",
        steps=falling(1),
    ),
    _stat(
        "Held back",
        gpu.GPU_CLOCK_HELD_SECONDS,
        promql.largest(soundness.held_back(**OF_GPU), by=()),
        "ratio",
        note="Share of time for which heat, the power supply or a lowered power limit holds clocks back, of the GPU and"
        " the reason where it is most.",
        steps=rising(_LIMITS.gpus.braked_ratio, _LIMITS.gpus.capped_ratio),
        absent="The driver counts no time in which clocks are held back, or the power limit is the factory's.",
    ),
    _stat(
        "Power, of the limit",
        gpu.GPU_POWER_WATTS,
        promql.largest(soundness.power_share(**OF_GPU), by=()),
        "ratio",
        note="Of the limit in force, of the GPU that draws most.",
    ),
    _stat(
        "Slowest clock",
        soundness.CLOCK,
        promql.smallest(soundness.clock_share(**OF_GPU), by=()),
        "ratio",
        note="Clock of the multiprocessors, of its maximum; an idle GPU lowers it.",
    ),
    _stat(
        "Least busy",
        gpu.GPU_UTILIZATION,
        promql.smallest(promql.select(gpu.GPU_UTILIZATION, **OF_GPU), by=()),
        "ratio",
        note="Share of time with any kernel, of the GPU that is least busy.",
    ),
    _stat(
        "Fullest memory",
        gpu.GPU_MEMORY_USED_BYTES,
        promql.largest(soundness.memory_share(**OF_GPU), by=()),
        "ratio",
        note="Memory in use, of what processes can have.",
    ),
)

_STATES = States(
    title="How each GPU is",
    width=24,
    height=7,
    queries=(
        Query(
            metric=gpu.GPU_STATE,
            expression=with_work(soundness.gpu_state(**OF_GPU)),
            legend=f"{GPU_NAME} {WORK_NAME}",
            unit="count",
        ),
    ),
    words=soundness.GPU_WORDS,
    links=(TO_HOST,),
    absent=WATCHED,
)

_HEAT = (
    gpu_lines(
        "Share of time in which clocks are held back, by reason",
        query(
            gpu.GPU_CLOCK_HELD_SECONDS,
            promql.above(promql.recent_rate(gpu.GPU_CLOCK_HELD_SECONDS, **OF_GPU), 0),
            "ratio",
            "{{reason}}",
        ),
        # Only for reasons without a counter.
        query(
            gpu.GPU_CLOCK_HELD_RATIO,
            promql.unless(
                promql.above(promql.average(gpu.GPU_CLOCK_HELD_RATIO, **OF_GPU, reason=promql.none_of("idle")), 0),
                promql.select(gpu.GPU_CLOCK_HELD_SECONDS, **OF_GPU),
                on=(*GPU, "reason"),
            ),
            "ratio",
            "{{reason}} (sampled)",
        ),
        steps=rising(_LIMITS.gpus.braked_ratio),
        note="At the factory's power limit it is normal that software_power_cap holds back a busy GPU.",
        absent="Nothing holds a clock back, or the driver does not tell.",
    ),
    gpu_lines(
        "Degrees below slowing down",
        gauge(gpu.GPU_TEMPERATURE_MARGIN_CELSIUS),
        worst="lowest",
        goes_below_zero=True,
    ),
    gpu_lines(
        "Clock of the multiprocessors, of its maximum",
        query(soundness.CLOCK, soundness.clock_share(**OF_GPU), "ratio", ""),
        worst="lowest",
    ),
    gpu_lines("Power, of the limit in force", query(gpu.GPU_POWER_WATTS, soundness.power_share(**OF_GPU), "ratio", "")),
)


DASHBOARD = Dashboard(
    name="one-gpu",
    title="How is this GPU?",
    summary="The GPUs of one node, and the ranks on them: whether they are sound, what holds them back, what they do."
    " Where one rank computes on a GPU, the series bear its run and number.",
    variables=(
        CLUSTER,
        Variable(
            name="node",
            label="Node",
            query=promql.choices(gpu.GPU_STATE, "instance", **OF_CLUSTER),
            is_single=True,
        ),
        Variable(name="gpu", label="GPU", query=promql.choices(gpu.GPU_STATE, "gpu", **OF_NODE)),
    ),
    panels=(*_STATS, _STATES, *_HEAT),
    rows=ROWS,
    annotations=(
        *runs_marked(**OF_NODE),
        alerts_marked(**OF_NODE, gpu="$gpu", component=ALERTS_OF_NODES),
    ),
)
