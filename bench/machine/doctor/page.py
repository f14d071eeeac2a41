"""The doctor's page of a machine, as data, and the measured ceilings on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bench.machine.machine import Machine
from bench.machine.machine_diff import MachineDifference
from bench.results.estimate import Estimate
from bench.results.probes import LIBRARY
from bench.store.history import History
from bench.store.summary import Summary
from collectors.metrics import probes as probes_metrics
from collectors.metrics.metric import Metric
from collectors.nvml.library import FieldSupport
from workloads.cost_models.absent import Absent
from workloads.probes.spec import SIZE_BYTES
from workloads.registry import spec_of
from workloads.spec import Device

EntryUnit = Literal["bytes", "hertz", "bits_per_second"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the page. value: in `unit`, or in words; None if unknown. reason: why it is None."""

    name: str
    value: str | int | None = None
    unit: EntryUnit | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The lines of a topic."""

    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedCeiling:
    """The best figure of a kind among successful probes on this hardware, with the run that reached it.

    Without such a run, only `what` and `reason` are set.
    """

    what: str
    best: Estimate | None = None
    setting: str | None = None
    run: str | None = None
    started_ns: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineComparison:
    """The differences from the machine of the last successful run here, among the fields of `Machine`."""

    run: str
    strategy: str
    started_ns: int
    differences: tuple[MachineDifference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFields:
    """NVML queries with the GPUs' answers and their costs. left_out: queries that not every GPU answers, and why."""

    standings: tuple[FieldSupport, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole page. If the history cannot be read, the reason replaces ceilings and comparison."""

    hostname: str
    sections: tuple[Section, ...]
    fields: GpuFields
    ceilings: tuple[ReachedCeiling, ...] | Absent
    comparison: MachineComparison | Absent


# Measured ceilings: the best figures of this hardware among successful probes in the history.

RUNS_SEARCHED = 200
"""The number of newest runs that are searched."""

_METRICS: dict[str, Metric] = {
    "matmul": probes_metrics.RUN_MATMUL_FLOPS,
    "copies": probes_metrics.RUN_COPY_BANDWIDTH,
    "collectives": probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH,
    "all_reduce": probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH,
}
"""The metric of each probe's best figure."""


def measured_ceilings(history: History, machine: Machine) -> tuple[ReachedCeiling, ...]:
    """Return the best figures of each probe on this hardware, beginning with the device that runs use by default.

    The best figure is the highest median of all runs: for `matmul` by precision, for `copies` by kind, for
    `collectives` by collective of the library, for `all_reduce` over all algorithms. Older versions of a probe, copies
    of buffers that may fit into a cache, and bus bandwidths of a single rank, which has no bus, do not count.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    devices: tuple[Device, ...] = ("cuda", "cpu") if machine.gpus else ("cpu",)
    return tuple(
        ceiling
        for device in devices
        for probe in _METRICS
        for ceiling in _of_probe(history, machine, probe, device, is_missed=device == devices[0])
    )


def _of_probe(
    history: History, machine: Machine, probe: str, device: Device, *, is_missed: bool
) -> Iterator[ReachedCeiling]:
    best: dict[str, tuple[float, ReachedCeiling]] = {}
    for summary in history.runs(RUNS_SEARCHED, strategy=probe):
        for figure in _figures(summary, machine, device):
            what, setting = _described(figure, summary)
            if what not in best or figure.median > best[what][0]:
                ceiling = ReachedCeiling(
                    what=what, best=figure, setting=setting, run=summary.run, started_ns=summary.started_ns
                )
                best[what] = figure.median, ceiling
    yield from (ceiling for _, ceiling in best.values())
    if not best and is_missed:
        yield ReachedCeiling(what=probe, reason=_why_missed(probe, machine, device))


def _figures(summary: Summary, machine: Machine, device: Device) -> Iterator[Estimate]:
    """Yield the run's figures that count as ceilings; none if it ran on other hardware or another probe version."""
    case = summary.case
    if (summary.outcome, case.device, summary.hardware) != ("done", device, machine.hardware(device)):
        return
    if case.version != spec_of(case.strategy).version_on(device):
        return
    metric = _METRICS[case.strategy]
    for estimate in summary.estimates:
        if estimate.metric != metric.name:
            continue
        if case.strategy == "copies":
            counts = int(estimate.labels["size"]) >= SIZE_BYTES[device]  # Smaller buffers may fit into a cache.
        else:
            counts = case.ranks > 1 or metric is not probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH
        if counts:
            yield estimate


def _why_missed(probe: str, machine: Machine, device: Device) -> str:
    on = f"it was not measured on {machine.hardware(device)}"
    if _METRICS[probe] is probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH:
        if device == "cuda" and len(machine.gpus) == 1:
            return "it needs 2 ranks with a GPU each, but there is one GPU"
        return f"{on} with 2 ranks or more; `observatory run {probe} --ranks 2` measures it"
    if probe == "copies":
        return f"{on} with buffers of {SIZE_BYTES[device]:,} B or more; `observatory run copies` measures it"
    return f"{on}; `observatory run {probe}` measures it"


def _described(figure: Estimate, summary: Summary) -> tuple[str, str]:
    """Return in words what the figure measures, and the setting in which it was reached."""
    case, labels = summary.case, figure.labels
    ranks = f"{case.ranks} rank{'s' if case.ranks > 1 else ''}"
    if case.strategy == "matmul":
        return f"matmul {case.precision}", f"{labels['m']} x {labels['n']} x {labels['k']}, {ranks}, {case.device}"
    size = f"{int(labels['size']):,} B"
    if case.strategy == "copies":
        return labels["kind"], f"{size}, {ranks}, {case.device}"
    of = labels["collective"] if case.strategy == "collectives" else "all_reduce by the best algorithm"
    algorithm = "" if labels["algorithm"] == LIBRARY else f"{labels['algorithm']}, "
    return f"{of}, busbw", f"{algorithm}{size}, {case.precision}, {ranks}, {case.backend}"
