"""Whether a case fits into memory, before anything of it is allocated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.case import Case
from bench.control_groups import left_in_groups
from bench.errors import InfrastructureFailed, Misuse
from bench.gpus import Gpu, GpuMemory, Holder
from collectors.nvml.processes import names_all_processes

HOLDERS_NAMED = 4
"""Processes on one GPU that a message names; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What ranks on one device hold at the same moment, at the least. what: of that, in words."""

    what: str
    size_bytes: int


def least_bytes(case: Case, rank: int) -> int:
    """What a rank needs at the least at any moment: a probe's buffers, or training's states without any activation.

    Before its first step it may hold more than its states: every strategy makes the model whole, and divides it then.
    """
    return max(need.size_bytes for need in _needs(case, [rank]))


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that new processes of this machine can have without swapping; less where a container's limit says so."""
    return min([psutil.virtual_memory().available, *left_in_groups(root)])


def process_name(pid: int) -> str | None:
    """The name of a process that the driver numbers; None where its numbers are not those of this container."""
    with suppress(psutil.Error):
        return str(psutil.Process(pid).name()) if names_all_processes() else None
    return None


def check_memory(
    case: Case,
    *,
    host_bytes: int,
    gpus: Sequence[Gpu],
    memory: Sequence[GpuMemory] = (),
    name_of: Callable[[int], str | None] = process_name,
) -> None:
    """Refuse a case whose ranks cannot hold what they need, all on one node.

    host_bytes: for ranks on the CPU. gpus: those that ranks take in turn. memory: of each of these, what is free now.

    Raises:
        Misuse: the memory is too small; with what is needed and what is there.
        InfrastructureFailed: it would do, but other processes hold too much of a GPU; with who they are.
    """
    if case.device == "cpu":
        _refuse_beyond(case, range(case.ranks), host_bytes, "this machine has available")
        return
    for position, gpu in enumerate(gpus):
        ranks = range(case.ranks)[position :: len(gpus)]
        if gpu.memory_bytes is not None:
            _refuse_beyond(case, ranks, gpu.memory_bytes, f"GPU {gpu.index} has")
    for position, (gpu, now) in enumerate(zip(gpus, memory, strict=False)):
        need = _most(case, range(case.ranks)[position :: len(gpus)])
        if now.free_bytes is not None and need.size_bytes > now.free_bytes:
            whole_bytes = now.free_bytes if gpu.memory_bytes is None else gpu.memory_bytes
            raise InfrastructureFailed(
                f"{case.strategy}: {need.what} and GPU {gpu.index} has {_gigabytes(now.free_bytes)} free of"
                f" {_gigabytes(whole_bytes)}: {told_holders(now.holders, name_of)};"
                " wait for them, end them, or hide the GPU by CUDA_VISIBLE_DEVICES"
            )


def _refuse_beyond(case: Case, ranks: Sequence[int], there_bytes: int, whose: str) -> None:
    need = _most(case, ranks)
    if need.size_bytes <= there_bytes:
        return
    how = "smaller sizes (`observatory list` shows the options)" if case.card().kind == "probe" else "a smaller shape"
    raise Misuse(f"{case.strategy}: {need.what} and {whose} {_gigabytes(there_bytes)}; take {how}, or fewer ranks here")


def _most(case: Case, ranks: Sequence[int]) -> _Need:
    return max(_needs(case, ranks), key=lambda need: need.size_bytes)


def _needs(case: Case, ranks: Sequence[int]) -> list[_Need]:
    """What these ranks hold together, at each moment that may be the worst: they build at the same time."""
    card = case.card()
    if card.kind == "probe":
        return [_need("buffers of", "take", ranks, sum(card.working_bytes(case, rank) for rank in ranks))]
    states = [card.states(case, rank) for rank in ranks]
    held = sum(one.parameters_bytes + one.gradients_bytes + one.optimizer_bytes for one in states)
    built = sum(card.building_bytes(case, rank) for rank in ranks)
    return [
        _need("parameters, gradients and optimizer state of", "take", ranks, held),
        _need("the model, made whole on each of", "before it is divided, takes", ranks, built),
    ]


def _need(what: str, takes: str, ranks: Sequence[int], size_bytes: int) -> _Need:
    return _Need(what=f"{what} {len(ranks)} rank(s) {takes} {_gigabytes(size_bytes)}", size_bytes=size_bytes)


def told_holders(holders: Sequence[Holder], name_of: Callable[[int], str | None] = process_name) -> str:
    """Who holds a GPU's memory, the largest first."""
    if not holders:
        return "others hold the rest, and NVML names none of them (another container's, or just ended ones)"
    ordered = sorted(holders, key=lambda one: one.memory_bytes or 0, reverse=True)
    named = [_holder(one, name_of(one.pid)) for one in ordered[:HOLDERS_NAMED]]
    more = [f"{len(ordered) - HOLDERS_NAMED} more"] if len(ordered) > HOLDERS_NAMED else []
    return ", ".join([*named, *more])


def _holder(holder: Holder, name: str | None) -> str:
    who = f"process {holder.pid}" + ("" if name is None else f" ({name})")
    return f"{who} holds {'some' if holder.memory_bytes is None else _gigabytes(holder.memory_bytes)}"


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:,.1f} MB"
