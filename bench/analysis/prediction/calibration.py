"""The rates, each with a range, that a forecast assumes for a machine: from data sheets, or from its history.

Ranges relative to data sheets are constants, measured elsewhere. `bench.analysis.prediction.from_history` reads rates
from runs. Imports no torch and does not query this host.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Literal

from bench.case import Case
from bench.machine.machines.machine_file import PlannedMachine
from bench.report.format import whole_percent
from bench.results.mfu import Peak
from workloads.core.precision_options import is_fp8
from workloads.cost_models.absent import Absent
from workloads.cost_models.interconnect import Interconnect, transfer_axis
from workloads.cost_models.roofline import interpolated_rate
from workloads.pipeline_parallel.spec import BALANCE

Corner = Literal["low", "value", "high"]
"""All rates at the low ends of their ranges, at their values, or at the high ends."""
CORNERS: tuple[Corner, ...] = ("low", "value", "high")

# The model of a step by data sheets. Its constants are fitted to some published rows and tested on others:
# `tests/bench/analysis/prediction/published` does both, and docs/measured/published.md has every error. Fitted to: 38
# rows of mosaicml/llm-foundry, scripts/train/benchmarking/README.md at 4952183 (760M, 3B, 13B and 70B; 8 to 512 H100
# SXM of 80 GB; FSDP in bf16; torch 2.1; 2023-10 and 2024-01). Ranges: the middle 80 % of the values that would make a
# row exact, over the rows in which the constant's part is at least a fifth of the step.

PRODUCTS_SHARE = 0.78
"""Share of the data sheet's dense peak that matrix products reach."""
PRODUCTS_SPREAD = (0.57, 0.83)
"""The rows of the fit give 0.73 to 0.83. The low end comes from torchtitan's four rows, which are not in the fit: FSDP2
of torch 2.6 on H100 of 96 GB that are limited to 500 W (docs/measured/published.md)."""
ATTENTION_SHARE = 0.18
"""Share of the peak that a fused causal kernel reaches, counting the half of the scores that it needs."""
ATTENTION_SPREAD = (0.17, 0.19)
ELEMENTWISE_SHARE = 0.77
"""Share of the bytes of element-wise kernels, counted kernel by kernel, that memory moves; caches serve the rest. The
range of the memory bandwidth covers its scatter."""
HIDDEN_SHARE = 0.16
"""Share of the overlappable communication that is hidden in practice. The rest adds to the step: a collective slows the
kernels that it overlaps, or its links are slower than LINK_EFFICIENCY assumes."""
HIDDEN_SPREAD = (0.0, 0.26)
"""The rows of the fit give 0.09 to 0.26. The low end comes from a fit to the other models alone."""
LINK_EFFICIENCY = 0.8
"""Share of a link's data-sheet bandwidth that an NCCL ring reaches with large messages. Assumed."""
LINK_SPREAD = (0.67, 1.07)
"""Share of a link's data-sheet bandwidth that NCCL reaches: from 200 of 300 GB/s (all_reduce of 1 GB, A100) over 370 of
450 (H100, ring) to 480 of 450 (H100, sums in the switch).
Source: NVIDIA/nccl-tests issues 149 (2023-06-27) and 212 (2024-05-06)."""
MEMORY_EFFICIENCY = 0.8
"""Share of the data sheet's memory bandwidth that a kernel reaches if it only reads and writes."""
MEMORY_SPREAD = (0.74, 0.87)
"""Measured by copies within a GPU: 1,500 of 2,039 GB/s (A100 80 GB), 2,573 of 3,350 (H100), 1,355 of 1,555 (A100 40
GB).
Source: NVIDIA/cuda-samples issue 311 (2025-04-03), NVIDIA/nccl issue 1264 (2024-04-24),
PTsolvers/gpu-workshop-JuliaCon23 issue 7 (2023-07-25)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A figure and its range. origin: where the range comes from, for people."""

    value: float
    low: float
    high: float
    origin: str

    def at(self, corner: Corner) -> float:
        """Return the end at this corner."""
        return {"low": self.low, "value": self.value, "high": self.high}[corner]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Rates of one machine, for one precision and device.

    name: of the machine, for people.
    products: FLOP/s by the rows of square matrices, ascending; a single entry applies to all sizes; or why none is
        known.
    attention: FLOP/s of fused attention; None if it has the rate of a product with as many operations.
    memory: bytes per second that element-wise kernels and the optimizer read and write.
    elementwise: share of the counted bytes of element-wise kernels that memory moves.
    links: the interconnect with its bandwidths at each corner, or why none is known. links_origin: where their range
        comes from.
    hiding: the hidden communication as a share of what the cost model allows; 1 if it was neither measured nor fitted.
    pass_host: seconds of a rank's host for the forward, or the backward, of one block and one microbatch; None if
        nothing shows them.
    rests_on: basis of the figures, for people. missing: each rate that was not measured, with the command that measures
        it.
    runs: the newest run of each probe that the rates rest on, and the newest that shows the host's time.
    """

    name: str
    products: tuple[tuple[float, Range], ...] | Absent
    attention: Range | None
    memory: Range | Absent
    elementwise: float
    links: Mapping[Corner, Interconnect] | Absent
    links_origin: str
    hiding: Range
    pass_host: Range | None = None
    rests_on: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    def rate(self, size: float, corner: Corner) -> float:
        """Return FLOP/s of a product of this size.

        Raises:
            ValueError: no rate is known.
        """
        if isinstance(self.products, Absent):
            raise ValueError(self.products.reason)
        return interpolated_rate(size, tuple((rows, each.at(corner)) for rows, each in self.products))

    def attention_rate(self, size: float, corner: Corner) -> float:
        """Return FLOP/s of attention of this size, see `ForwardWork.attention`.

        Raises:
            ValueError: no rate is known.
        """
        return self.rate(size, corner) if self.attention is None else self.attention.at(corner)


FULLY_HIDDEN = Range(value=1.0, low=1.0, high=1.0, origin="assumed: as much is hidden as the cost model allows")


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetRates:
    """Rates of one GPU by its data sheet and the model, or why there are none; and the basis of each, for people."""

    products: Range | Absent
    attention: Range | None
    memory: Range | Absent
    products_words: str
    memory_words: str


def sheet_rates(peak: Peak | Absent, bandwidth: float | Absent) -> SheetRates:
    """Return the rates of a GPU with this peak and memory bandwidth (bytes per second)."""
    products: Range | Absent
    memory: Range | Absent
    attention, products_words, memory_words = None, "", ""
    if isinstance(peak, Absent):
        products = peak
    else:
        rate = peak.flops_per_second
        products = _of_sheet(rate, PRODUCTS_SHARE, PRODUCTS_SPREAD)
        attention = _of_sheet(rate, ATTENTION_SHARE, ATTENTION_SPREAD)
        products_words = (
            f"products at {_shares(PRODUCTS_SHARE, PRODUCTS_SPREAD)} and attention at"
            f" {_shares(ATTENTION_SHARE, ATTENTION_SPREAD)} of {rate / 1e12:,.1f} TFLOP/s, the {peak.precision} peak"
            f" ({peak.source})"
        )
    if isinstance(bandwidth, Absent):
        memory = bandwidth
    else:
        memory = _of_sheet(bandwidth, MEMORY_EFFICIENCY, MEMORY_SPREAD)
        memory_words = (
            f"memory at {_shares(MEMORY_EFFICIENCY, MEMORY_SPREAD)} of {bandwidth / 1e9:,.0f} GB/s, which moves"
            f" {whole_percent(ELEMENTWISE_SHARE)} of the bytes counted for element-wise kernels"
        )
    return SheetRates(
        products=products,
        attention=attention,
        memory=memory,
        products_words=products_words,
        memory_words=memory_words,
    )


def sheet_calibration(case: Case, machine: PlannedMachine) -> Calibration:
    """Return the rates of a remote machine: those of its data sheets, times the shares that other machines reach."""
    peak: Peak | Absent = machine.peak(case.precision)
    if is_fp8(case):
        peak = Absent(reason="no rate is assumed for fp8 products; use another --option weights")
    rates = sheet_rates(peak, machine.memory_bandwidth())
    rests_on = [line for line in (rates.products_words, rates.memory_words) if line]
    if case.options.get(BALANCE.name) == "measured":
        rests_on.append("stages that balance=flops cuts: only a run measures the times that balance=measured cuts by")
    links, words = sheet_links(case, machine)
    rests_on += words
    if can_hide(case):
        rests_on.append(HIDING_WORDS)
    return Calibration(
        name=machine.name,
        products=rates.products if isinstance(rates.products, Absent) else ((1.0, rates.products),),
        attention=rates.attention,
        memory=rates.memory,
        elementwise=ELEMENTWISE_SHARE,
        links=links,
        links_origin=OF_SHEETS,
        hiding=HIDDEN_ELSEWHERE,
        rests_on=tuple(rests_on),
    )


def sheet_links(case: Case, machine: PlannedMachine) -> tuple[Mapping[Corner, Interconnect], list[str]]:
    """Return the machine's interconnect at each corner, and the basis of each level that the case crosses."""
    links = links_between(machine, case.ranks, case.nodes)
    return links, link_words(machine, _crossed(case, links["value"]))


def links_between(machine: PlannedMachine, ranks: int, nodes: int) -> Mapping[Corner, Interconnect]:
    """Return the machine's interconnect between this many ranks at each corner."""
    shares: dict[Corner, float] = {"low": LINK_SPREAD[0], "value": LINK_EFFICIENCY, "high": LINK_SPREAD[1]}
    return {corner: machine.interconnect(ranks, nodes, efficiency=share) for corner, share in shares.items()}


def link_words(machine: PlannedMachine, names: Container[str]) -> list[str]:
    """Return the basis of the levels with these names, for people."""
    return [
        f"{level.name} at {_shares(LINK_EFFICIENCY, LINK_SPREAD)} of"
        f" {level.bandwidth_bytes_per_second / 1e9:.4g} GB/s a GPU in each direction, {1e6 * level.latency_s:g} us a"
        f" message ({level.source})"
        for level in machine.table.levels
        if level.name in names
    ]


def can_hide(case: Case) -> bool:
    """Whether the cost model may hide transfers behind computing; false for a pipeline, which is simulated."""
    spec = case.spec()
    return spec.pipeline(case) is None and any(transfer.behind is not None for transfer in spec.transfers(case))


OF_SHEETS = "scatter of rates that were measured elsewhere, relative to data sheets"
HIDDEN_ELSEWHERE = Range(value=HIDDEN_SHARE, low=HIDDEN_SPREAD[0], high=HIDDEN_SPREAD[1], origin=OF_SHEETS)


def _shares(share: float, spread: tuple[float, float]) -> str:
    """Return a share with its range: "78 % [57, 83]"."""
    return f"{whole_percent(share)} [{100 * spread[0]:.0f}, {100 * spread[1]:.0f}]"


HIDING_WORDS = f"{_shares(HIDDEN_SHARE, HIDDEN_SPREAD)} of the communication that may hide behind computing is hidden"


def _of_sheet(rate: float, share: float, spread: tuple[float, float]) -> Range:
    return Range(value=share * rate, low=spread[0] * rate, high=spread[1] * rate, origin=OF_SHEETS)


def _crossed(case: Case, interconnect: Interconnect) -> set[str]:
    """Return the names of the levels that the case's transfers cross; none for a probe."""
    if case.model is None:
        return set()
    axes = case.spec().mesh(case)
    return {
        level.name
        for axis in {transfer_axis(transfer, axes) for transfer in case.spec().transfers(case)}
        for level in interconnect.crossed(axis)
    }
