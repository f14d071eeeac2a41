"""The best that this hardware was seen to do, by the probes in the history that ended well."""

from __future__ import annotations

from collections.abc import Iterator

from bench.doctor.page import Ceiling
from bench.judgement.estimate import Estimate
from bench.judgement.expected_collectives import LIBRARY
from bench.machine import Machine
from bench.store.history import History
from bench.summary import Summary
from collectors.catalogue import ceilings
from collectors.metric import Metric
from workloads.cards.card import Device
from workloads.cards.copies import SIZE_BYTES
from workloads.roster import card_of

RUNS_SEARCHED = 200
"""Of each probe, the newest."""

_METRICS: dict[str, Metric] = {
    "matmul": ceilings.RUN_MATMUL_FLOPS,
    "copies": ceilings.RUN_COPY_BANDWIDTH,
    "collectives": ceilings.RUN_COLLECTIVE_BUS_BANDWIDTH,
    "all_reduce": ceilings.RUN_COLLECTIVE_BUS_BANDWIDTH,
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
    return ranks > 1 or found.metric != ceilings.RUN_COLLECTIVE_BUS_BANDWIDTH.name


def _why_missed(probe: str, machine: Machine, device: Device) -> str:
    on = f"it was not measured on {machine.hardware(device)}"
    if _METRICS[probe] is ceilings.RUN_COLLECTIVE_BUS_BANDWIDTH:
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
