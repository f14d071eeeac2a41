"""The ground on which setups are compared: ranks, their memory, and the rates of `observatory predict` with ranges.

For a remote machine the rates come from data sheets (`bench.analysis.prediction.calibration`, with the sources).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bench.analysis.prediction.calibration import (
    ELEMENTWISE_SHARE,
    HIDDEN_ELSEWHERE,
    HIDING_WORDS,
    OF_SHEETS,
    Calibration,
    Corner,
    link_words,
    links_between,
    sheet_rates,
)
from bench.analysis.prediction.memory import memory_fit, memory_within
from bench.case import Case
from bench.errors import Misuse
from bench.machine.machines.machine_file import PlannedMachine
from bench.report.format import whole_percent
from workloads.cost_models.absent import Absent
from workloads.cost_models.memory import paper_activation_bytes
from workloads.options import checkpoint_every, microbatch_count
from workloads.spec import Precision

RatePair = Literal[
    "slow computing, slow links", "slow computing, fast links", "fast computing, slow links", "fast both"
]
"""Pairs of extreme rates; the machine's rates are assumed to lie between them."""
RATE_PAIRS: Mapping[RatePair, tuple[Corner, Corner]] = {
    "slow computing, slow links": ("low", "low"),
    "slow computing, fast links": ("low", "high"),
    "fast computing, slow links": ("high", "low"),
    "fast both": ("high", "high"),
}
"""Ends of the ranges of computing (with memory) and of links (with hiding)."""
NO_LIMIT = 2**63
OWN_ERROR = 0.05
"""Error that two setups do not share: kernels of other sizes, and effects that the cost models leave out. A step may be
off by this share whatever the rates are. Assumed."""
ORIGIN = f"rates at the ends of their ranges, plus an assumed error of {whole_percent(OWN_ERROR)} of each setup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The ground on which setups are compared.

    ranks, nodes: all of them. room_bytes: memory of a rank; None for no limit.
    machine: that of --on; None for this machine.
    calibration: the rates. by_strategy: those of strategies whose runs hid other shares of communication.
    origin: where the intervals come from, for people.
    """

    ranks: int
    nodes: int
    room_bytes: int | None
    machine: PlannedMachine | None
    calibration: Calibration
    by_strategy: Mapping[str, Calibration] = field(default_factory=dict)
    origin: str = ORIGIN

    def rates(self, case: Case) -> Calibration:
        return self.by_strategy.get(case.strategy, self.calibration)

    @property
    def rests_on(self) -> tuple[str, ...]:
        """Basis of the rates, for people."""
        return self.calibration.rests_on


def ground_on(machine: PlannedMachine, ranks: int, precision: Precision) -> Ground:
    """Return the ground on this many GPUs of a remote machine.

    Raises:
        Misuse: the machine has fewer GPUs, or its peak at this precision or its memory bandwidth is unknown.
    """
    if (refusal := machine.too_few(ranks)) is not None:
        raise Misuse(refusal)
    rates = sheet_rates(machine.peak(precision), machine.memory_bandwidth())
    if isinstance(rates.products, Absent):
        raise Misuse(
            f"--on {machine.name}: {rates.products.reason}; without a peak no step can be predicted: give it in the"
            " machine's file (docs/reference/machines.md)"
        )
    if isinstance(rates.memory, Absent):
        raise Misuse(f"--on {machine.name}: {rates.memory.reason}; without it no step can be predicted")
    nodes = -(-ranks // machine.table.gpus_per_node)
    links = links_between(machine, ranks, nodes)
    names = {level.name for level in links["value"].levels}
    return Ground(
        ranks=ranks,
        nodes=nodes,
        room_bytes=machine.table.gpu.memory_bytes,
        machine=machine,
        calibration=Calibration(
            name=machine.name,
            products=((1.0, rates.products),),
            attention=rates.attention,
            memory=rates.memory,
            elementwise=ELEMENTWISE_SHARE,
            links=links,
            links_origin=OF_SHEETS,
            hiding=HIDDEN_ELSEWHERE,
            rests_on=(rates.products_words, rates.memory_words, *link_words(machine, names), HIDING_WORDS),
        ),
    )


# Memory of the rank that holds most


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes of the rank that holds most.

    basis: peak: the cost model of a step's peak. papers: no such model covers the setup, so it is states, gathered
    weights, and activations as the papers count them. states: the states alone do not fit; the rest is not computed.
    is_least: the figure is a lower bound, which is already too large.
    """

    total_bytes: int
    fits: bool
    basis: Literal["peak", "papers", "states"]
    parts: Mapping[str, int]
    is_least: bool = False


def memory_need(case: Case, ground: Ground) -> MemoryNeed:
    """Compare the memory of the rank that holds most with that of a rank."""
    if ground.machine is not None:
        fit = memory_fit(case, ground.machine)
    else:
        # A host's memory limits only offloaded states, which no search offers.
        fit = memory_within(case, NO_LIMIT if ground.room_bytes is None else ground.room_bytes, NO_LIMIT)
    if not fit.is_least:
        return MemoryNeed(total_bytes=fit.total_bytes, fits=fit.fits, basis="peak", parts=fit.parts)
    parts = {**fit.parts, "activations": _paper_activations(case)}
    total_bytes = sum(parts.values())
    return MemoryNeed(
        total_bytes=total_bytes,
        fits=fit.fits and (ground.room_bytes is None or total_bytes <= ground.room_bytes),
        basis="papers",
        parts=parts,
    )


def _paper_activations(case: Case) -> int:
    """Return the activations of a microbatch as the papers count them."""
    spec = case.spec()
    counted = spec.paper_activations(case)
    if isinstance(counted, int):
        return counted
    sequences = max(1, case.shape.batch // case.data_ranks // microbatch_count(case))
    return paper_activation_bytes(
        case.shape,
        sequences,
        case.options["checkpoint"],  # type: ignore[arg-type]  # The option allows no other word.
        checkpoint_every=checkpoint_every(case),
    )


NOT_IN_STATES = ("accumulate", "microbatches", "checkpoint", "checkpoint_every", "reduce", "loss_chunks")
"""Options that do not affect what a rank holds between steps."""


def states_bytes(case: Case) -> int:
    """Return a lower bound of what a rank holds between steps and gathers: that of the first rank."""
    if case.options.get("offload"):
        return 0
    spec = case.spec()
    states = spec.states(case, 0)
    return states.parameters_bytes + states.gradients_bytes + states.optimizer_bytes + spec.gathered_bytes(case, 0)
