"""The collapsed rows of the dashboard "How is this GPU?": work, memory, heat, links, errors, and what each GPU is."""

from __future__ import annotations

from functools import partial

from collectors.metrics import gpu, gpu_health
from collectors.metrics.metric import Metric
from dashboards import promql
from dashboards.boards.choices import OF_NODE
from dashboards.boards.lines import lines
from dashboards.boards.nodes import soundness
from dashboards.model import Column, Query, Row, Table, TimeSeries, falling
from dashboards.promql import GPU, SLICE, WORK, Match, with_work
from dashboards.queries.fleets import standing_out

_LIMITS = soundness.LIMITS
OF_GPU = {**OF_NODE, "gpu": "$gpu"}
GPU_NAME, WORK_NAME = "GPU {{gpu}}", f"{{{{{WORK}}}}}"
WATCHED = (
    "No GPU of this node is watched. `observatory serve` there shows them; `observatory doctor` says what is amiss."
)
UNANSWERED = (
    "The driver of these GPUs does not answer this; `observatory doctor` there shows which questions it answers."
)
_GPM = (
    "These GPUs have no performance monitors (GPM): Hopper and later have, where the driver lets this user read them."
)
_WIDTHS = {"uuid": 400, "serial": 140, "pci_address": 170}
_COSTS = "This is shown only where it is asked for: `observatory serve --read-costs`."
_CONTAINER = "container_short"
_NONE_YET = "None since the agent began to listen."


def query(metric: Metric, expression: str, unit: str, legend: str) -> Query:
    """Return a query whose series are named after their GPU and the rank on it."""
    return Query(metric=metric, expression=with_work(expression), legend=f"{GPU_NAME} {legend} {WORK_NAME}", unit=unit)


def gauge(metric: Metric, legend: str = "", **labels: str | Match) -> Query:
    return query(metric, promql.select(metric, **OF_GPU, **labels), metric.unit, legend)


def rate(metric: Metric, unit: str, legend: str) -> Query:
    return query(metric, promql.recent_rate(metric, **OF_GPU), unit, legend)


gpu_lines = partial(lines, absent=UNANSWERED)


_DETAIL_OF_HEAT = (
    gpu_lines(
        "Temperature",
        gauge(gpu.GPU_TEMPERATURE_CELSIUS, "die"),
        gauge(gpu.GPU_MEMORY_TEMPERATURE_CELSIUS, "memory"),
    ),
    gpu_lines(
        "Power",
        gauge(gpu.GPU_POWER_WATTS, "over a second"),
        gauge(gpu.GPU_POWER_INSTANT_WATTS, "at the moment"),
    ),
    gpu_lines("Power by the energy counter", rate(gpu.GPU_ENERGY_JOULES, "watts", "")),
    gpu_lines(
        "Limits of power",
        *(gauge(form, told["limit"]) for told, form in gpu.GPU_POWER_LIMIT_WATTS.forms()),
        note="A current limit below the default was lowered by somebody.",
    ),
    gpu_lines("Clocks", *(gauge(form, told["clock"]) for told, form in gpu.GPU_CLOCK_HERTZ.forms()), worst="lowest"),
    gpu_lines("Limits of clocks", *(gauge(form, told["clock"]) for told, form in gpu.GPU_CLOCK_LIMIT_HERTZ.forms())),
)
_UNNAMED = "The driver names no processes, as in a container with PIDs of its own."


def _of_processes(name: str, metric: Metric) -> Column:
    ranks = promql.select(metric, **OF_GPU, run=promql.none_of(""))
    others = promql.select(metric, **OF_GPU, run="")
    of_all = promql.either(promql.joined(ranks, ("run", "rank"), called=WORK, between=" rank "), others)
    short = promql.cut(of_all, "container_id", to=12, called=_CONTAINER)
    return Column(name=name, source=Query(metric=metric, expression=short, legend=name, unit=metric.unit))


_PROCESSES = Table(
    title="Processes on these GPUs",
    width=24,
    columns=(
        Column(name="GPU", source="gpu", width=60),
        Column(name="Slice", source="slice", width=60),
        Column(name="PID", source="pid", width=90),
        Column(name="Process", source="process", width=150),
        Column(name="Run and rank", source=WORK, width=150),
        Column(name="Pod's UID", source="pod_uid", width=300),
        Column(name="Container", source=_CONTAINER, width=120),
        Column(name="Slurm job", source="slurm_job", width=90),
        _of_processes("Memory", gpu.GPU_PROCESS_MEMORY),
        _of_processes("Multiprocessors", gpu.GPU_PROCESS_UTILIZATION),
    ),
    sorted_by=("Memory",),
    note="Ranks of runs have their run and rank; all others are named by their cgroups. kube_pod_info has the name of a"
    " pod by its UID.",
    absent=f"No process computes on these GPUs, or nobody asks for them. {_UNNAMED}",
)
_DETAIL_OF_WORK = (
    gpu_lines(
        "Busy: with any kernel, its multiprocessors, its tensor cores",
        gauge(gpu.GPU_UTILIZATION, "any kernel"),
        gauge(gpu_health.GPU_SM_ACTIVITY, "multiprocessors"),
        gauge(gpu_health.GPU_TENSOR_ACTIVITY.alone(kind="any"), "tensor cores"),
        worst="lowest",
        note="Any kernel may run while most of the GPU is idle; multiprocessors and tensor cores tell how much of it.",
    ),
    gpu_lines(
        "Tensor cores by kind of product",
        gauge(gpu_health.GPU_TENSOR_ACTIVITY, "{{kind}}", kind=promql.none_of("any")),
        absent=_GPM,
    ),
    gpu_lines("Arithmetic outside of tensor cores", gauge(gpu_health.GPU_PIPE_ACTIVITY, "{{pipe}}"), absent=_GPM),
    gpu_lines(
        "Contexts and resident warps",
        gauge(gpu_health.GPU_GRAPHICS_ACTIVITY, "any context"),
        gauge(gpu_health.GPU_SM_OCCUPANCY, "resident warps, of the most"),
        worst="lowest",
        absent=_GPM,
    ),
    gpu_lines(
        "Video encoder and decoder",
        gauge(gpu.GPU_ENCODER_UTILIZATION, "encoder"),
        gauge(gpu.GPU_DECODER_UTILIZATION, "decoder"),
    ),
    gpu_lines(
        "Processes with a context",
        gauge(gpu.GPU_TASKS),
        gauge(gpu.GPU_INSTANCE_TASKS, "slice {{slice}}"),
        absent=_UNNAMED,
    ),
    _PROCESSES,
)
_DETAIL_OF_MEMORY = (
    gpu_lines(
        "Memory in use, of what processes can have",
        query(gpu.GPU_MEMORY_USED_BYTES, soundness.memory_share(**OF_GPU), "ratio", ""),
        Query(
            metric=gpu.GPU_INSTANCE_MEMORY_USED_BYTES,
            expression=with_work(
                promql.divide(
                    promql.select(gpu.GPU_INSTANCE_MEMORY_USED_BYTES, **OF_GPU),
                    promql.positive(promql.select(gpu.GPU_INSTANCE_MEMORY_BYTES, **OF_GPU)),
                ),
                on=SLICE,
            ),
            legend=f"{GPU_NAME} slice {{{{slice}}}} {WORK_NAME}",
            unit="ratio",
        ),
    ),
    gpu_lines(
        "Memory by whom it is held",
        gauge(gpu.GPU_MEMORY_USED_BYTES, "processes"),
        gauge(gpu.GPU_MEMORY_RESERVED_BYTES, "driver"),
        gauge(gpu.GPU_MEMORY_FREE_BYTES, "free"),
    ),
    gpu_lines(
        "Memory of each rank's process",
        Query(
            metric=gpu.RANK_GPU_MEMORY,
            expression=promql.of_chosen_runs(promql.select(gpu.RANK_GPU_MEMORY, **OF_GPU), **OF_NODE),
            legend=f"{GPU_NAME} {{{{slice}}}} rank {{{{rank}}}} of {{{{run}}}}",
            unit="bytes",
        ),
        absent="No rank of a run computes here, or the driver counts no memory by process.",
    ),
    gpu_lines(
        "Memory: bandwidth in use, and time in which it is read or written",
        gauge(gpu_health.GPU_DRAM_ACTIVITY, "bandwidth"),
        gauge(gpu.GPU_MEMORY_UTILIZATION, "time"),
    ),
    gpu_lines(
        "Window of the GPU's memory that others reach it through (BAR1), in use",
        query(
            gpu.GPU_BAR1_USED_BYTES,
            promql.divide(
                promql.select(gpu.GPU_BAR1_USED_BYTES, **OF_GPU),
                promql.positive(promql.select(gpu.GPU_BAR1_BYTES, **OF_GPU)),
            ),
            "ratio",
            "",
        ),
    ),
)
_DETAIL_OF_LINKS = (
    gpu_lines(
        "PCIe traffic",
        rate(gpu_health.GPU_PCIE_BYTES, "bytes_per_second", "{{direction}}"),
    ),
    gpu_lines(
        "NVLink traffic",
        rate(gpu_health.GPU_NVLINK_BYTES, "bytes_per_second", "{{direction}}"),
    ),
    gpu_lines("PCIe traffic, by the monitors", gauge(gpu_health.GPU_PCIE_RATE, "{{direction}}"), absent=_GPM),
    gpu_lines("NVLink traffic, by the monitors", gauge(gpu_health.GPU_NVLINK_RATE, "{{direction}}"), absent=_GPM),
    gpu_lines(
        "PCIe link now, of what it can",
        query(soundness.PCIE_LINK, soundness.pcie_share(**OF_GPU), "ratio", ""),
        worst="lowest",
        steps=falling(_LIMITS.links_of_gpus.pcie_link_ratio),
        note="An idle GPU lowers its link; a busy one below the dashed line lacks lanes or generations.",
    ),
    Table(
        title="PCIe and NVLink of each GPU",
        columns=(
            Column(name="GPU", source="gpu", width=60),
            *(
                Column(
                    name=name,
                    source=Query(
                        metric=metric.alone(link=link),
                        expression=promql.largest(promql.select(metric.alone(link=link), **OF_GPU), by=("gpu",)),
                        legend=name,
                        unit="count",
                    ),
                )
                for name, metric, link in (
                    ("Generation now", gpu.GPU_PCIE_GENERATION, "now"),
                    ("At most", gpu.GPU_PCIE_GENERATION, "maximum"),
                    ("Lanes now", gpu.GPU_PCIE_LANES, "now"),
                    ("Lanes at most", gpu.GPU_PCIE_LANES, "maximum"),
                )
            ),
        ),
        sorted_by=("GPU",),
        is_falling=False,
        absent=WATCHED,
    ),
    gpu_lines(
        "Errors of links per second",
        rate(gpu_health.GPU_PCIE_RETRIES, "per_second", "PCIe sent again"),
        rate(gpu_health.GPU_PCIE_ERRORS, "per_second", "PCIe {{kind}}"),
        rate(gpu_health.GPU_NVLINK_ERRORS, "per_second", "NVLink {{kind}}"),
    ),
    gpu_lines(
        "Traffic of each NVLink",
        rate(gpu_health.GPU_NVLINK_LINK_BYTES, "bytes_per_second", "link {{link}} {{direction}}"),
        absent="Each link is shown only where it is asked for: `observatory serve --nvlink-per-link`.",
    ),
)
_DETAIL_OF_ERRORS = (
    gpu_lines(
        "Lost, late, or waiting for a repair",
        query(
            gpu.GPU_STATE,
            # 0 while a GPU answers, 1 in any other state, so that sound GPUs are shown, too.
            promql.either(
                promql.select(gpu.GPU_STATE, **OF_GPU, state=promql.none_of("answering")),
                promql.times(0, promql.select(gpu.GPU_STATE, **OF_GPU, state="answering")),
            ),
            "info",
            "{{state}}",
        ),
        gauge(gpu_health.GPU_RECOVERY, "needs {{action}}", action=promql.none_of("none")),
        query(
            gpu_health.GPU_MEMORY_REPAIR,
            promql.equal(promql.select(gpu_health.GPU_MEMORY_REPAIR, **OF_GPU), 1),
            "info",
            "{{repair}} {{state}}",
        ),
        absent=WATCHED,
    ),
    gpu_lines(
        "Errors that the driver reported, since the agent began",
        gauge(gpu_health.GPU_XIDS, "XID {{xid}} {{slice}}"),
        gauge(gpu_health.GPU_EVENTS, "{{event}}", event=promql.none_of("xid")),
        absent=_NONE_YET,
    ),
    gpu_lines(
        "Memory errors that ECC could not correct",
        gauge(gpu_health.GPU_ECC_VOLATILE_ERRORS, "since the driver was loaded", kind="uncorrected"),
        gauge(gpu_health.GPU_ECC_AGGREGATE_ERRORS, "in its life", kind="uncorrected"),
        # Each row or page stands for an error: it was replaced because of one.
        query(
            gpu_health.GPU_REMAPPED_ROWS,
            promql.select(gpu_health.GPU_REMAPPED_ROWS, **OF_GPU, kind="uncorrected"),
            "errors",
            "rows remapped",
        ),
    ),
    gpu_lines(
        "Memory errors that ECC corrected",
        gauge(gpu_health.GPU_ECC_VOLATILE_ERRORS, "since the driver was loaded ", kind="corrected"),
        gauge(gpu_health.GPU_ECC_AGGREGATE_ERRORS, "in its life ", kind="corrected"),
        query(
            gpu_health.GPU_REMAPPED_ROWS,
            promql.select(gpu_health.GPU_REMAPPED_ROWS, **OF_GPU, kind="corrected"),
            "errors",
            "rows remapped ",
        ),
    ),
    Table(
        title="Time since an error of each kind",
        columns=(
            Column(name="GPU", source="gpu", width=60),
            Column(name="XID", source="xid", width=60),
            Column(name="Event", source="event"),
            Column(
                name="Ago",
                source=Query(
                    metric=gpu_health.GPU_XID_TIME,
                    expression=promql.either(
                        promql.age(promql.select(gpu_health.GPU_XID_TIME, **OF_GPU)),
                        promql.age(promql.select(gpu_health.GPU_EVENT_TIME, **OF_GPU, event=promql.none_of("xid"))),
                    ),
                    legend="Ago",
                    unit="seconds",
                ),
            ),
        ),
        sorted_by=("Ago",),
        is_falling=False,
        absent=_NONE_YET,
    ),
)


def _identity(title: str, labels: dict[str, str], last: Column) -> Table:
    """Return labels of each GPU as a table. labels: by the names of their columns."""
    gpus = (
        Column(name="GPU", source="gpu", width=60),
        *(Column(name=name, source=of, width=_WIDTHS.get(of)) for name, of in labels.items()),
    )
    return Table(
        title=title,
        width=24,
        columns=(*gpus, last),
        sorted_by=("GPU",),
        is_falling=False,
        absent=WATCHED,
    )


_IDENTITY = (
    _identity(
        "What each GPU is",
        {"Name": "name", "Serial": "serial", "UUID": "uuid", "PCI address": "pci_address"},
        Column(
            name="Memory",
            source=Query(
                metric=gpu.GPU_MEMORY_BYTES,
                expression=promql.product(
                    promql.select(gpu.GPU_INFO, **OF_GPU),
                    promql.largest(promql.select(gpu.GPU_MEMORY_BYTES, **OF_GPU), by=GPU),
                    on=GPU,
                ),
                legend="Memory",
                unit="bytes",
            ),
        ),
    ),
    _identity(
        "How each GPU is linked and driven",
        {
            "PCIe": "pcie",
            "NVLink": "nvlink",
            "VBIOS": "vbios",
            "Driver": "driver",
            "CUDA": "cuda",
            "MIG": "mig",
            "NUMA": "numa",
        },
        Column(
            name="There",
            source=Query(
                metric=gpu.GPU_INFO, expression=promql.select(gpu.GPU_INFO, **OF_GPU), legend="There", unit="info"
            ),
        ),
    ),
    Table(
        title="Slices of GPUs (MIG)",
        columns=(
            Column(name="GPU", source="gpu", width=60),
            Column(name="Slice", source="slice"),
            Column(name="Name", source="name"),
            Column(name="Run and rank", source=WORK),
            Column(
                name="There",
                source=Query(
                    metric=gpu.GPU_INSTANCE,
                    expression=with_work(promql.select(gpu.GPU_INSTANCE, **OF_GPU), on=SLICE),
                    legend="There",
                    unit="info",
                ),
            ),
        ),
        absent="None of these GPUs is split by MIG.",
    ),
    Table(
        title="NVLink fabric",
        columns=(
            Column(name="GPU", source="gpu", width=60),
            Column(name="State", source="state", colours={"completed": "good", "not_started": "bad"}),
            Column(name="Clique", source="clique"),
            Column(
                name="There",
                source=Query(
                    metric=gpu.GPU_FABRIC,
                    expression=promql.select(gpu.GPU_FABRIC, **OF_GPU),
                    legend="There",
                    unit="info",
                ),
            ),
        ),
        absent="These GPUs are in no NVLink fabric, or their driver does not tell.",
    ),
)
_READING = (
    gpu_lines("Age of what is shown", gauge(gpu_health.GPU_AGE_SECONDS), absent=WATCHED),
    gpu_lines("Readings that GPUs missed per second", rate(gpu_health.GPU_MISSED, "per_second", ""), absent=WATCHED),
    TimeSeries(
        title="Time of a driver's call, by function: the ten longest",
        queries=(
            Query(
                metric=gpu_health.GPU_CALL_SECONDS,
                expression=standing_out(
                    10,
                    promql.divide(
                        promql.recent_rate(gpu_health.GPU_CALL_SECONDS, **OF_NODE),
                        promql.positive(promql.recent_rate(gpu_health.GPU_CALLS, **OF_NODE)),
                    ),
                ),
                legend="{{function}}",
                unit="seconds",
            ),
        ),
        worst="highest",
        legend="right",
        note="Of the whole node.",
        absent=_COSTS,
    ),
    TimeSeries(
        title="Time of a field, by the driver's own account: the ten longest",
        queries=(
            Query(
                metric=gpu_health.GPU_FIELD_SECONDS,
                expression=standing_out(10, promql.select(gpu_health.GPU_FIELD_SECONDS, **OF_NODE)),
                legend="{{field}}",
                unit="seconds",
            ),
        ),
        worst="highest",
        legend="right",
        note="Of the node's slowest GPU.",
        absent=_COSTS,
    ),
)

ROWS = (
    Row(title="Work", panels=_DETAIL_OF_WORK),
    Row(title="Memory", panels=_DETAIL_OF_MEMORY),
    Row(title="Heat, power and clocks", panels=_DETAIL_OF_HEAT),
    Row(title="Links", panels=_DETAIL_OF_LINKS),
    Row(title="Errors and repairs", panels=_DETAIL_OF_ERRORS),
    Row(title="What these GPUs are", panels=_IDENTITY),
    Row(title="How they are read", panels=_READING),
)
