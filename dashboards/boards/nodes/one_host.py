"""The dashboard "What is this host doing?": what its tasks wait for, what its parts do, and what watching it costs."""

from __future__ import annotations

from functools import partial

from collectors.metrics import agent, host, process
from collectors.metrics.metric import Metric
from dashboards import promql
from dashboards.boards.choices import ALERTS_OF_NODES, CLUSTER, OF_NODE, ONE_NODE, alerts_marked, runs_marked
from dashboards.boards.lines import lines
from dashboards.boards.nodes import soundness
from dashboards.model import (
    Column,
    Dashboard,
    Query,
    Row,
    Stat,
    States,
    Step,
    Steps,
    Table,
    Word,
    falling,
    rising,
)
from dashboards.promql import SCRAPE_LABELS, Match

_LIMITS = soundness.LIMITS
_NUMA = (*SCRAPE_LABELS, "numa")
_BAD = Steps(below="good", steps=(Step(value=1, colour="bad"),))
_KEPT = (Word(value=0, text="nothing keeps it", colour="bad"), Word(value=1, text="kept", colour="good"))
_ABSENT = "This node is not watched. `observatory serve` there watches it, and Prometheus must know it as a target."
_NO_PORT = "This node has no InfiniBand or RoCE port, or the agent may not read /sys/class/infiniband."
_NO_PRESSURE = "The kernel of this node does not tell of pressure (PSI: Linux 4.20, and psi=1 where it is off)."
_NO_PROCESS = "The agent tells nothing of its own process: Linux only."
_NO_SWAP = "This node has no swap space."


def _query(metric: Metric, expression: str, unit: str, legend: str) -> Query:
    return Query(metric=metric, expression=expression, legend=legend, unit=unit)


def _gauge(metric: Metric, legend: str, **labels: str | Match) -> Query:
    return _query(metric, promql.select(metric, **OF_NODE, **labels), metric.unit, legend)


def _kinds(metric: Metric, prefix: str = "") -> tuple[Query, ...]:
    """Return a query for each kind that a metric has, which is part of its name at /metrics."""
    return tuple(_gauge(form, f"{prefix}{told['kind']}") for told, form in metric.forms())


def _rate(metric: Metric, unit: str, legend: str) -> Query:
    return _query(metric, promql.recent_rate(metric, **OF_NODE), unit, legend)


_lines = partial(lines, absent=_ABSENT)


def _stat(
    title: str,
    metric: Metric,
    expression: str,
    unit: str,
    note: str,
    steps: Steps | None = None,
    absent: str = _ABSENT,
) -> Stat:
    query = Query(metric=metric, expression=expression, legend=title, unit=unit)
    return Stat(title=title, queries=(query,), note=note, steps=steps, absent=absent)


_PRESSURE = host.HOST_PRESSURE_SECONDS.alone(stalled="some")
_pressure = promql.recent_rate(_PRESSURE, **OF_NODE)
_STATS = (
    _stat(
        "CPUs busy",
        host.HOST_CPU_SECONDS,
        promql.total(soundness.cpu_share(promql.none_of("idle", "iowait"), **OF_NODE), by=()),
        "ratio",
        "Time of all CPUs in which they do not idle.",
    ),
    _stat(
        "Load",
        host.HOST_LOAD,
        promql.largest(promql.select(host.HOST_LOAD, **OF_NODE), by=()),
        "tasks",
        "Tasks that ran or waited to run, averaged over a minute.",
    ),
    _stat(
        "Most pressure",
        _PRESSURE,
        promql.largest(_pressure, by=()),
        "ratio",
        "Share of time in which some tasks wait for the resource that is shortest.",
        absent=_NO_PRESSURE,
    ),
    _stat(
        "Memory left",
        soundness.MEMORY,
        promql.smallest(soundness.memory_left(**OF_NODE), by=()),
        "ratio",
        "Available without swapping, of all.",
    ),
    _stat(
        "Least room on disk",
        soundness.ROOM,
        promql.smallest(soundness.room(**OF_NODE), by=()),
        "ratio",
        "Of the file system of the root folder, and of that of the runs.",
        falling(_LIMITS.host.filling_ratio, _LIMITS.host.full_ratio),
    ),
    _stat(
        "Clock is off by",
        host.HOST_CLOCK_OFFSET_SECONDS,
        promql.largest(promql.magnitude(promql.select(host.HOST_CLOCK_OFFSET_SECONDS, **OF_NODE)), by=()),
        "seconds",
        "What the kernel has still to correct.",
        rising(_LIMITS.host.clock_offset_seconds),
        absent="The kernel does not tell, as in some containers.",
    ),
    _stat(
        "Ports down",
        host.HOST_INFINIBAND_INFO,
        promql.how_many(soundness.down(**OF_NODE), of=promql.select(host.HOST_INFINIBAND_INFO, **OF_NODE)),
        "count",
        f"InfiniBand and RoCE ports that were active within {_LIMITS.infiniband.remembered_hours} h.",
        _BAD,
        absent=_NO_PORT,
    ),
    _stat(
        "Oldest reading",
        agent.AGENT_AGE_SECONDS,
        promql.largest(promql.select(agent.AGENT_AGE_SECONDS, **OF_NODE), by=()),
        "seconds",
        "Of the collector that was read longest ago.",
        rising(_LIMITS.agents.old_seconds),
    ),
)

# What stands out.

_FIRST = (
    States(
        title="How this node is",
        width=24,
        height=4,
        queries=(_query(agent.AGENT_BEATS, soundness.node_state(**OF_NODE), "count", "{{instance}}"),),
        words=soundness.NODE_WORDS,
        absent=_ABSENT,
    ),
    _lines(
        "Share of time in which some or all tasks wait for a resource",
        *(
            _rate(form, "ratio", f"{{{{resource}}}} {told['stalled']}")
            for told, form in host.HOST_PRESSURE_SECONDS.forms()
        ),
        absent=_NO_PRESSURE,
    ),
    _lines(
        "CPU time by mode, of all CPUs",
        _query(
            host.HOST_CPU_SECONDS,
            soundness.cpu_share(promql.none_of("idle"), **OF_NODE),
            "ratio",
            "{{mode}}",
        ),
        stacked=True,
        note="What is left to 100 % is idle.",
    ),
    _lines(
        "Memory available without swapping, of all",
        _query(soundness.MEMORY, soundness.memory_left(**OF_NODE), "ratio", "available"),
        worst="lowest",
    ),
    _lines(
        "Network and InfiniBand traffic",
        _rate(host.HOST_NETWORK_BYTES, "bytes_per_second", "{{interface}} {{direction}}"),
        _rate(host.HOST_INFINIBAND_BYTES, "bytes_per_second", "{{device}} port {{port}} {{direction}}"),
    ),
)

# Details.

_allocations = promql.recent_rate(host.HOST_NUMA_ALLOCATORS, **OF_NODE)
_remote = promql.divide(
    promql.recent_rate(host.HOST_NUMA_ALLOCATORS, **OF_NODE, cpu="remote"),
    promql.positive(promql.total(_allocations, by=_NUMA)),
    on=_NUMA,
)
_CPU = (
    _lines("Tasks that ran or waited to run", _gauge(host.HOST_LOAD, "load of one minute")),
    _lines(
        "Page faults",
        _rate(host.HOST_PAGE_FAULTS, "per_second", "all"),
        _rate(host.HOST_MAJOR_PAGE_FAULTS, "per_second", "that waited for a disk"),
    ),
)
_MEMORY = (
    _lines("Memory by kind", *_kinds(host.HOST_MEMORY_BYTES), note="Kinds overlap and make no sum."),
    _lines("Swap space", *_kinds(host.HOST_SWAP_BYTES), absent=_NO_SWAP),
    _lines("Swapping", _rate(host.HOST_SWAPPED_BYTES, "bytes_per_second", "{{direction}}"), absent=_NO_SWAP),
    _lines(
        "Memory taken from another NUMA node than the CPU's",
        _query(host.HOST_NUMA_ALLOCATORS, _remote, "ratio", "NUMA node {{numa}}"),
    ),
    _lines("Memory of NUMA nodes", *_kinds(host.HOST_NUMA_MEMORY_BYTES, "NUMA node {{numa}} ")),
    _lines(
        "Allocations of NUMA nodes, by outcome",
        _rate(host.HOST_NUMA_ALLOCATIONS, "per_second", "NUMA node {{numa}} {{outcome}}"),
    ),
)
_DISKS = (
    _lines(
        "Time of a disk's request",
        _query(
            host.HOST_DISK_REQUEST_SECONDS,
            promql.divide(
                promql.recent_rate(host.HOST_DISK_REQUEST_SECONDS, **OF_NODE),
                promql.positive(promql.recent_rate(host.HOST_DISK_REQUESTS, **OF_NODE)),
            ),
            "seconds",
            "{{device}} {{direction}}",
        ),
        absent="No disk had a request, or the node has no disk that is a device of its own.",
    ),
    _lines(
        "Share of time in which a disk is busy",
        _rate(host.HOST_DISK_BUSY_SECONDS, "ratio", "{{device}}"),
        note="A disk that serves many requests at once can do more even when it is always busy.",
        absent="The node has no disk that is a device of its own.",
    ),
    _lines(
        "Disk traffic",
        _rate(host.HOST_DISK_BYTES, "bytes_per_second", "{{device}} {{direction}}"),
        absent="The node has no disk that is a device of its own.",
    ),
    _lines(
        "Room on file systems, of all",
        _query(soundness.ROOM, soundness.room(**OF_NODE), "ratio", "{{folder}}"),
        worst="lowest",
        steps=falling(_LIMITS.host.filling_ratio, _LIMITS.host.full_ratio),
    ),
)
_LINKS = (
    _lines(
        "InfiniBand traffic, of what the link carries",
        _query(
            host.HOST_INFINIBAND_LINK,
            soundness.port_traffic_share(**OF_NODE),
            "ratio",
            "{{device}} port {{port}} {{direction}}",
        ),
        absent=_NO_PORT,
    ),
    _lines(
        "Ticks per second in which a port had data to send and was not let",
        _rate(host.HOST_INFINIBAND_WAIT, "per_second", "{{device}} port {{port}}"),
        note="Of the port's own clock, of a length that it does not tell: compare ports of one kind.",
        absent=_NO_PORT,
    ),
    _lines(
        "Errors of InfiniBand ports per second",
        _rate(host.HOST_INFINIBAND_ERRORS, "per_second", "{{device}} port {{port}} {{kind}}"),
        absent=_NO_PORT,
    ),
    Table(
        title="InfiniBand ports",
        columns=(
            Column(name="Device", source="device"),
            Column(name="Port", source="port", width=60),
            Column(name="Layer", source="layer"),
            Column(name="State", source="state", colours={"ACTIVE": "good", "DOWN": "bad"}),
            Column(name="Physical state", source="physical_state", colours={"LinkUp": "good"}),
            Column(
                name="There",
                source=Query(
                    metric=host.HOST_INFINIBAND_INFO,
                    expression=promql.select(host.HOST_INFINIBAND_INFO, **OF_NODE),
                    legend="There",
                    unit="info",
                ),
                width=70,
            ),
        ),
        sorted_by=("Device",),
        is_falling=False,
        absent=_NO_PORT,
    ),
    _lines(
        "Packets dropped or damaged",
        _rate(host.HOST_NETWORK_DROPPED, "per_second", "{{interface}} {{direction}} dropped"),
        _rate(host.HOST_NETWORK_ERRORS, "per_second", "{{interface}} {{direction}} damaged"),
    ),
)
_CLOCK = (
    _lines(
        "Clock: what is left to correct",
        _gauge(host.HOST_CLOCK_OFFSET_SECONDS, "offset"),
        goes_below_zero=True,
        absent="The kernel does not tell, as in some containers.",
    ),
    _lines(
        "Clock: how far it may be off at most",
        _gauge(host.HOST_CLOCK_ERROR_SECONDS, "error"),
        steps=rising(_LIMITS.host.clock_error_seconds),
        absent="The kernel does not tell, as in some containers.",
    ),
    States(
        title="Whether something keeps the clock",
        width=24,
        height=4,
        queries=(_gauge(host.HOST_CLOCK_KEPT, "clock"),),
        words=_KEPT,
        absent="The kernel does not tell, as in some containers.",
    ),
)
_missed = promql.recent_rate(agent.AGENT_MISSED_BEATS, **OF_NODE)
_beats = promql.recent_rate(agent.AGENT_BEATS, **OF_NODE)
_COST = (
    _lines("CPU that the agent takes, of one", _rate(agent.AGENT_CPU_SECONDS, "ratio", "agent")),
    _lines("Age of what the agent shows", _gauge(agent.AGENT_AGE_SECONDS, "{{collector}}")),
    _lines(
        "Share of time that collectors are read",
        _rate(agent.AGENT_READ_SECONDS, "ratio", "{{collector}}"),
    ),
    _lines(
        "Fields and samples per second",
        _rate(agent.AGENT_FIELDS, "per_second", "{{collector}} fields"),
        _rate(agent.AGENT_SAMPLES, "per_second", "{{collector}} samples"),
    ),
    _lines(
        "Beats that the agent misses, of all",
        _query(
            agent.AGENT_MISSED_BEATS,
            promql.divide(_missed, promql.positive(promql.plus(_beats, _missed)), on=SCRAPE_LABELS),
            "ratio",
            "missed",
        ),
        steps=rising(_LIMITS.agents.missed_ratio),
    ),
    _lines(
        "Answers that cannot be, left out since the agent began",
        # No rate: there is no series before the first of these answers, and often no second.
        _query(agent.IMPLAUSIBLE, promql.select(agent.IMPLAUSIBLE, **OF_NODE), "count", "{{source}}: {{question}}"),
        absent="Nothing has answered what cannot be, or the agent is not there.",
    ),
    _lines(
        "A beat, and how late one is",
        _gauge(agent.AGENT_BEAT_SECONDS, "from beat to beat"),
        _query(
            agent.AGENT_LATENESS_SECONDS,
            promql.divide(promql.recent_rate(agent.AGENT_LATENESS_SECONDS, **OF_NODE), promql.positive(_beats)),
            "seconds",
            "late by",
        ),
    ),
    _lines(
        "Memory of the agent",
        _gauge(process.PROCESS_RESIDENT_BYTES, "resident"),
        _gauge(process.PROCESS_VIRTUAL_BYTES, "mapped"),
        absent=_NO_PROCESS,
    ),
    _lines(
        "File descriptors of the agent, of those that it may open",
        _query(
            process.PROCESS_OPEN_FDS,
            promql.divide(
                promql.select(process.PROCESS_OPEN_FDS, **OF_NODE),
                promql.positive(promql.select(process.PROCESS_MAX_FDS, **OF_NODE)),
            ),
            "ratio",
            "open",
        ),
        absent=_NO_PROCESS,
    ),
)


def _told(title: str, metric: Metric, columns: tuple[tuple[str, str], ...], width: int) -> Table:
    """Return the labels of an info metric as a table."""
    there = Query(metric=metric, expression=promql.select(metric, **OF_NODE), legend="There", unit="info")
    return Table(
        title=title,
        width=width,
        height=5,
        columns=(
            *(Column(name=name, source=label) for name, label in columns),
            Column(name="There", source=there, width=70),
        ),
        absent=_ABSENT,
    )


_IDENTITY = (
    _told(
        "What this node is",
        host.NODE_INFO,
        (("Host", "host"), ("System", "os"), ("Kernel", "kernel"), ("Driver of NVIDIA", "driver")),
        24,
    ),
    _told(
        "The program that watches it",
        process.BUILD_INFO,
        (("Version", "version"), ("Commit", "commit"), ("Python", "python")),
        24,
    ),
)

DASHBOARD = Dashboard(
    name="one-host",
    title="What is this host doing?",
    summary="One node: what its tasks wait for, what its CPUs, memory, disks, links and clock do, and what watching it"
    " costs.",
    variables=(CLUSTER, ONE_NODE),
    panels=(*_STATS, *_FIRST),
    rows=(
        Row(title="CPUs", panels=_CPU),
        Row(title="Memory", panels=_MEMORY),
        Row(title="Disks", panels=_DISKS),
        Row(title="Links", panels=_LINKS),
        Row(title="Clock", panels=_CLOCK),
        Row(title="What this node is", panels=_IDENTITY),
        Row(title="What watching costs", panels=_COST),
    ),
    annotations=(*runs_marked(**OF_NODE), alerts_marked(**OF_NODE, component=ALERTS_OF_NODES)),
)
