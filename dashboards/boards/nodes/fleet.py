"""The dashboard "What in the fleet is not sound?": counts, the ten that stand out of each kind, and the agents' cost.

Of a fleet of hundreds of nodes nothing lists all.
"""

from __future__ import annotations

from collectors.metrics import agent, gpu, gpu_health, host, process
from collectors.metrics.metric import Metric
from dashboards import promql
from dashboards.boards.choices import ALERTS_OF_NODES, CLUSTER, OF_CLUSTER, TO_GPU, TO_HOST, alerts_marked, runs_marked
from dashboards.boards.nodes import soundness
from dashboards.model import (
    Column,
    Dashboard,
    Link,
    Query,
    Row,
    Stat,
    States,
    Step,
    Steps,
    Table,
    TimeSeries,
    Worst,
    falling,
    rising,
)
from dashboards.promql import GPU, SCRAPE_LABELS, WORK
from dashboards.queries.fleets import growth_in_view, standing_out, standing_out_at_any_time, topmost

_LIMITS = soundness.LIMITS
_TOP = 10
_NONE = Steps(below="good", steps=(Step(value=1, colour="bad"),))
"""One is bad."""
_PRESSURE = host.HOST_PRESSURE_SECONDS.alone(stalled="some")
_LISTED = 30
"""Most rows of a table or a timeline of what is not sound."""
_OF_GPU, _OF_PORT = "{{instance}} GPU {{gpu}}", "{{instance}} {{device}} port {{port}}"
_NO_GPU = "No GPU is watched. `observatory serve` on each node shows its GPUs, and Prometheus must know it as a target."
_NO_NODE = "No node is watched. `observatory serve` on each node watches it, and Prometheus must know it as a target."


def _count(
    title: str,
    metric: Metric,
    expression: str,
    note: str,
    *,
    of: str,
    steps: Steps | None = None,
    absent: str = _NO_NODE,
) -> Stat:
    """Return how many series there are; 0 where there are none of what is watched, and nothing where none is."""
    query = Query(metric=metric, expression=promql.how_many(expression, of=of), legend=title, unit="count")
    return Stat(title=title, queries=(query,), steps=steps, note=note, absent=absent)


def _total(title: str, metric: Metric, expression: str, unit: str, note: str = "") -> Stat:
    query = Query(metric=metric, expression=promql.total(expression, by=()), legend=title, unit=unit)
    return Stat(title=title, queries=(query,), note=f"{note}Hosts and switches are not in it.", absent=_NO_GPU)


def _ten(
    title: str,
    metric: Metric,
    expression: str,
    legend: str,
    *,
    unit: str,
    worst: Worst = "highest",
    steps: Steps | None = None,
    to: Link = TO_GPU,
    goes_below_zero: bool = False,
    note: str = "",
    absent: str = _NO_GPU,
) -> TimeSeries:
    """Return the ten series that are worst now, over the whole time range."""
    chosen = standing_out(_TOP, expression, worst=worst)
    return TimeSeries(
        title=title,
        queries=(Query(metric=metric, expression=chosen, legend=legend, unit=unit),),
        worst=worst,
        steps=steps,
        links=(to,),
        legend="right",
        goes_below_zero=goes_below_zero,
        note=f"The {_TOP} that are {worst} at the end of the time range. {note}".rstrip(),
        absent=absent,
    )


_silent = promql.either(
    promql.largest(soundness.lost(**OF_CLUSTER), by=GPU),
    promql.largest(promql.select(gpu.GPU_STATE, **OF_CLUSTER, state=promql.none_of("answering")), by=GPU),
)
_NODES, _GPUS = promql.select(agent.AGENT_BEATS, **OF_CLUSTER), promql.select(gpu.GPU_STATE, **OF_CLUSTER)
_ANSWERING = promql.select(gpu.GPU_STATE, **OF_CLUSTER, state="answering")
_TAKEN = promql.either(
    promql.one_each(promql.select(gpu.RANK_GPU, **OF_CLUSTER), by=GPU),
    promql.one_each(promql.above(promql.select(gpu.GPU_TASKS, **OF_CLUSTER), 0), by=GPU),
)
"""GPUs with a rank of a run, or with any process where the driver counts them."""
_COUNTS = (
    _count("Nodes that answer", agent.AGENT_BEATS, _NODES, "Nodes whose agent answers Prometheus.", of=_NODES),
    _count(
        "Nodes that do not",
        agent.AGENT_BEATS,
        soundness.gone(**OF_CLUSTER),
        f"Targets without an answer at which an agent answered within {_LIMITS.agents.remembered_hours} h.",
        of=_NODES,
        steps=_NONE,
    ),
    _count("GPUs that answer", gpu.GPU_STATE, _ANSWERING, "", of=_GPUS, absent=_NO_GPU),
    _count(
        "GPUs that do not",
        gpu.GPU_STATE,
        _silent,
        "Lost, late or not to be read; also those that an agent has shown and shows no more.",
        of=_GPUS,
        steps=_NONE,
        absent=_NO_GPU,
    ),
    _count(
        "GPUs held back",
        gpu.GPU_CLOCK_HELD_SECONDS,
        promql.largest(soundness.too_often_held_back(**OF_CLUSTER), by=GPU),
        f"By heat or the power supply for more than {_LIMITS.gpus.braked_ratio:.0%} of the last {soundness.MINUTES}"
        f" minutes, or by a power limit that somebody lowered for more than {_LIMITS.gpus.capped_ratio:.0%}.",
        of=promql.either(
            promql.select(gpu.GPU_CLOCK_HELD_SECONDS, **OF_CLUSTER),
            promql.select(gpu.GPU_CLOCK_HELD_RATIO, **OF_CLUSTER),
        ),
        steps=rising(1),
        absent="No driver of the GPUs that are watched counts for how long clocks are held back, or none is watched.",
    ),
    _count(
        "GPUs with errors",
        gpu_health.GPU_XID_TIME,
        promql.largest(promql.either(soundness.erring(**OF_CLUSTER), soundness.asking(**OF_CLUSTER)), by=GPU),
        "That need a repair or a reset, or that reported an XID which no program causes, or lost data in memory, within"
        f" {_LIMITS.gpus.news_hours} h.",
        of=_GPUS,
        steps=rising(1),
        absent=_NO_GPU,
    ),
    _count(
        "Ports down",
        host.HOST_INFINIBAND_INFO,
        soundness.down(**OF_CLUSTER),
        f"InfiniBand and RoCE ports that were active within {_LIMITS.infiniband.remembered_hours} h.",
        of=promql.select(host.HOST_INFINIBAND_INFO, **OF_CLUSTER),
        steps=_NONE,
        absent="No node that is watched has an InfiniBand or RoCE port.",
    ),
    _count(
        "Disks that fill up",
        soundness.ROOM,
        soundness.filling(**OF_CLUSTER),
        f"File systems of which less than {_LIMITS.host.filling_ratio:.0%} is left.",
        of=promql.select(soundness.ROOM, **OF_CLUSTER),
        steps=rising(1),
    ),
    _count(
        "GPUs allocated",
        gpu.RANK_GPU,
        promql.where(_ANSWERING, _TAKEN, on=GPU),
        "GPUs that answer and have a rank of a run, or any process where the driver counts processes.",
        of=_ANSWERING,
        absent=_NO_GPU,
    ),
    _count(
        "GPUs idle",
        gpu.RANK_GPU,
        promql.unless(_ANSWERING, _TAKEN, on=GPU),
        "GPUs that answer and are not allocated.",
        of=_ANSWERING,
        absent=_NO_GPU,
    ),
    _total("Power of all GPUs", gpu.GPU_POWER_WATTS, promql.select(gpu.GPU_POWER_WATTS, **OF_CLUSTER), "watts"),
    _total(
        "Energy of all GPUs",
        gpu.GPU_ENERGY_JOULES,
        growth_in_view(gpu.GPU_ENERGY_JOULES, **OF_CLUSTER),
        "joules",
        "Within the time range, by the GPUs' own counters. ",
    ),
)

# What is not sound, now and over time.

_GPU_NOW = topmost(_LISTED, promql.with_work(soundness.unsound_gpus(**OF_CLUSTER)))
_AILING = (
    Table(
        title="GPUs that are not sound now",
        height=9,
        columns=(
            Column(name="Node", source="instance", link=TO_HOST),
            Column(name="GPU", source="gpu", width=70, link=TO_GPU),
            Column(
                name="State",
                source=Query(metric=gpu.GPU_STATE, expression=_GPU_NOW, legend=_OF_GPU, unit="count"),
                words=soundness.GPU_WORDS,
            ),
            Column(name="Run and rank", source=WORK),
        ),
        sorted_by=("State",),
        note=f"The worst {_LISTED} at most.",
        absent="All GPUs that are watched are sound. Where none is watched, start `observatory serve` on their nodes.",
    ),
    States(
        title="GPUs while they are not sound",
        height=9,
        queries=(
            Query(
                metric=gpu.GPU_STATE,
                expression=standing_out_at_any_time(_LISTED, soundness.unsound_gpus(**OF_CLUSTER)),
                legend=_OF_GPU,
                unit="count",
            ),
        ),
        words=soundness.GPU_WORDS,
        least_step_s=60,
        links=(TO_GPU,),
        note="Where a bar has a gap the GPU is sound.",
        absent="No GPU was unsound at the moments that are drawn, a minute or more apart; the table is of now.",
    ),
    States(
        title="Nodes while they are not sound",
        width=24,
        height=5,
        queries=(
            Query(
                metric=agent.AGENT_BEATS,
                expression=standing_out_at_any_time(_LISTED, soundness.unsound_nodes(**OF_CLUSTER)),
                legend="{{instance}}",
                unit="count",
            ),
        ),
        words=soundness.NODE_WORDS,
        least_step_s=60,
        links=(TO_HOST,),
        note="Where a bar has a gap the node is sound.",
        absent="No node was unsound at the moments that are drawn, a minute or more apart.",
    ),
)

# The ten that stand out.

_busy = promql.select(gpu.GPU_UTILIZATION, **OF_CLUSTER)
_TENS = (
    _ten(
        "Hottest GPUs: degrees below slowing down",
        gpu.GPU_TEMPERATURE_MARGIN_CELSIUS,
        promql.select(gpu.GPU_TEMPERATURE_MARGIN_CELSIUS, **OF_CLUSTER),
        _OF_GPU,
        unit="celsius",
        worst="lowest",
        goes_below_zero=True,
    ),
    _ten(
        "GPUs most held back: share of time, by reason",
        gpu.GPU_CLOCK_HELD_SECONDS,
        soundness.held_back_lately(**OF_CLUSTER),
        f"{_OF_GPU} {{{{reason}}}}",
        unit="ratio",
        steps=rising(_LIMITS.gpus.braked_ratio),
        note="Of the last five minutes.",
        absent="Neither heat nor the power supply nor a lowered power limit holds any GPU back.",
    ),
    _ten(
        "Fullest memory of GPUs", gpu.GPU_MEMORY_USED_BYTES, soundness.memory_share(**OF_CLUSTER), _OF_GPU, unit="ratio"
    ),
    _ten("Busiest GPUs", gpu.GPU_UTILIZATION, _busy, _OF_GPU, unit="ratio"),
    _ten(
        "GPUs of runs that do the least",
        gpu.GPU_UTILIZATION,
        promql.at_work(_busy),
        _OF_GPU,
        unit="ratio",
        worst="lowest",
        absent="No rank of a run computes on a GPU that is watched. `observatory run ddp` starts one.",
    ),
    _ten(
        "Slowest PCIe links of busy GPUs, of what they can",
        soundness.PCIE_LINK,
        promql.where(soundness.pcie_share(**OF_CLUSTER), promql.above(_busy, 0), on=GPU),
        _OF_GPU,
        unit="ratio",
        worst="lowest",
        steps=falling(_LIMITS.links_of_gpus.pcie_link_ratio),
        note="An idle GPU lowers its link, and is left out.",
        absent="No GPU is busy, or their drivers do not tell what their PCIe links carry.",
    ),
    _ten(
        "Fullest InfiniBand links, of what they carry",
        host.HOST_INFINIBAND_BYTES,
        soundness.port_traffic_share(soundness.MINUTES, **OF_CLUSTER),
        f"{_OF_PORT} {{{{direction}}}}",
        unit="ratio",
        to=TO_HOST,
        note="Of the last five minutes.",
        absent="No node that is watched has an active InfiniBand or RoCE port.",
    ),
    _ten(
        "Fullest PCIe links, of what they can carry",
        gpu_health.GPU_PCIE_BYTES,
        soundness.pcie_traffic_share(soundness.MINUTES, **OF_CLUSTER),
        f"{_OF_GPU} {{{{direction}}}}",
        unit="ratio",
        note="Of the last five minutes.",
        absent="The drivers of the GPUs do not count PCIe traffic.",
    ),
    _ten(
        "Hosts with the most pressure: share of time in which tasks wait",
        _PRESSURE,
        promql.recent_rate(_PRESSURE, **OF_CLUSTER),
        "{{instance}} {{resource}}",
        unit="ratio",
        to=TO_HOST,
        absent="The kernels of the nodes do not tell of pressure (PSI), or no node is watched.",
    ),
    _ten(
        "Hosts with the least memory left",
        soundness.MEMORY,
        soundness.memory_left(**OF_CLUSTER),
        "{{instance}}",
        unit="ratio",
        worst="lowest",
        to=TO_HOST,
        absent=_NO_NODE,
    ),
)

# Details.


def _errors(title: str, metric: Metric, columns: tuple[Column, ...], absent: str) -> Table:
    """Return the ten series with the most errors in the time range."""
    grown = topmost(_TOP, growth_in_view(metric, **OF_CLUSTER))
    errors = Column(name="Errors", source=Query(metric=metric, expression=grown, legend=title, unit="errors"), width=90)
    return Table(
        title=title,
        columns=(Column(name="Node", source="instance", link=TO_HOST), *columns, errors),
        sorted_by=("Errors",),
        note=f"The {_TOP} with the most.",
        absent=absent,
    )


_GPU_COLUMN, _KIND = Column(name="GPU", source="gpu", width=60, link=TO_GPU), Column(name="Kind", source="kind")
_ERRORS = (
    _errors(
        "Errors of InfiniBand ports in this time range",
        host.HOST_INFINIBAND_ERRORS,
        (Column(name="Device", source="device", width=110), Column(name="Port", source="port", width=60), _KIND),
        "No port counted an error.",
    ),
    _errors(
        "Errors of NVLinks in this time range",
        gpu_health.GPU_NVLINK_ERRORS,
        (_GPU_COLUMN, _KIND),
        "No NVLink counted an error.",
    ),
    _errors(
        "Errors of PCIe links in this time range",
        gpu_health.GPU_PCIE_ERRORS,
        (_GPU_COLUMN, _KIND),
        "No PCIe link counted an error.",
    ),
    _ten(
        "Least room on file systems",
        soundness.ROOM,
        soundness.room(**OF_CLUSTER),
        "{{instance}} {{folder}}",
        unit="ratio",
        worst="lowest",
        steps=falling(_LIMITS.host.filling_ratio, _LIMITS.host.full_ratio),
        to=TO_HOST,
        absent=_NO_NODE,
    ),
    _ten(
        "Clocks that are most off",
        host.HOST_CLOCK_OFFSET_SECONDS,
        promql.magnitude(promql.select(host.HOST_CLOCK_OFFSET_SECONDS, **OF_CLUSTER)),
        "{{instance}}",
        unit="seconds",
        steps=rising(_LIMITS.host.clock_offset_seconds),
        to=TO_HOST,
        absent="No kernel tells what is left to correct of its clock, as in some containers.",
    ),
)
_missed = promql.recent_rate(agent.AGENT_MISSED_BEATS, **OF_CLUSTER)
_COST = (
    _ten(
        "Memory of agents",
        process.PROCESS_RESIDENT_BYTES,
        # Other exporters have a metric of this name, too.
        promql.where(
            promql.select(process.PROCESS_RESIDENT_BYTES, **OF_CLUSTER),
            promql.select(agent.AGENT_BEATS),
            on=SCRAPE_LABELS,
        ),
        "{{instance}}",
        unit="bytes",
        to=TO_HOST,
        absent=_NO_NODE,
    ),
    _ten(
        "CPU that agents take, of one",
        agent.AGENT_CPU_SECONDS,
        promql.recent_rate(agent.AGENT_CPU_SECONDS, **OF_CLUSTER),
        "{{instance}}",
        unit="ratio",
        to=TO_HOST,
        absent=_NO_NODE,
    ),
    _ten(
        "Age of what agents show",
        agent.AGENT_AGE_SECONDS,
        promql.select(agent.AGENT_AGE_SECONDS, **OF_CLUSTER),
        "{{instance}} {{collector}}",
        unit="seconds",
        steps=rising(_LIMITS.agents.old_seconds),
        to=TO_HOST,
        absent=_NO_NODE,
    ),
    _ten(
        "Beats that agents miss, of all",
        agent.AGENT_MISSED_BEATS,
        promql.divide(
            _missed,
            promql.positive(promql.plus(promql.recent_rate(agent.AGENT_BEATS, **OF_CLUSTER), _missed)),
            on=SCRAPE_LABELS,
        ),
        "{{instance}}",
        unit="ratio",
        steps=rising(_LIMITS.agents.missed_ratio),
        to=TO_HOST,
        absent=_NO_NODE,
    ),
    _ten(
        "Share of time that collectors are read",
        agent.AGENT_READ_SECONDS,
        promql.recent_rate(agent.AGENT_READ_SECONDS, **OF_CLUSTER),
        "{{instance}} {{collector}}",
        unit="ratio",
        to=TO_HOST,
        absent=_NO_NODE,
    ),
)

DASHBOARD = Dashboard(
    name="fleet",
    title="What in the fleet is not sound?",
    summary="Counts of what does not answer, is held back or has errors; then what is not sound, and the ten of each"
    " kind that stand out now. Their names lead to one GPU or one host.",
    variables=(CLUSTER,),
    panels=(*_COUNTS, *_AILING, *_TENS),
    rows=(
        Row(title="Errors of links, disks and clocks", panels=_ERRORS),
        Row(title="What watching costs", panels=_COST),
    ),
    annotations=(*runs_marked(**OF_CLUSTER), alerts_marked(**OF_CLUSTER, component=ALERTS_OF_NODES)),
)
