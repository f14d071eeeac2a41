"""Whether a case fits into memory, before anything of it is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil

from bench.case import Case
from bench.control_groups import left_in_groups
from bench.errors import Misuse
from bench.gpus import Gpu


def least_bytes(case: Case, rank: int) -> int:
    """What a rank needs at the least: a probe's buffers, or training's states without any activation."""
    card = case.card()
    if card.kind == "probe":
        return card.working_bytes(case, rank)
    states = card.states(case, rank)
    return states.parameters_bytes + states.gradients_bytes + states.optimizer_bytes


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that new processes of this machine can have without swapping; less where a container's limit says so."""
    return min([psutil.virtual_memory().available, *left_in_groups(root)])


def check_memory(case: Case, *, host_bytes: int, gpus: Sequence[Gpu]) -> None:
    """Refuse a case whose ranks cannot hold what they need, all on one node.

    host_bytes: for ranks on the CPU. gpus: those that ranks take in turn.

    Raises:
        Misuse: the memory is too small; with what is needed and what is there.
    """
    needs_bytes = [least_bytes(case, rank) for rank in range(case.ranks)]
    if case.device == "cpu":
        _refuse(case, needs_bytes, host_bytes, "this machine has available")
        return
    for position, gpu in enumerate(gpus):
        if gpu.memory_bytes is not None:
            _refuse(case, needs_bytes[position :: len(gpus)], gpu.memory_bytes, f"GPU {gpu.index} has")


def _refuse(case: Case, needs_bytes: Sequence[int], there_bytes: int, whose: str) -> None:
    if sum(needs_bytes) <= there_bytes:
        return
    what = "buffers" if case.card().kind == "probe" else "parameters, gradients and optimizer state"
    how = "smaller sizes (`observatory list` shows the options)" if case.card().kind == "probe" else "a smaller shape"
    raise Misuse(
        f"{case.strategy}: {what} of {len(needs_bytes)} rank(s) take {_gigabytes(sum(needs_bytes))} and {whose}"
        f" {_gigabytes(there_bytes)}; take {how}, or fewer ranks here"
    )


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:,.1f} MB"
