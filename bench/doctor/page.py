"""The doctor's page of a machine, as data, and the measured ceilings on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bench.analysis.estimate import Estimate
from bench.analysis.probes import LIBRARY
from bench.machine.machine import Machine
from bench.machine.machine_diff import Difference
from bench.runs.history import History
from bench.runs.summary import Summary
from collectors.metrics import probes as probes_metrics
from collectors.metrics.metric import Metric
from collectors.nvml.library import FieldSupport
from workloads.cost_models.absent import Absent
from workloads.probes.spec import SIZE_BYTES
from workloads.registry import spec_of
from workloads.spec import Device

Unit = Literal["bytes", "hertz", "bits_per_second"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the page. value: in `unit`, or in words; None if it cannot be known. reason: why it is None."""

    name: str
    value: str | int | None = None
    unit: Unit | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Lines of one topic."""

    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The best figure of one kind among the probes that ended well on this hardware, with the run that reached it.

    Without such a run, only `what` and `reason` are set.
    """

    what: str
    best: Estimate | None = None
    setting: str | None = None
    run: str | None = None
    started_ns: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs from the machine of the last run that ended well here, among the fields of `Machine`."""

    run: str
    strategy: str
    started_ns: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFields:
    """NVML's questions to the GPUs, with answers and costs. left_out: what not every GPU answers, and why."""

    standings: tuple[FieldSupport, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole page. If the history cannot be read, the reason is in place of ceilings and comparison."""

    hostname: str
    sections: tuple[Section, ...]
    fields: GpuFields
    ceilings: tuple[Ceiling, ...] | Absent
    comparison: Comparison | Absent


# Measured ceilings: the best figures of this hardware among the probes in the history that ended well.

RUNS_SEARCHED = 200
"""How many of the newest runs are searched."""

_METRICS: dict[str, Metric] = {
    "matmul": probes_metrics.RUN_MATMUL_FLOPS,
    "copies": probes_metrics.RUN_COPY_BANDWIDTH,
    "collectives": probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH,
    "all_reduce": probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH,
}
"""The metric of each probe's best figure."""


def measured_ceilings(history: History, machine: Machine) -> tuple[Ceiling, ...]:
    """Return the best figures of each probe on this hardware, first those of the device that runs use by default.

    The best figure is the highest median of all runs: for `matmul` by precision, for `copies` by kind, for
    `collectives` by collective of the library, for `all_reduce` over all algorithms. Not counted are older versions of
    a probe, copies of buffers that may fit into a cache, and bus bandwidths of one rank, which has no bus.

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


def _of_probe(history: History, machine: Machine, probe: str, device: Device, *, is_missed: bool) -> Iterator[Ceiling]:
    best: dict[str, tuple[float, Ceiling]] = {}
    for summary in history.runs(RUNS_SEARCHED, strategy=probe):
        for found in _figures(summary, machine, device):
            what, setting = _described(found, summary)
            if what not in best or found.median > best[what][0]:
                ceiling = Ceiling(
                    what=what, best=found, setting=setting, run=summary.run, started_ns=summary.started_ns
                )
                best[what] = found.median, ceiling
    yield from (ceiling for _, ceiling in best.values())
    if not best and is_missed:
        yield Ceiling(what=probe, reason=_why_missed(probe, machine, device))


def _figures(summary: Summary, machine: Machine, device: Device) -> Iterator[Estimate]:
    """Yield the run's figures that count as ceilings; none if it ran on other hardware or another probe version."""
    case = summary.case
    if (summary.outcome, case.device, summary.hardware) != ("done", device, machine.hardware(device)):
        return
    if case.version != spec_of(case.strategy).version_on(device):
        return
    metric = _METRICS[case.strategy]
    for found in summary.estimates:
        if found.metric != metric.name:
            continue
        if case.strategy == "copies":
            counts = int(found.labels["size"]) >= SIZE_BYTES[device]  # Smaller buffers may fit into a cache.
        else:
            counts = case.ranks > 1 or metric is not probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH
        if counts:
            yield found


def _why_missed(probe: str, machine: Machine, device: Device) -> str:
    on = f"it was not measured on {machine.hardware(device)}"
    if _METRICS[probe] is probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH:
        if device == "cuda" and len(machine.gpus) == 1:
            return "it needs 2 ranks with a GPU each, and there is one GPU"
        return f"{on} with 2 ranks or more; `observatory run {probe} --ranks 2` measures it"
    if probe == "copies":
        return f"{on} in buffers of {SIZE_BYTES[device]:,} B or more; `observatory run copies` measures it"
    return f"{on}; `observatory run {probe}` measures it"


def _described(found: Estimate, summary: Summary) -> tuple[str, str]:
    """Return what the figure is of, and the setting in which it was reached, in words."""
    case, labels = summary.case, found.labels
    ranks = f"{case.ranks} rank{'s' if case.ranks > 1 else ''}"
    if case.strategy == "matmul":
        return f"matmul {case.precision}", f"{labels['m']} x {labels['n']} x {labels['k']}, {ranks}, {case.device}"
    size = f"{int(labels['size']):,} B"
    if case.strategy == "copies":
        return labels["kind"], f"{size}, {ranks}, {case.device}"
    of = labels["collective"] if case.strategy == "collectives" else "all_reduce by the best algorithm"
    algorithm = "" if labels["algorithm"] == LIBRARY else f"{labels['algorithm']}, "
    return f"{of}, busbw", f"{algorithm}{size}, {case.precision}, {ranks}, {case.backend}"
