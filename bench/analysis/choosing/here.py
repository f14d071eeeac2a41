"""What setups are compared on where the machine is this one: the rates that its history has measured.

A choice here measures nothing itself. Without a ceiling of matrix products, and a link where several ranks
communicate, it is refused with the commands that measure them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.analysis.choosing.ground import NO_SPREAD, OWN_ERROR, Ground, Spread
from bench.analysis.prediction.from_history import memory_bandwidth
from bench.case import Case
from bench.errors import Misuse
from bench.machine.gpus import Gpu
from bench.machine.machine import hardware_here
from bench.machine.preflight import available_bytes
from bench.store.hardware_baselines import Ceiling, find_ceiling
from bench.store.history import History
from bench.store.links import MeasuredLinks, find_links
from workloads.cost_models.absent import Absent
from workloads.cost_models.terms import Collective
from workloads.spec import Device

CEILING_SPREAD = Spread(low=0.5, high=1.0)
"""Ranks compute at half of the fastest product to all of it. Assumed: norms, attention and small products are slower,
by how much depends on the shape."""
SWEEP_SPREAD = Spread(low=0.8, high=1.1)
"""A strategy's collectives reach this share of what a sweep measured. Assumed."""
SENT_BY_SETUPS: tuple[Collective, ...] = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "send",
)
"""What the strategies that are compared send."""


def ground_here(base: Case, history: History, *, cores: int, gpus: Sequence[Gpu]) -> Ground:
    """Return what setups are compared on here. base: a case with the ranks, device, backend and precision in question.

    Raises:
        Misuse: the history lacks a ceiling or a link; the message has the commands that measure them.
        InfrastructureFailed: the history cannot be read.
    """
    hardware = hardware_here(base.device, cores=cores, gpus=gpus)
    ceiling = find_ceiling(history, base, hardware)
    if isinstance(ceiling, Absent):
        raise Misuse(f"nothing is predicted here: {ceiling.reason}; or plan for another machine with --on")
    links = _links(base, history, ceiling)
    if isinstance(links, Absent):
        raise Misuse(f"nothing is predicted here: {links.reason}; or plan for another machine with --on")
    rate = ceiling.flops_per_second.median
    rests_on = [f"computing at the ceiling of {ceiling.run}, {rate / 1e9:,.4g} GFLOP/s a rank"]
    if links is not None:
        rests_on.append(f"links: {links.basis}")
    memory = memory_bandwidth(base, hardware, history)
    if memory is None:
        rests_on.append(
            "optimizers are left out: the history has no comparable copies run; `observatory run copies` makes one"
        )
    return Ground(
        ranks=base.ranks,
        nodes=1,
        room_bytes=_room_bytes(base.device, base.ranks, gpus),
        machine=None,
        flops_per_second=rate,
        interconnect=Absent(reason="one rank sends nothing") if links is None else links.interconnect,
        compute_spread=CEILING_SPREAD,
        link_spread=SWEEP_SPREAD,
        origin=(
            f"computing at {CEILING_SPREAD.low:.0%} to {CEILING_SPREAD.high:.0%} of the ceiling, links at"
            f" {SWEEP_SPREAD.low:.0%} to {SWEEP_SPREAD.high:.0%} of what was measured, and {OWN_ERROR:.0%} of each"
            " setup's own, all assumed"
        ),
        rests_on=tuple(rests_on),
        memory_bytes_per_second=None if memory is None else memory.value,
        memory_spread=NO_SPREAD
        if memory is None
        else Spread(low=memory.low / memory.value, high=memory.high / memory.value),
    )


def _links(base: Case, history: History, ceiling: Ceiling) -> MeasuredLinks | Absent | None:
    """Return the links between the ranks; None for one rank."""
    if base.ranks == 1:
        return None
    # Links are looked up for a run: one of this case, on the hardware of the ceiling.
    run = history.find(ceiling.run)
    assert run is not None, "the ceiling is a run of the history"
    return find_links(replace(run, case=base), history, SENT_BY_SETUPS)


def _room_bytes(device: Device, ranks: int, gpus: Sequence[Gpu]) -> int | None:
    """Return the memory of a rank: that of the smallest GPU, or an equal share of what the host has left."""
    if device == "cpu":
        return available_bytes() // ranks
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
    return min(sizes, default=None)
