"""Predicts the peak memory of the rank that holds most, by part, and compares it with the device's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.case import Case
from bench.machine.machines.machine_file import PlannedMachine
from bench.machine.preflight import PARTS_JUDGED, PROCESS_BYTES, beside_tensors
from workloads.cost_models.absent import Absent
from workloads.cost_models.peak_memory import Prediction
from workloads.options import microbatch_count

STATES = ("parameters", "gradients", "optimizer")
"""The parts of memory that neither checkpointing nor a smaller batch changes."""
OFFLOADED = "states that a node's ranks offload to its host"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """Peak bytes of the rank that holds most, by part, and the memory of a GPU.

    states_bytes: largest sum of a rank's parameters, gradients and optimizer state; 0 for a probe, and if the host
    holds them. host_bytes, host_room_bytes: what the ranks of a node offload to its host, and the host's memory.
    is_least: no cost model predicts the peak of a step, so the parts are only the minimum that the rank holds.
    basis: origin of the figures, for people.
    """

    parts: Mapping[str, int]
    room_bytes: int
    basis: str
    states_bytes: int = 0
    host_bytes: int = 0
    host_room_bytes: int = 0
    is_least: bool = False

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return max(self.total_bytes, self.states_bytes) <= self.room_bytes and self.host_bytes <= self.host_room_bytes

    @property
    def too_much(self) -> tuple[str, int] | None:
        """The part that is too large, in words, with its bytes; None if everything fits.

        The states if they alone exceed the memory; otherwise the largest of the other parts.
        """
        if self.fits:
            return None
        if self.host_bytes > self.host_room_bytes:
            return OFFLOADED, self.host_bytes
        if self.states_bytes > self.room_bytes:
            return "parameters, gradients and optimizer state alone", self.states_bytes
        others = [name for name in self.parts if name not in STATES] or list(self.parts)
        largest = max(others, key=lambda name: self.parts[name])
        return largest, self.parts[largest]


def memory_fit(case: Case, machine: PlannedMachine) -> MemoryFit:
    """Compare the memory of the rank that holds most with a GPU's."""
    return memory_within(case, machine.table.gpu.memory_bytes, machine.table.host_memory_bytes)


def memory_within(case: Case, room_bytes: int, host_room_bytes: int) -> MemoryFit:
    """Compare the memory of the rank that holds most with that of a rank's device and a node's host."""
    spec = case.spec()
    if case.model is None:
        buffers = {"buffers": max(spec.working_bytes(case, rank) for rank in (0, case.ranks - 1))}
        return MemoryFit(parts=buffers, room_bytes=room_bytes, basis="the probe's buffers")
    # The largest sum of a rank's parameters, gradients and optimizer state.
    of_ranks = (spec.states(case, rank) for rank in _looked_at(case))
    states_bytes = max(each.parameters_bytes + each.gradients_bytes + each.optimizer_bytes for each in of_ranks)
    if case.options.get("offload"):
        return MemoryFit(
            parts=least_parts(case),
            room_bytes=room_bytes,
            basis="what is gathered at once; states are offloaded to the host",
            host_bytes=states_bytes * -(-case.ranks // case.nodes),
            host_room_bytes=host_room_bytes,
            is_least=True,
        )
    peak = _peak(case)
    if isinstance(peak, Prediction):
        parts = {
            "parameters": peak.parameters_bytes,
            "gradients": peak.gradients_bytes,
            "optimizer": peak.optimizer_bytes,
            "activations": peak.activations_bytes,
            "temporary": peak.temporary_bytes,
            "other": peak.buffers_bytes + peak.other_bytes,
            "overhead": PROCESS_BYTES if case.device == "cpu" else beside_tensors(case, peak),
        }
        basis = "tensors by the cost model of CUDA; CUDA's context, NCCL and fragmentation are estimated (overhead)"
        if case.device == "cpu":
            basis = "tensors by the cost model; the process itself is the least that was measured (overhead)"
        parts = {name: size for name, size in parts.items() if size}
        return MemoryFit(parts=parts, room_bytes=room_bytes, basis=basis, states_bytes=states_bytes)
    parts = least_parts(case)
    return MemoryFit(parts=parts, room_bytes=room_bytes, basis=peak.reason, states_bytes=states_bytes, is_least=True)


def _looked_at(case: Case) -> list[int]:
    """Return the ranks that may hold most: the first, the middle one and the last."""
    return sorted({0, case.ranks // 2, case.ranks - 1})


def _peak(case: Case) -> Prediction | Absent:
    """Return the peak of a step on CUDA, or why it is absent."""
    if microbatch_count(case) > PARTS_JUDGED:
        return Absent(reason=f"the cost model follows at most {PARTS_JUDGED} microbatches")
    return case.spec().peak(case)


def least_parts(case: Case) -> dict[str, int]:
    """Return what the rank that holds most keeps and gathers; for a case whose peak no cost model predicts.

    Offloaded states do not count.
    """
    spec = case.spec()
    by_rank = []
    for rank in _looked_at(case):
        gathered = {
            "gathered": spec.gathered_bytes(case, rank),
            "unreduced gradients": spec.unreduced_bytes(case, rank),
        }
        states = spec.states(case, rank)
        states_of_rank = {
            "parameters": states.parameters_bytes,
            "gradients": states.gradients_bytes,
            "optimizer": states.optimizer_bytes,
        }
        by_rank.append(gathered if case.options.get("offload") else states_of_rank | gathered)
    most = max(by_rank, key=lambda parts: sum(parts.values()))
    return {name: size for name, size in most.items() if size}
