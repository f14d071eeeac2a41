"""What setups are compared on: ranks, their memory, the rates at which they compute and send, and how far these may be
off.

On a machine that is not here the rates are a data sheet's, times an efficiency that is assumed. Their spread is that of
measured over data-sheet rates elsewhere, as `bench.analysis.prediction.calibration` states it with its sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bench.analysis.prediction import calibration
from bench.analysis.prediction.fit import COMPUTE_EFFICIENCY, LINK_EFFICIENCY, memory_fit, memory_within
from bench.case import Case
from bench.errors import Misuse
from bench.machine.machines.machine_file import PlannedMachine
from workloads.cost_models.absent import Absent
from workloads.cost_models.interconnect import Interconnect
from workloads.cost_models.memory import paper_activation_bytes
from workloads.options import checkpoint_every, microbatch_count
from workloads.spec import Precision

Corner = Literal["slow computing, slow links", "slow computing, fast links", "fast computing, slow links", "fast both"]
"""The rates between which those of the machine are assumed to lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A rate as a share of what is taken for it: at the lowest and at the highest."""

    low: float
    high: float


NO_SPREAD = Spread(low=1.0, high=1.0)
COMPUTE_SPREAD = Spread(
    low=calibration.COMPUTE_SPREAD[0] / COMPUTE_EFFICIENCY, high=calibration.COMPUTE_SPREAD[1] / COMPUTE_EFFICIENCY
)
LINK_SPREAD = Spread(
    low=calibration.LINK_SPREAD[0] / LINK_EFFICIENCY, high=calibration.LINK_SPREAD[1] / LINK_EFFICIENCY
)
MEMORY_SPREAD = Spread(
    low=calibration.MEMORY_SPREAD[0] / calibration.MEMORY_EFFICIENCY,
    high=calibration.MEMORY_SPREAD[1] / calibration.MEMORY_EFFICIENCY,
)
NO_LIMIT = 2**63
OWN_ERROR = 0.05
"""What two setups do not share: kernels of other sizes, and what the cost models leave out. A step may be off by this
share on its own, whatever the rates are. Assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What setups are compared on.

    ranks, nodes: all of them. room_bytes: memory of a rank; None where nothing limits it.
    machine: the one of --on; None for this machine.
    flops_per_second: at which a rank computes. interconnect: between the ranks, or why its links are unknown.
    compute_spread, link_spread: how far these may be off. origin: where the spread comes from, for people.
    memory_bytes_per_second: at which an optimizer reads and writes; None where it is not known, and then no step has an
        optimizer. memory_spread: how far it may be off.
    rests_on: what the rates are, for people.
    """

    ranks: int
    nodes: int
    room_bytes: int | None
    machine: PlannedMachine | None
    flops_per_second: float
    interconnect: Interconnect | Absent
    compute_spread: Spread
    link_spread: Spread
    origin: str
    rests_on: tuple[str, ...]
    memory_bytes_per_second: float | None = None
    memory_spread: Spread = NO_SPREAD

    @property
    def corners(self) -> Mapping[Corner, tuple[float, float]]:
        """The rates of computing and of links at each corner, as shares of those that are taken."""
        compute, links = self.compute_spread, self.link_spread
        return {
            "slow computing, slow links": (compute.low, links.low),
            "slow computing, fast links": (compute.low, links.high),
            "fast computing, slow links": (compute.high, links.low),
            "fast both": (compute.high, links.high),
        }


def ground_on(machine: PlannedMachine, ranks: int, precision: Precision) -> Ground:
    """Return what setups are compared on, on so many GPUs of a machine that is not here.

    Raises:
        Misuse: the machine has fewer GPUs, or nothing gives its peak at this precision.
    """
    if (refusal := machine.too_few(ranks)) is not None:
        raise Misuse(refusal)
    peak = machine.peak(precision)
    if isinstance(peak, Absent):
        raise Misuse(
            f"--on {machine.name}: {peak.reason}; without a peak no step can be predicted: give it in the machine's"
            " file (docs/reference/machines.md)"
        )
    nodes = -(-ranks // machine.table.gpus_per_node)
    interconnect = machine.interconnect(ranks, nodes, efficiency=LINK_EFFICIENCY)
    names = {level.name for level in interconnect.levels}
    compute, links = COMPUTE_SPREAD, LINK_SPREAD
    sheet = machine.memory_bandwidth()
    memory = (
        f"optimizers are left out: {sheet.reason}"
        if isinstance(sheet, Absent)
        else f"optimizers at {calibration.MEMORY_EFFICIENCY:.0%}, assumed, of the memory's {sheet / 1e9:,.0f} GB/s"
    )
    return Ground(
        ranks=ranks,
        nodes=nodes,
        room_bytes=machine.table.gpu.memory_bytes,
        machine=machine,
        flops_per_second=COMPUTE_EFFICIENCY * peak.flops_per_second,
        interconnect=interconnect,
        compute_spread=compute,
        link_spread=links,
        origin=(
            f"computing at {compute.low * COMPUTE_EFFICIENCY:.0%} to {compute.high * COMPUTE_EFFICIENCY:.0%} of the"
            f" peak, links at {links.low * LINK_EFFICIENCY:.0%} to {links.high * LINK_EFFICIENCY:.0%} of theirs, as"
            f" measured elsewhere; and {OWN_ERROR:.0%} of each setup's own, assumed"
        ),
        rests_on=(
            f"computing at {COMPUTE_EFFICIENCY:.0%} of {peak.flops_per_second / 1e12:,.1f} TFLOP/s, assumed, of the"
            f" {precision} peak ({peak.source})",
            *(
                f"{level.name} at {LINK_EFFICIENCY:.0%}, assumed, of {level.bandwidth_bytes_per_second / 1e9:.4g} GB/s"
                f" a GPU in each direction ({level.source})"
                for level in machine.table.levels
                if level.name in names
            ),
            memory,
        ),
        memory_bytes_per_second=None if isinstance(sheet, Absent) else calibration.MEMORY_EFFICIENCY * sheet,
        memory_spread=MEMORY_SPREAD,
    )


# Memory of the rank that holds most.


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes of the rank that holds most.

    basis: peak: the cost model of a step's peak. papers: no such model covers the setup: states, gathered weights, and
    activations as the papers count them. states: the states alone do not fit, and the rest was not worked out.
    is_least: it is at least so much, which is too much already.
    """

    total_bytes: int
    fits: bool
    basis: Literal["peak", "papers", "states"]
    parts: Mapping[str, int]
    is_least: bool = False


def memory_need(case: Case, ground: Ground) -> MemoryNeed:
    """Return the memory of the rank that holds most, compared with a rank's room."""
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
"""Options that change nothing of what a rank holds between steps."""


def states_bytes(case: Case) -> int:
    """Return what a rank holds between steps and gathers, at the least: that of the first rank."""
    if case.options.get("offload"):
        return 0
    spec = case.spec()
    states = spec.states(case, 0)
    return states.parameters_bytes + states.gradients_bytes + states.optimizer_bytes + spec.gathered_bytes(case, 0)
