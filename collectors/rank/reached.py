"""How far a rank came on its device, by its flight record: it distinguishes a hung rank from ranks that wait for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far one rank came in a sequence of operations that the ranks of a process group do in the same order.

    Each field is the number of the last operation, counted from the group's first. issued: by the host.
    started, completed: by the device; both are None on gloo, whose record has no states. started is None where torch
    does not time collectives (TORCH_NCCL_ENABLE_TIMING).
    """

    issued: int
    started: int | None
    completed: int | None
