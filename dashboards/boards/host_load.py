"""The dashboard "What is the host doing?": what tasks wait for, what its parts do, what watching it costs."""

from __future__ import annotations

from collectors.metrics import agent, host
from collectors.metrics.metric import Metric
from dashboards import promql
from dashboards.model import Dashboard, Panel, Query, Variable
from dashboards.promql import SCRAPE_LABELS

_CHOSEN = {"instance": "$node"}
_NUMA = (*SCRAPE_LABELS, "numa")


def _query(metric: Metric, expression: str, unit: str, *extra: str) -> Query:
    return Query(metric=metric, expression=expression, legend=promql.legend(metric, *extra), unit=unit)


def _rate(metric: Metric, unit: str, *extra: str) -> Query:
    return _query(metric, promql.rate(metric, **_CHOSEN), unit, *extra)


def _share_of_total(metric: Metric, kind: str) -> Query:
    """Return one kind of a metric as a share of its total; nothing where the total is zero."""
    total = promql.positive(promql.select(metric, **_CHOSEN, kind="total"))
    share = promql.divide(promql.select(metric, **_CHOSEN, kind=kind), total, on=SCRAPE_LABELS)
    return _query(metric, share, "ratio")


_MODES = promql.rate(host.HOST_CPU_SECONDS, **_CHOSEN)
_ALLOCATORS = promql.rate(host.HOST_NUMA_ALLOCATORS, **_CHOSEN)
_REMOTE = promql.divide(
    promql.rate(host.HOST_NUMA_ALLOCATORS, **_CHOSEN, cpu="remote"),
    promql.positive(promql.total(_ALLOCATORS, by=_NUMA)),
    on=_NUMA,
)
_REQUEST = promql.divide(
    promql.rate(host.HOST_DISK_REQUEST_SECONDS, **_CHOSEN),
    promql.positive(promql.rate(host.HOST_DISK_REQUESTS, **_CHOSEN)),
)
_FOLDER = (*SCRAPE_LABELS, "folder")
_ROOM = promql.divide(
    promql.select(host.HOST_FILESYSTEM_BYTES, **_CHOSEN, kind="available"),
    promql.positive(promql.largest(promql.select(host.HOST_FILESYSTEM_BYTES, kind="total"), by=_FOLDER)),
    on=_FOLDER,
)
# 0 while a port is active, 1 in any other state, so that sound ports are shown, too.
_PORTS = promql.either(
    promql.select(host.HOST_INFINIBAND_INFO, **_CHOSEN, state=promql.none_of("ACTIVE")),
    promql.times(0, promql.select(host.HOST_INFINIBAND_INFO, **_CHOSEN, state="ACTIVE")),
)

DASHBOARD = Dashboard(
    name="what-is-the-host-doing",
    title="What is the host doing?",
    summary="What tasks of each node wait for, what its CPUs, memory, disks, clock and links do, and what watching it"
    " costs; worst first.",
    variables=(Variable(name="node", label="Node", query=promql.choices(host.HOST_CPU_SECONDS, "instance")),),
    panels=(
        Panel(
            title="Share of time in which tasks wait for a resource",
            queries=(_rate(host.HOST_PRESSURE_SECONDS, "ratio"),),
            worst="highest",
        ),
        Panel(
            title="CPU time by mode, of all CPUs",
            queries=(
                _query(
                    host.HOST_CPU_SECONDS,
                    promql.divide(_MODES, promql.total(_MODES, by=SCRAPE_LABELS), on=SCRAPE_LABELS),
                    "ratio",
                ),
            ),
            worst="highest",
        ),
        Panel(
            title="Memory available without swapping, of all",
            queries=(_share_of_total(host.HOST_MEMORY_BYTES, "available"),),
            worst="lowest",
        ),
        Panel(title="Swapping", queries=(_rate(host.HOST_SWAPPED_BYTES, "bytes_per_second"),), worst="highest"),
        Panel(
            title="Page faults that waited for a disk",
            queries=(_rate(host.HOST_MAJOR_PAGE_FAULTS, "per_second"),),
            worst="highest",
        ),
        Panel(
            title="Memory taken from another NUMA node than the CPU's",
            queries=(_query(host.HOST_NUMA_ALLOCATORS, _REMOTE, "ratio"),),
            worst="highest",
        ),
        Panel(
            title="Time of a disk's request",
            queries=(_query(host.HOST_DISK_REQUEST_SECONDS, _REQUEST, "seconds"),),
            worst="highest",
        ),
        Panel(
            title="Room on file systems, of all",
            queries=(_query(host.HOST_FILESYSTEM_BYTES, _ROOM, "ratio"),),
            worst="lowest",
        ),
        Panel(
            title="Clock: what is left to correct",
            queries=(
                _query(
                    host.HOST_CLOCK_OFFSET_SECONDS, promql.select(host.HOST_CLOCK_OFFSET_SECONDS, **_CHOSEN), "seconds"
                ),
            ),
            worst="highest",
            goes_below_zero=True,
        ),
        Panel(title="Disk traffic", queries=(_rate(host.HOST_DISK_BYTES, "bytes_per_second"),), worst="highest"),
        Panel(title="Network traffic", queries=(_rate(host.HOST_NETWORK_BYTES, "bytes_per_second"),), worst="highest"),
        Panel(
            title="Packets dropped or damaged",
            queries=(
                _rate(host.HOST_NETWORK_DROPPED, "per_second", "dropped"),
                _rate(host.HOST_NETWORK_ERRORS, "per_second", "damaged"),
            ),
            worst="highest",
        ),
        Panel(
            title="InfiniBand traffic",
            queries=(_rate(host.HOST_INFINIBAND_BYTES, "bytes_per_second"),),
            worst="highest",
        ),
        Panel(
            title="Errors of InfiniBand ports per second",
            queries=(_rate(host.HOST_INFINIBAND_ERRORS, "per_second"),),
            worst="highest",
        ),
        Panel(
            title="InfiniBand ports that are not active",
            queries=(_query(host.HOST_INFINIBAND_INFO, _PORTS, "info"),),
            worst="highest",
        ),
        Panel(
            title="CPU that the agent takes, of one",
            queries=(_rate(agent.AGENT_CPU_SECONDS, "ratio"),),
            worst="highest",
        ),
        Panel(
            title="Age of what the agent shows",
            queries=(_query(agent.AGENT_AGE_SECONDS, promql.select(agent.AGENT_AGE_SECONDS, **_CHOSEN), "seconds"),),
            worst="highest",
        ),
        Panel(
            title="Share of time that collectors are read",
            queries=(_rate(agent.AGENT_READ_SECONDS, "ratio"),),
            worst="highest",
        ),
        Panel(
            title="Fields that collectors ask for per second",
            queries=(_rate(agent.AGENT_FIELDS, "per_second"),),
            worst="highest",
        ),
    ),
)
