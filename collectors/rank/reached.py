"""A rank's progress according to its flight record, which distinguishes a hung rank from ranks that wait for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A rank's progress in a sequence of operations that all ranks of a process group perform in the same order.

    Each field is the number of the last operation, counted from the group's first. issued: by the host.
    started, completed: by the device; both are None on gloo, whose record has no states. started is None if torch does
    not time collectives (TORCH_NCCL_ENABLE_TIMING).
    """

    issued: int
    started: int | None
    completed: int | None
