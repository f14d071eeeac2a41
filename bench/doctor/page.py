"""What the doctor's page says of a machine, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bench.analysis.estimate import Estimate
from bench.analysis.mfu import Absent
from bench.analysis.probes import LIBRARY
from bench.doctor.machine_diff import Difference
from bench.machine.machine import Machine
from bench.runs.history import History
from bench.runs.summary import Summary
from collectors.metrics import probes as probes_metrics
from collectors.metrics.metric import Metric
from collectors.nvml.library import Standing
from workloads.probes.spec import SIZE_BYTES
from workloads.registry import card_of
from workloads.spec import Device

Unit = Literal["bytes", "hertz", "bits_per_second"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the page. value: in its unit, or in words; None where it cannot be known, for `reason`."""

    name: str
    value: str | int | None = None
    unit: Unit | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Lines that belong together."""

    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The best figure of the probes that ended well on this hardware, and of which; None in all but `what` of none."""

    what: str
    best: Estimate | None = None
    setting: str | None = None
    run: str | None = None
    started_ns: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs from the machine of the last run that ended well here: what a `Machine` holds, and no more."""

    run: str
    strategy: str
    started_ns: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFields:
    """Questions by GPUs, with answers and costs. left_out: what no GPU, or not every GPU, tells, and why."""

    standings: tuple[Standing, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole page. Where the history cannot be read, that stands in place of what it would tell."""

    hostname: str
    sections: tuple[Section, ...]
    fields: GpuFields
    ceilings: tuple[Ceiling, ...] | Absent
    comparison: Comparison | Absent


# The best that this hardware was seen to do, by the probes in the history that ended well.

RUNS_SEARCHED = 200
"""Of each probe, the newest."""

_METRICS: dict[str, Metric] = {
    "matmul": probes_metrics.RUN_MATMUL_FLOPS,
    "copies": probes_metrics.RUN_COPY_BANDWIDTH,
    "collectives": probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH,
    "all_reduce": probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH,
}
"""What each probe's best figure is of."""


def measured_ceilings(history: History, machine: Machine) -> tuple[Ceiling, ...]:
    """The best figures of each probe on this hardware, the device's first that runs choose here.

    Of `matmul` for each precision, of `copies` for each kind, of `collectives` for each collective of the library, and
    of `all_reduce` for the best algorithm: the highest median of all its runs. A probe's older versions do not count;
    nor do copies of buffers that a cache may hold, nor bus bandwidths of one rank, which has no bus.

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
    best: dict[str, tuple[Estimate, Summary]] = {}
    for summary in history.runs(RUNS_SEARCHED, probe):
        for found in _figures(summary, machine, device):
            what = _what(probe, found, summary)
            if what not in best or found.median > best[what][0].median:
                best[what] = found, summary
    for what, (found, summary) in best.items():
        yield Ceiling(
            what=what,
            best=found,
            setting=_setting(probe, found, summary),
            run=summary.run,
            started_ns=summary.started_ns,
        )
    if not best and is_missed:
        yield Ceiling(what=probe, reason=_why_missed(probe, machine, device))


def _figures(summary: Summary, machine: Machine, device: Device) -> Iterator[Estimate]:
    """What the run found of this hardware's ceilings; nothing where it is of another, or of another definition."""
    case = summary.case
    if (
        summary.outcome == "done"
        and case.device == device
        and case.version == card_of(case.strategy).version_on(device)
        and summary.hardware == machine.hardware(device)
    ):
        yield from (found for found in summary.estimates if _counts(found, case.strategy, case.ranks, device))


def _counts(found: Estimate, probe: str, ranks: int, device: Device) -> bool:
    if found.metric != _METRICS[probe].name:
        return False
    if probe == "copies":
        return int(found.labels["size"]) >= SIZE_BYTES[device]
    return ranks > 1 or found.metric != probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH.name


def _why_missed(probe: str, machine: Machine, device: Device) -> str:
    on = f"it was not measured on {machine.hardware(device)}"
    if _METRICS[probe] is probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH:
        if device == "cuda" and len(machine.gpus) == 1:
            return "it needs 2 ranks, of a GPU each, and there is one GPU"
        return f"{on} with 2 ranks or more; `observatory run {probe} --ranks 2` does"
    if probe == "copies":
        return f"{on} in buffers of {SIZE_BYTES[device]:,} B or more; `observatory run copies` does"
    return f"{on}; `observatory run {probe}` does"


def _what(probe: str, found: Estimate, summary: Summary) -> str:
    match probe:
        case "matmul":
            return f"matmul {summary.case.precision}"
        case "copies":
            return found.labels["kind"]
        case "collectives":
            return f"{found.labels['collective']}, busbw"
        case _:
            return "all_reduce by the best algorithm, busbw"


def _setting(probe: str, found: Estimate, summary: Summary) -> str:
    """In which setting the figure was reached."""
    case, labels = summary.case, found.labels
    ranks = f"{case.ranks} rank{'s' if case.ranks > 1 else ''}"
    if probe == "matmul":
        return f"{labels['m']} x {labels['n']} x {labels['k']}, {ranks}, {case.device}"
    size = f"{int(labels['size']):,} B"
    if probe == "copies":
        return f"{size}, {ranks}, {case.device}"
    algorithm = "" if labels["algorithm"] == LIBRARY else f"{labels['algorithm']}, "
    return f"{algorithm}{size}, {case.precision}, {ranks}, {case.backend}"
