"""Rates that a forecast takes a machine to reach, each with its range: those of data sheets, or of this history.

The ranges of data sheets are constants, measured elsewhere and named here. `bench.analysis.prediction.from_history` has
those of runs. Imports no torch and asks nothing of this host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bench.analysis.prediction.fit import COMPUTE_EFFICIENCY, LINK_EFFICIENCY
from bench.case import Case
from bench.machine.machines.machine_file import PlannedMachine
from workloads.core.precision_options import is_fp8
from workloads.cost_models.absent import Absent
from workloads.cost_models.interconnect import Interconnect, transfer_axis
from workloads.cost_models.roofline import interpolated_rate

Corner = Literal["low", "value", "high"]
"""All rates at the low ends of their ranges, at their values, or at the high ends."""
CORNERS: tuple[Corner, ...] = ("low", "value", "high")

COMPUTE_SPREAD = (0.40, 0.68)
"""Share of a data sheet's dense peak that whole training steps reach, recomputing included: the middle 80 % of 209 rows
in bf16 on A100 and H100, 125 million to 70 billion parameters, 8 GPUs and more. The median is 0.53.
Source: mosaicml/llm-foundry, scripts/train/benchmarking/README.md, column HFU, 2025-07-21 (8c8dd48)."""
LINK_SPREAD = (0.67, 1.07)
"""Share of a link's bandwidth by the data sheet that NCCL reaches: from 200 of 300 GB/s (all_reduce of 1 GB, A100) over
370 of 450 (H100, ring) to 480 of 450 (H100, sums in the switch).
Source: NVIDIA/nccl-tests issues 149 (2023-06-27) and 212 (2024-05-06)."""
MEMORY_EFFICIENCY = 0.8
"""Share of the data sheet's memory bandwidth that a kernel reaches which only reads and writes."""
MEMORY_SPREAD = (0.74, 0.87)
"""The same, as copies within a GPU measured it: 1,500 of 2,039 GB/s (A100 80 GB), 2,573 of 3,350 (H100), 1,355 of 1,555
(A100 40 GB).
Source: NVIDIA/cuda-samples issue 311 (2025-04-03), NVIDIA/nccl issue 1264 (2024-04-24),
PTsolvers/gpu-workshop-JuliaCon23 issue 7 (2023-07-25)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A figure and the range that it may have. origin: where the range comes from, for people."""

    value: float
    low: float
    high: float
    origin: str

    def at(self, corner: Corner) -> float:
        """Return the end of this corner."""
        return {"low": self.low, "value": self.value, "high": self.high}[corner]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Rates of one machine, for the cases of one precision and device.

    name: of the machine, for people.
    products: FLOP/s by the rows of square matrices, ascending; a single one holds for all sizes; or why none is known.
    is_whole: the rates are those of whole steps, which include attention, norms and element-wise kernels.
    memory: bytes per second that element-wise kernels and the optimizer read and write.
    links: the interconnect with its bandwidths at each corner, or why none is known. links_origin: of their range.
    hiding: share of the hidden communication that the cost model allows; 1 where nothing was measured.
    rests_on: what the figures rest on, for people. missing: what is not measured, each with the command that does.
    """

    name: str
    products: tuple[tuple[float, Range], ...] | Absent
    is_whole: bool
    memory: Range | Absent
    links: Mapping[Corner, Interconnect] | Absent
    links_origin: str
    hiding: Range
    rests_on: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def rate(self, size: float, corner: Corner) -> float:
        """Return FLOP/s of a product of this size.

        Raises:
            ValueError: no rate is known.
        """
        if isinstance(self.products, Absent):
            raise ValueError(self.products.reason)
        return interpolated_rate(size, tuple((rows, each.at(corner)) for rows, each in self.products))


FULLY_HIDDEN = Range(value=1.0, low=1.0, high=1.0, origin="assumed: as much is hidden as the cost model allows")


def sheet_calibration(case: Case, machine: PlannedMachine) -> Calibration:
    """Return the rates of a machine that is not here: its data sheets', times shares that are reached elsewhere."""
    rests_on: list[str] = []
    peak = machine.peak(case.precision)
    products: tuple[tuple[float, Range], ...] | Absent
    if isinstance(peak, Absent):
        products = peak
    elif is_fp8(case):
        products = Absent(reason="nothing is assumed of the rate of fp8 products; use another --option weights")
    else:
        products = ((1.0, _of_sheet(peak.flops_per_second, COMPUTE_EFFICIENCY, COMPUTE_SPREAD)),)
        rests_on.append(
            f"computing at {COMPUTE_EFFICIENCY:.0%} [{COMPUTE_SPREAD[0]:.0%}, {COMPUTE_SPREAD[1]:.0%}] of"
            f" {peak.flops_per_second / 1e12:,.1f} TFLOP/s, the {case.precision} peak ({peak.source})"
        )
    bandwidth = machine.memory_bandwidth()
    memory: Range | Absent
    if isinstance(bandwidth, Absent):
        memory = bandwidth
    else:
        memory = _of_sheet(bandwidth, MEMORY_EFFICIENCY, MEMORY_SPREAD)
        rests_on.append(
            f"memory at {MEMORY_EFFICIENCY:.0%} [{MEMORY_SPREAD[0]:.0%}, {MEMORY_SPREAD[1]:.0%}] of"
            f" {bandwidth / 1e9:,.0f} GB/s"
        )
    shares: dict[Corner, float] = {"low": LINK_SPREAD[0], "value": LINK_EFFICIENCY, "high": LINK_SPREAD[1]}
    links = {corner: machine.interconnect(case.ranks, case.nodes, efficiency=share) for corner, share in shares.items()}
    crossed = _crossed(case, links["value"])
    rests_on += [
        f"{level.name} at {LINK_EFFICIENCY:.0%} [{LINK_SPREAD[0]:.0%}, {LINK_SPREAD[1]:.0%}] of"
        f" {level.bandwidth_bytes_per_second / 1e9:.4g} GB/s a GPU in each direction, {1e6 * level.latency_s:g} us a"
        f" message ({level.source})"
        for level in machine.table.levels
        if level.name in crossed
    ]
    if can_hide(case):
        rests_on.append("as much hidden communication as the cost model allows, which no run confirms")
    return Calibration(
        name=machine.name,
        products=products,
        is_whole=True,
        memory=memory,
        links=links,
        links_origin=_OF_SHEETS,
        hiding=FULLY_HIDDEN,
        rests_on=tuple(rests_on),
    )


def can_hide(case: Case) -> bool:
    """Whether the cost model hides some of the case's transfers behind computing; a pipeline is simulated instead."""
    spec = case.spec()
    return spec.pipeline(case) is None and any(transfer.behind is not None for transfer in spec.transfers(case))


_OF_SHEETS = "spread of measured over data-sheet rates elsewhere"


def _of_sheet(rate: float, share: float, spread: tuple[float, float]) -> Range:
    return Range(value=share * rate, low=spread[0] * rate, high=spread[1] * rate, origin=_OF_SHEETS)


def _crossed(case: Case, interconnect: Interconnect) -> set[str]:
    """Return the names of the levels that the case's transfers cross."""
    axes = case.spec().mesh(case)
    return {
        level.name
        for axis in {transfer_axis(transfer, axes) for transfer in case.spec().transfers(case)}
        for level in interconnect.crossed(axis)
    }
